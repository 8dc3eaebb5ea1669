# liar.bats - a job trains while a process that knows its memory addresses sends it lies about memory, as the same user
# and as another: nothing is read, nothing ends, nothing grows.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# Ports of scheduler and shards of the started job.
ports() {
    { sed 's/.*"address": *"\([^"]*\)".*/\1/' "$tmp/penstock/$launched_job.json"; echo
      status | members_of | grep '"role":"server"' | grep -oE 'tcp://[^"]+'; } | sed 's/.*://' | grep -E '^[0-9]+$' | sort -un
}

# The largest resident set so far in KiB and the open descriptors of each victim, one a line.
sizes() {
    local pid
    for pid in $victims; do
        echo "$(sed -n 's/^VmHWM:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$pid/status") $(ls "/proc/$pid/fd" | wc -l)"
    done
}

@test "lies about memory read nothing, end nothing and cost no memory, from this user and another" {
    local words=(steps=90 rows=1000) port corpus=$root/tests/fuzz/corpus # large enough to be lent
    pen run --standalone --servers 2 --nproc-per-node 2 "$programs/stepper" "${words[@]}" >"$tmp/clean.out" 2>"$tmp/clean.err"
    # In clear text over TCP: everywhere else these processes cannot connect.
    start besieged --local-sockets no --encryption clear --servers 2 --nproc-per-node 2 --log-dir "$tmp/log" "$programs/stepper" "${words[@]}" pause_ms=60
    wait_for_step 10
    ports >"$tmp/ports"
    [ "$(wc -l <"$tmp/ports")" = 3 ]
    victims="$(member scheduler) $(member server 0) $(member server 1)"
    sizes >"$tmp/before"
    MARK=$mark "$programs/liar" 3 "$corpus/wire_control/HELLO" "$corpus/wire_data/PUSH" \
        "$(member server 0),$(member worker 0),$(member worker 1)" $(cat "$tmp/ports") >"$tmp/lies" 3>&-
    cat "$tmp/lies"
    sleep 0.2
    sizes >"$tmp/after"
    paste "$tmp/before" "$tmp/after"
    wait_for_end 60
    [ "$code" = 0 ] || { cat "$tmp/besieged.err"; return 1; }
    diff <(sort "$tmp/clean.out") <(sort "$tmp/besieged.out")
    [ "$(wc -l <"$tmp/clean.out")" -ge 90 ]

    [ "$(wc -l <"$tmp/lies")" = "$([ "$(id -u)" = 0 ] && echo 2 || echo 1)" ]
    [ "$(grep -c '"answers": 0}' "$tmp/lies")" = "$(wc -l <"$tmp/lies")" ]
    [ "$(sed -n 's/.*"user": "own".*"messages": \([0-9]*\).*/\1/p' "$tmp/lies")" -ge 500 ]
    [ "$(sed -n 's/.*"user": "own", "places": \([0-9]*\).*/\1/p' "$tmp/lies")" -ge 3 ]
    paste "$tmp/before" "$tmp/after" | awk '$3 - $1 > 10240 || $4 - $2 > 2 {bad = 1} END {exit bad || NR != 3}'
    for port in scheduler server-0 server-1; do # the job lasts less than a minute: one line for each peer
        refused_once "$tmp/log/$launched_job/attempt_0/$port.err"
    done
    nothing_is_left
}

@test "what the status of a job shows says where members listen, and not where their memory lies" {
    start seen --nproc-per-node 2 "$programs/stepper" steps=100000 1:pause_ms=200
    wait_for_step 1
    status >"$tmp/state"
    grep -q 'tcp://' "$tmp/state"
    ! grep -E "node:|cuda:|memfd" "$tmp/state" || false
    kill "$launcher"
    wait_for_end 8
}

# Writes the sizes to $1after as soon as the descriptors are as many as in $1before, except for a timer and the client
# that asks for the status, or after 3 s.
descriptors_are_back() {
    local end=$((${EPOCHREALTIME/[.,]/} + 3000000))
    while [ "${EPOCHREALTIME/[.,]/}" -lt "$end" ]; do
        sizes >"$tmp/${1-}after"
        paste "$tmp/${1-}before" "$tmp/${1-}after" | awk '$4 - $2 > 2 {bad = 1} END {exit bad}' && return
        sleep 0.02
    done
}

# A job NAME whose secret is known to a process that is not a member.
begin_betrayed() { # NAME FLAGS...
    start "$1" --servers 2 --nproc-per-node 2 --log-dir "$tmp/log-$1" "${@:2}" "$programs/stepper" "${words[@]}" pause_ms=50
    declare -p launcher launched_job | sed 's/^declare -- //' >"$tmp/$1.job"
}

betray() { # NAME ENDING: of the file with its secret, if it has one
    . "$tmp/$1.job"
    wait_for_step 8
    victims="$(member scheduler) $(member server 0) $(member server 1) $(member worker 0) $(member worker 1)"
    declare -p victims | sed 's/^declare -- //' >>"$tmp/$1.job"
    { sed 's/.*"address": *"[^"]*:\([0-9]*\)".*/scheduler:\1/' "$tmp/penstock/$launched_job.json"; echo
      status | members_of | sed -n 's/.*"role":"\(server\|worker\)".*tcp:\/\/[^"]*:\([0-9]*\)".*/\1:\2/p'; } |
        grep -E '^[a-z]+:[0-9]+$' >"$tmp/$1.ports"
    [ "$(wc -l <"$tmp/$1.ports")" = 5 ] || { cat "$tmp/$1.ports"; return 1; }
    sizes >"$tmp/$1.before"
    status_value step >"$tmp/$1.step"
    MARK=$mark "$programs/insider" lie 2 "$(ls "$tmp"/penstock/*."$2" 2>/dev/null || echo local)" "$tmp/heads" "${victims// /,}" $(cat "$tmp/$1.ports") >"$tmp/$1.lies" 3>&- &
    liars+=($!)
}

measure() { # NAME
    . "$tmp/$1.job"
    descriptors_are_back "$1."
    cat "$tmp/$1.lies"
    paste "$tmp/$1.before" "$tmp/$1.after"
    [ "$(status_value step)" -ge $(($(cat "$tmp/$1.step") + 8)) ] # about 40 without them
    grep -q '"numbers": 0}' "$tmp/$1.lies"
    [ "$(sed -n 's/.*"messages": \([0-9]*\),.*/\1/p' "$tmp/$1.lies")" -ge 200 ]
    paste "$tmp/$1.before" "$tmp/$1.after" | awk '$3 - $1 > 10240 || $4 - $2 > 2 {bad = 1} END {exit bad || NR != 5}'
}

ends_well() { # NAME
    local log
    . "$tmp/$1.job"
    wait_for_end 60
    [ "$code" = 0 ] || { cat "$tmp/$1.err"; return 1; }
    diff <(sort "$tmp/clean.out") <(sort "$tmp/$1.out")
    for log in "$tmp/log-$1/$launched_job"/attempt_0/*.err; do # one line for each of its three keys, and one for strangers
        [ "$(grep -c 'refused' "$log")" -le 4 ] || { cat "$log"; return 1; }
    done
}

@test "who runs as the job's user, or has its secret, and lies in a role that is not its own reads nothing, ends nothing and costs nothing" {
    local words=(steps=160 rows=1000) victims liars=()
    unset PENSTOCK_SECRET_FILE PENSTOCK_ENCRYPTION
    mkdir "$tmp/heads"
    cp -r "$root"/tests/fuzz/corpus/wire_* "$tmp/heads/"
    if [ "$(id -u)" = 0 ]; then
        MARK=$mark "$programs/insider" record "$tmp/heads" >"$tmp/record.out" 3>&- &
        recorder=$!
        until grep -q listens "$tmp/record.out"; do sleep 0.01; done
    fi
    pen run --standalone --servers 2 --nproc-per-node 2 "$programs/stepper" "${words[@]}" >"$tmp/clean.out" 2>"$tmp/clean.err"
    if [ "$(id -u)" = 0 ]; then # packets in clear text
        pen run --standalone --local-sockets no --encryption clear --shared-memory no --servers 2 --nproc-per-node 2 \
            "$programs/stepper" steps=20 rows=1000 >"$tmp/recorded.out" 2>"$tmp/recorded.err"
    fi
    begin_betrayed local
    begin_betrayed encrypted --encryption on # in parallel
    betray local sock-of-nobody
    betray encrypted key
    wait "${liars[@]}"
    measure local
    measure encrypted
    ends_well local
    ends_well encrypted
    if [ "$(id -u)" = 0 ]; then
        kill "$recorder"
        [ "$(ls "$tmp/heads" | grep -c plane)" -ge 8 ]
        [ "$(sed -n 's/.*"heads": \([0-9]*\),.*/\1/p' "$tmp/encrypted.lies")" -ge 80 ]
        wait "$recorder" || :
    fi
    nothing_is_left
}

@test "thousands of connections without a key cost no memory to speak of; members still come in, and one line says it" {
    local port steps begun idlers
    unset PENSTOCK_SECRET_FILE PENSTOCK_ENCRYPTION
    start crowded --encryption on --servers 1 --nproc-per-node 2 --log-dir "$tmp/log" "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 5
    victims="$(member scheduler) $(member server 0) $(member worker 0)"
    { sed 's/.*"address": *"\([^"]*\)".*/\1/' "$tmp/penstock/$launched_job.json"; echo; status | grep -oE 'tcp://[^"]+'; } |
        sed 's/.*://' | grep -E '^[0-9]+$' | sort -un >"$tmp/ports"
    [ "$(wc -l <"$tmp/ports")" = 4 ]
    sizes >"$tmp/before"
    begun=$(status_value step)
    MARK=$mark "$programs/idlers" mixed 1100 3 $(cat "$tmp/ports") >"$tmp/idlers" 3>&- &
    idlers=$!
    while kill -0 "$idlers" 2>/dev/null; do
        [ -n "$(status_value step)" ] # a client of this user is admitted among them
        sizes >>"$tmp/meanwhile"
    done
    wait "$idlers"
    awk '$2 > most {most = $2} END {print "descriptors at most " most; exit most > 1000}' "$tmp/meanwhile" # of 4,400 attempts
    cat "$tmp/idlers"
    steps=$(($(status_value step) - begun))
    descriptors_are_back
    paste "$tmp/before" "$tmp/after"
    echo "steps $steps"
    [ "$(sed -n 's/.*"made": \([0-9]*\),.*/\1/p' "$tmp/idlers")" -ge 4096 ]
    paste "$tmp/before" "$tmp/after" | awk '$3 - $1 > 10240 || $4 - $2 > 2 {bad = 1} END {exit bad || NR != 3}'
    [ "$steps" -ge 10 ]
    for port in "$tmp/log/$launched_job"/attempt_0/*.err; do
        [ "$(grep -c 'refused' "$port")" -le 1 ] || { cat "$port"; return 1; }
    done
    grep -qE 'a connection( from 127\.0\.0\.1:[0-9]+)? that has not said who it is' "$tmp/log/$launched_job/attempt_0/scheduler.err"
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}

@test "a process of a running job that may open no more files says so: who, the limit, the remedy; and goes on" {
    local pid limit
    start full --servers 1 --nproc-per-node 2 --log-dir "$tmp/log" "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 5
    pid=$(member server 0)
    limit=3
    while [ -e "/proc/$pid/fd/$limit" ]; do limit=$((limit + 1)); done
    prlimit --pid "$pid" --nofile="$limit:"
    said="server 0 has reached its limit of open files ($limit) and accepts no connections; raise the limit: ulimit -n $((4 * limit)), or LimitNOFILE= of a systemd unit"
    for _ in $(seq 100); do grep -qF "$said" "$tmp/log/$launched_job"/attempt_0/server-0.err && break; sleep 0.05; done
    cat "$tmp/log/$launched_job"/attempt_0/server-0.err
    [ "$(grep -cF "$said" "$tmp/log/$launched_job"/attempt_0/server-0.err)" = 1 ]
    wait_for_step $(($(status_value step) + 5))
    kill "$launcher"
    wait_for_end 8
}
