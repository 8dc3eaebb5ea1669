# proven.bats - on loopback only processes with the job's token can talk to it, and no user has to pass the token:
# strangers that know the messages, another user, a port that was taken first, the files of a killed scheduler.

load ../support/job

setup() {
    job_setup
    unset PENSTOCK_SECRET_FILE PENSTOCK_ENCRYPTION
}
teardown() { job_teardown; }

# The port of the scheduler of the started job.
scheduler_port() { sed 's/.*"address": *"[^"]*:\([0-9]*\)".*/\1/' "$tmp/penstock/$launched_job.json"; }

tokens() { ls "$tmp/penstock" 2>/dev/null | grep -c '\.token' || :; }

# A member started by hand:  shell NAME COMMAND...   -> $tmp/NAME.{out,err}
shell() { MARK=$mark "${@:2}" >"$tmp/$1.out" 2>"$tmp/$1.err" 3>&- & }

# bare RANK WORLD PORT COMMAND...
bare() {
    shell "worker-$1" env RANK="$1" WORLD_SIZE="$2" LOCAL_RANK="$1" LOCAL_WORLD_SIZE="$2" MASTER_ADDR=127.0.0.1 \
        MASTER_PORT="$3" PENSTOCK_SERVERS=0 "${@:4}"
}

bare_here() {
    RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$1 PENSTOCK_SERVERS=0 \
        PENSTOCK_INIT_TIMEOUT_MS=1500 "$programs/stepper" >"$tmp/worker.out" 2>"$tmp/worker.err"
}

all_end_well() {
    local pid
    for pid in $(jobs -p); do
        wait "$pid" || { echo "exit $? of process $pid"; tail -n 5 "$tmp"/*.err; return 1; }
    done
    nothing_is_left
}

@test "two small messages of a stranger end no job, and a stranger receives nothing" {
    local flags=(--mode ps-bsp --optim "adamw lr=0.002" --steps 80) port stranger
    train clean --servers 1 --nproc-per-node 2 -- "${flags[@]}"
    start job --servers 1 --nproc-per-node 2 "${fashion[@]}" "${flags[@]}" --slow-ms 60 --out "$tmp/job.json"
    wait_for_step 2
    port=$(scheduler_port)
    "$penstock" keygen "$tmp/theirs" 2>/dev/null
    "$programs/stranger" tool "$port" >"$tmp/tool" 3>&- &
    "$programs/stranger" end "$port" "$tmp/theirs" >"$tmp/wrong" 3>&- &
    "$programs/stranger" end "$port" >"$tmp/end"
    sleep 0.3
    for stranger in end tool wrong; do
        grep -qx 'heard 0 messages of 0 bytes, the largest 0' "$tmp/$stranger" || { cat "$tmp/$stranger"; return 1; }
    done
    status >"$tmp/state"
    [ "$(sed -n 's/^[^[]*"refused":\([0-9]*\).*/\1/p' "$tmp/state")" -ge 3 ]
    wait_for_end 60
    [ "$code" = 0 ] || { cat "$tmp/job.err"; return 1; }
    same_crc clean job
    nothing_is_left
    [ "$(tokens)" = 0 ]
}

@test "shells that nobody gave a token prove that they belong together; status finds it by the port; it goes with the job" {
    local port rank
    port=$(free_port)
    for rank in 2 1 0; do bare "$rank" 3 "$port" "$programs/stepper" steps=40 pause_ms=50; done
    for _ in $(seq 200); do "$penstock" status --master-port "$port" >"$tmp/status" 2>&1 && break; sleep 0.05; done
    grep -q 'loopback: proven' "$tmp/status" || { cat "$tmp/status"; return 1; }
    [ "$(tokens)" = 1 ]
    [ "$(stat -c %a "$tmp"/penstock/*.token)" = 600 ]
    all_end_well
    [ "$(tokens)" = 0 ]
}

@test "what a killed scheduler left at that port does not keep the next job from starting" {
    local port rank
    port=$(free_port)
    shell scheduler "$penstock" scheduler --world-size 2 --port "$port"
    for _ in $(seq 200); do [ "$(tokens)" = 1 ] && break; sleep 0.02; done
    kill -9 "$(jobs -p)"
    wait || :
    [ "$(tokens)" = 1 ]
    for rank in 1 0; do
        bare "$rank" 2 "$port" "$programs/stepper"
        sleep 0.3 # rank 1 reads the old token, and is refused
    done
    all_end_well
    [ "$(tokens)" = 0 ]
}

@test "who listens at the port first hears a nonce at a time and nothing else, and the job says what answers there" {
    local port
    port=$(free_port)
    mkdir -m 700 "$tmp/penstock" # and a token, as a scheduler of this user leaves it
    "$penstock" keygen "$tmp/penstock/at_$port-$(printf %x "$(stat -Lc %i /proc/self/ns/net)").token" 2>/dev/null
    shell squatter "$programs/stranger" squat "$port"
    sleep 0.3
    ! bare_here "$port" || return 1
    wait
    cat "$tmp/squatter.out" "$tmp/worker.err"
    grep -qE '^heard [1-9][0-9]* messages .* the largest 48$' "$tmp/squatter.out"
    grep -q "what listens there does not hold this job's token" "$tmp/worker.err"
}

# Processes that take the port $2 for their scheduler's; a stranger there relays everything to port $1.
deceive() { # TO AT
    local mirror pids=()
    MARK=$mark "$programs/mirror" relay "$2" "$1" >"$tmp/relay-$1" 3>&- &
    mirror=$!
    MARK=$mark "$penstock" status --master-port "$2" --timeout-ms 500 >"$tmp/tool-$1" 2>&1 3>&- &
    pids+=($!)
    MARK=$mark RANK=1 WORLD_SIZE=3 LOCAL_RANK=1 LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$2 PENSTOCK_SERVERS=1 \
        PENSTOCK_INIT_TIMEOUT_MS=700 "$programs/stepper" >"$tmp/worker-$1" 2>&1 3>&- &
    pids+=($!)
    ! wait "${pids[0]}" || return 1
    ! wait "${pids[1]}" || return 1
    kill "$mirror"
    wait "$mirror"
}

# A relay needs a victim that dials it. So the job's token is copied to the names of other ports, as if its user had
# been told these ports, or a port had been taken over.
@test "a process that reflects challenges or relays them to another member is never admitted and gets no member to talk" {
    local own to at port ports pids=() peers=()
    start job --servers 1 --nproc-per-node 2 --log-dir "$tmp/log" "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 2
    own=$(scheduler_port)
    ports="$own $(status | grep -oE 'tcp://[^"]+' | sed 's/.*://' | sort -un | grep -vx "$own" | tr '\n' ' ')"
    [ "$(wc -w <<<"$ports")" = 4 ]
    MARK=$mark "$programs/mirror" reflect $ports >"$tmp/reflect" 3>&- &
    pids+=($!)
    for to in 0 $ports; do
        at=$(free_port)
        cp "$tmp/penstock"/at_"$own"-*.token "$tmp/penstock/at_$at-$(printf %x "$(stat -Lc %i /proc/self/ns/net)").token"
        deceive "$to" "$at" &
        pids+=($!)
    done
    for port in "${pids[@]}"; do wait "$port" || { cat "$tmp"/{reflect,relay,tool,worker}*; return 1; }; done
    cat "$tmp"/{reflect,relay}*
    grep -qE '"connections": 64, "asks": 0, "answers": 64, "claims": 0, "welcomes": 0, "others": 0' "$tmp/reflect"
    for to in 0 $ports; do
        grep -qE '"asks": [1-9].* "claims": 0, "welcomes": 0, "others": 0' "$tmp/relay-$to"
        [ "$to" = 0 ] || grep -qE '"answers": [1-9]' "$tmp/relay-$to"
        grep -qE "does not (hold this job's token|prove that it belongs to the job)" "$tmp/worker-$to"
    done
    wait_for_step $(($(status_value step) + 5))
    for port in "$tmp/log/$launched_job"/attempt_0/*.err; do
        [ "$(grep -c 'refused' "$port")" -le 1 ] || { cat "$port"; return 1; }
    done
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}

@test "another user of this host at the port of a job is told what is missing, and the job continues" {
    [ "$(id -u)" = 0 ] || skip "needs root to become somebody else"
    local port
    port=$(free_port)
    for rank in 1 0; do bare "$rank" 2 "$port" "$programs/stepper" steps=30 pause_ms=50; done
    for _ in $(seq 200); do [ "$(tokens)" = 1 ] && break; sleep 0.02; done
    cp "$programs/stepper" "$build"/lib/libpenstock.so* "$tmp/" && chmod 755 "$tmp" "$tmp/stepper"
    run setpriv --reuid 54321 --regid 54321 --clear-groups env -u XDG_RUNTIME_DIR HOME=/nonexistent LD_LIBRARY_PATH="$tmp" \
        RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" PENSTOCK_SERVERS=0 PENSTOCK_INIT_TIMEOUT_MS=700 \
        "$tmp/stepper"
    echo "$output"
    [ "$status" != 0 ]
    [[ "$output" == *"PENSTOCK_SECRET_FILE"* ]]
    all_end_well
}

@test "the folder of this user's keys is refused while others can enter it, and ignored if another user owns it" {
    mkdir -m 0777 "$tmp/penstock"
    chmod 0777 "$tmp/penstock" # independent of the umask
    run env MARK="$mark" "$penstock" run --encryption on --nproc-per-node 2 "$programs/stepper" steps=3
    echo "$output"
    [ "$status" != 0 ]
    [[ "$output" == *"the folder $tmp/penstock is open to others (mode 0777): check its contents, then chmod 700 it or remove it"* ]]
    [ "$(id -u)" = 0 ] || return 0 # without root the second half cannot run

    mkdir -p -m 0700 /tmp/penstock-54321 "$tmp/home"
    chown 54321 "$tmp/home"
    chmod 755 "$tmp"
    mkdir "$tmp/bin"
    cp "$penstock" "$programs/stepper" "$build"/lib/libpenstock.so* "$tmp/bin/"
    run setpriv --reuid 54321 --regid 54321 --clear-groups env -u XDG_RUNTIME_DIR HOME="$tmp/home" LD_LIBRARY_PATH="$tmp/bin" \
        TMPDIR="$tmp/home" MARK="$mark" "$tmp/bin/penstock" run --encryption on --nproc-per-node 2 "$tmp/bin/stepper" steps=3
    echo "$output"
    rmdir /tmp/penstock-54321
    [ "$status" = 0 ]
    nothing_is_left
}

@test "a scheduler that listens everywhere in clear text tells its own user so: no process waits for a token on loopback" {
    local port rank
    port=$(free_port)
    shell scheduler "$penstock" scheduler --world-size 2 --servers 1 --host 0.0.0.0 --encryption clear --port "$port"
    for _ in $(seq 200); do [ "$(tokens)" = 1 ] && break; sleep 0.02; done
    shell server env PENSTOCK_INIT_TIMEOUT_MS=8000 "$penstock" server --master-addr 127.0.0.1 --master-port "$port"
    for rank in 1 0; do
        bare "$rank" 2 "$port" env PENSTOCK_SERVERS=1 PENSTOCK_INIT_TIMEOUT_MS=8000 "$programs/stepper"
    done
    all_end_well
    grep -q 'is neither encrypted nor authenticated: the scheduler runs with encryption=clear' "$tmp/worker-0.err"
    [ "$(tokens)" = 0 ]
}

@test "a bad setting of rank 0 ends the others with its sentence, when shells start them by variables" {
    local port rank said pids=()
    port=$(free_port)
    for rank in 1 2; do
        bare "$rank" 3 "$port" "$programs/stepper"
        pids+=($!)
    done
    sleep 0.3 # they are dialling now
    bare 0 3 "$port" env PENSTOCK_LEASE_S=3 "$programs/stepper"
    for rank in 0 1; do
        code=0
        wait "${pids[$rank]}" || code=$?
        [ "$code" = 1 ]
    done
    said="worker 0 ($HOSTNAME) cannot start: unknown setting 'lease_s'; did you mean 'lease_ms'?  (from PENSTOCK_LEASE_S)"
    for rank in 0 1 2; do grep -qF "$said" "$tmp/worker-$rank.err" || { cat "$tmp"/*.err; return 1; }; done
    wait
    grep -qxF "stepper: ${said#*start: }" "$tmp/worker-0.err"
    [ "$(tokens)" = 0 ]
    nothing_is_left
}
