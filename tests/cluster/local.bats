# local.bats - a job on one host meets on local sockets, which nobody else can enter, and no user has to pass anything:
# strangers that know the messages, another user, a port that was taken first, what killed processes leave.

load ../support/job

setup() {
    job_setup
    unset PENSTOCK_SECRET_FILE PENSTOCK_ENCRYPTION
}
teardown() { job_teardown; }

# The port of the scheduler of the started job.
scheduler_port() { sed 's/.*"address": *"[^"]*:\([0-9]*\)".*/\1/' "$tmp/penstock/$launched_job.json"; }

sockets() { ls "$tmp/penstock" 2>/dev/null | grep -c '\.sock' || :; }

# The ports of all members of the started job.
all_ports() { echo "$(scheduler_port) $(status | grep -oE 'tcp://[^"]+' | sed 's/.*://' | sort -un | tr '\n' ' ')"; }

# The rest as another user, who has copies of these programs:  as_somebody PROGRAM... -- COMMAND...
as_somebody() {
    local words=()
    mkdir -p "$tmp/theirs" && chmod 755 "$tmp" "$tmp/theirs"
    while [ "$1" != -- ]; do words+=("$1") && shift; done
    cp "${words[@]}" "$build"/lib/libpenstock.so* "$tmp/theirs/" && chmod 755 "$tmp/theirs"/*
    setpriv --reuid 54321 --regid 54321 --clear-groups env -u XDG_RUNTIME_DIR HOME=/nonexistent LD_LIBRARY_PATH="$tmp/theirs" "${@:2}"
}

# A member started by hand:  shell NAME COMMAND...   -> $tmp/NAME.{out,err}
shell() { MARK=$mark "${@:2}" >"$tmp/$1.out" 2>"$tmp/$1.err" 3>&- & }

# bare RANK WORLD PORT COMMAND...
bare() {
    shell "worker-$1" env PENSTOCK_INIT_TIMEOUT_MS=15000 RANK="$1" WORLD_SIZE="$2" LOCAL_RANK="$1" LOCAL_WORLD_SIZE="$2" MASTER_ADDR=127.0.0.1 \
        MASTER_PORT="$3" PENSTOCK_SERVERS=0 "${@:4}"
}

bare_here() {
    RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$1 PENSTOCK_SERVERS=0 \
        PENSTOCK_INIT_TIMEOUT_MS=1500 "$programs/stepper" >"$tmp/worker.out" 2>"$tmp/worker.err"
}

@test "no port of a job on one host accepts a connection, a stranger receives nothing, and the job ends as if alone" {
    local flags=(--mode ps-bsp --optim "adamw lr=0.002" --steps 80) port stranger
    train clean --servers 1 --nproc-per-node 2 -- "${flags[@]}"
    start job --servers 1 --nproc-per-node 2 "${fashion[@]}" "${flags[@]}" --slow-ms 60 --out "$tmp/job.json"
    wait_for_step 2
    [ "$(all_ports | wc -w)" -ge 4 ]
    for port in $(all_ports); do
        ! (exec 7<>"/dev/tcp/127.0.0.1/$port") 2>"$tmp/refused" || return 1
        grep -q 'Connection refused' "$tmp/refused"
    done
    "$programs/stranger" tool "$(scheduler_port)" >"$tmp/tool" 3>&- &
    "$programs/stranger" end "$(scheduler_port)" >"$tmp/end"
    wait $!
    for stranger in end tool; do
        grep -qx 'heard 0 messages of 0 bytes, the largest 0' "$tmp/$stranger" || { cat "$tmp/$stranger"; return 1; }
    done
    wait_for_end 60
    [ "$code" = 0 ] || { cat "$tmp/job.err"; return 1; }
    same_crc clean job
    nothing_is_left
    [ "$(sockets)" = 0 ]
}

@test "shells that nobody gave anything meet; status finds them by the port; their sockets go with the job" {
    local port rank
    port=$(free_port)
    for rank in 2 1 0; do bare "$rank" 3 "$port" "$programs/stepper" steps=40 pause_ms=50; done
    for _ in $(seq 200); do "$penstock" status --master-port "$port" >"$tmp/status" 2>&1 && break; sleep 0.05; done
    grep -q 'this user on this host' "$tmp/status" || { cat "$tmp/status"; return 1; }
    [ "$(sockets)" -ge 1 ]
    [ "$(stat -c %a "$tmp"/penstock)" = 700 ]
    all_end_well
    [ "$(sockets)" = 0 ]
}

@test "what a killed scheduler left at that port does not keep the next job from starting" {
    local port rank
    port=$(free_port)
    shell scheduler "$penstock" scheduler --world-size 2 --port "$port"
    for _ in $(seq 200); do [ "$(sockets)" = 1 ] && break; sleep 0.02; done
    kill -9 "$(jobs -p)"
    wait || :
    [ "$(sockets)" = 1 ]
    for rank in 1 0; do
        bare "$rank" 2 "$port" "$programs/stepper"
        sleep 0.3 # rank 1 finds the old socket
    done
    all_end_well
    [ "$(sockets)" = 0 ]
}

@test "any process may be killed, again and again at one port: the next job starts, and nothing is left behind" {
    local port victim i pid
    port=$(free_port)
    for i in $(seq "${KILLS:-6}"); do
        for victim in scheduler "server 0" "worker 1"; do
            start "kill$i" --master-port "$port" --servers 1 --nproc-per-node 2 "$programs/stepper" steps=100000 pause_ms=5
            wait_for_step 1
            # shellcheck disable=SC2086
            pid=$(member $victim)
            kill -9 "$pid"
            wait_for_end 20
            [ "$code" != 0 ]
            [ "$(sockets)" = 0 ] || { ls "$tmp/penstock"; return 1; }
            [ -z "$(ls "$tmp/penstock")" ] || { ls -la "$tmp/penstock"; return 1; }
        done
    done
    nothing_is_left
}

@test "who listens at the port first hears nothing, and the job says that something else answers there" {
    local port
    port=$(free_port)
    shell squatter "$programs/stranger" squat "$port"
    sleep 0.3
    ! bare_here "$port" || return 1
    wait
    cat "$tmp/squatter.out" "$tmp/worker.err"
    grep -qx 'heard 0 messages of 0 bytes, the largest 0' "$tmp/squatter.out"
    grep -q 'the port is open' "$tmp/worker.err"
}

@test "processes with other folders on one network say in one sentence what to give them, and train when they have it" {
    local port
    port=$(free_port)
    mkdir -m 700 "$tmp/other"
    bare 0 2 "$port" env PENSTOCK_INIT_TIMEOUT_MS=1500 "$programs/stepper"
    run env XDG_RUNTIME_DIR="$tmp/other" RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" PENSTOCK_SERVERS=0 \
        PENSTOCK_INIT_TIMEOUT_MS=700 "$programs/stepper"
    [ "$status" != 0 ]
    [[ $output == *"(a process of another user or container has that port); set PENSTOCK_SECRET_FILE for all"* ]] || { echo "$output"; return 1; }
    run env XDG_RUNTIME_DIR="$tmp/other" "$penstock" status --master-port "$port" --timeout-ms 300
    [[ $output == *": some process has that port, but no socket in this user's folder; "* ]] || { echo "$output"; return 1; }
    wait || :
    "$penstock" keygen "$tmp/secret" 2>/dev/null
    export PENSTOCK_SECRET_FILE=$tmp/secret
    bare 0 2 "$port" "$programs/stepper" steps=5
    bare 1 2 "$port" env XDG_RUNTIME_DIR="$tmp/other" "$programs/stepper" steps=5
    all_end_well
    [ "$(cat "$tmp"/worker-?.out | grep -c 'step 4 ')" = 2 ]
}

@test "another user of this host at the port of a job is told what is missing, and the job continues" {
    [ "$(id -u)" = 0 ] || skip "needs root to become somebody else"
    local port
    port=$(free_port)
    for rank in 1 0; do bare "$rank" 2 "$port" "$programs/stepper" steps=30 pause_ms=50; done
    for _ in $(seq 200); do [ "$(sockets)" -ge 1 ] && break; sleep 0.02; done
    run as_somebody "$programs/stepper" -- \
        RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" PENSTOCK_SERVERS=0 PENSTOCK_INIT_TIMEOUT_MS=700 \
        "$tmp/theirs/stepper"
    echo "$output"
    [ "$status" != 0 ]
    [[ "$output" == *"PENSTOCK_SECRET_FILE"* ]]
    run as_somebody "$programs/stepper" -- ls "$tmp/penstock"
    [[ "$output" == *"Permission denied"* ]]
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

@test "a scheduler that listens everywhere in clear text serves its own user by a local socket" {
    local port rank
    port=$(free_port)
    shell scheduler "$penstock" scheduler --world-size 2 --servers 1 --host 0.0.0.0 --encryption clear --port "$port"
    for _ in $(seq 200); do [ "$(sockets)" = 1 ] && break; sleep 0.02; done
    shell server env PENSTOCK_INIT_TIMEOUT_MS=8000 "$penstock" server --master-addr 127.0.0.1 --master-port "$port"
    for rank in 1 0; do
        bare "$rank" 2 "$port" env PENSTOCK_SERVERS=1 PENSTOCK_INIT_TIMEOUT_MS=8000 "$programs/stepper"
    done
    all_end_well
    grep -q 'WARNING: traffic over TCP (0.0.0.0) is neither encrypted nor authenticated (encryption=clear): whoever reaches' "$tmp/scheduler.err"
    [ "$(sockets)" = 0 ]
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
    [ "$(sockets)" = 0 ]
    nothing_is_left
}
