# death.bats - a member is killed or stops answering: all others learn the cause in time, and nothing is left behind.
#
# Lease and deadline are the defaults: 10 s and 600 s. The tests of silence take a lease each. They start together when
# the file begins, with programs that mostly sleep, and are checked last.
# alone: it measures how soon all members know.

load ../support/job

setup_file() {
    export SILENT=$BATS_FILE_TMPDIR
    local who
    for who in worker server scheduler sleeper; do
        (set +e; (set -eE; silence "$who") >"$SILENT/$who.log" 2>&1; echo "$?" >"$SILENT/$who.rc") 3>&- &
    done
}

setup() { job_setup; }
teardown() { job_teardown; }

# Three workers and two servers: a long training that needs little processor time.
start_long() {
    start "$1" --servers 2 --nproc-per-node 3 --log-dir "$tmp/log" "${@:2}" "$programs/stepper" steps=100000 pause_ms=40
    wait_for_step 2
}

# Prints "NAME PID" of every member except process $1.
survivors() {
    local name pid
    for name in scheduler "server 0" "server 1" "worker 0" "worker 1" "worker 2"; do
        pid=$(member $name) || { echo "no $name" >&2; return 1; }
        [ "$pid" = "$1" ] || echo "$name $pid"
    done
}

# Waits until the processes of $others have ended; fails if one lives longer than $2 ms after the moment $1.
are_gone_in() {
    local pid now
    for pid in $others; do
        while kill -0 "$pid" 2>/dev/null; do
            now=${EPOCHREALTIME/[.,]/}
            [ $(((now - $1) / 1000)) -le "$2" ] || { echo "alive $2 ms later:"; show "$pid"; cat "$tmp"/*.err; return 1; }
            sleep 0.02
        done
    done
    echo "all others had ended after $(((${EPOCHREALTIME/[.,]/} - $1) / 1000)) ms"
}

# All survivors printed the same sentence; -> $sentence
same_sentence() {
    local name
    for name in "$@"; do
        sed -n 's/^\(penstock\|stepper\): //p' "$tmp/log/$launched_job/attempt_0/$name.err" | tail -n 1
    done | sort | uniq -c >"$tmp/said"
    cat "$tmp/said"
    [ "$(wc -l <"$tmp/said")" = 1 ]
    [ "$(awk '{print $1}' "$tmp/said")" = $# ]
    sentence=$(sed 's/^ *[0-9]* //' "$tmp/said")
}

# The first line after the start and the lines of the programs names the culprit; the last line has the exit code.
cause_first() {
    grep -vE '^(\[[0-9]\] |penstock: job )' "$tmp/$1.err" >"$tmp/report"
    cat "$tmp/report"
    grep -m1 -nE "^penstock: $2 $3" "$tmp/report"
    grep -qE "^  cause    $2  host $host" "$tmp/report"
    tail -n 1 "$tmp/report" | is_text "  exit     $code"
}

# kill_one NAME SIGNAL LIMIT_MS ROLE [RANK]: -> $others, $code
strike() {
    local victim names at
    start_long "$1"
    victim=$(member "${@:4}")
    names=$(survivors "$victim")
    others=$(awk '{print $NF}' <<<"$names")
    at=${EPOCHREALTIME/[.,]/}
    kill "-$2" "$victim"
    are_gone_in "$at" "$3"
    wait_for_end 8
    nothing_is_left
}

@test "SIGKILL of a worker: the others end within 2 s with one sentence, and the job with 137" {
    strike killed KILL 2000 worker 1
    same_sentence scheduler server-0 server-1 worker-0 worker-2
    grep -qE "^worker 1 \($host\) is gone: it has not pushed '(embed|fc1\.weight|fc1\.bias|scale|fc2\.weight)' for step [0-9]+; last seen [0-9.]+ s ago$" <<<"$sentence" ||
        grep -qE "^worker 1 \($host\) is gone in step [0-9]+, .*pen_[a-z_]+.*; last seen [0-9.]+ s ago$" <<<"$sentence"
    [ "$code" = 137 ]
    cause_first killed "worker 1" "was killed by SIGKILL at step [0-9]+"
}

@test "SIGKILL of a server: the others end within 2 s with one sentence, and the job with 137" {
    strike killed KILL 2000 server 1
    same_sentence scheduler server-0 worker-0 worker-1 worker-2
    grep -qE "^server 1 \($host\) is gone: it held '[a-z0-9.]+'( and [0-9]+ more tensors?)?; step [0-9]+; last seen [0-9.]+ s ago$" <<<"$sentence"
    [ "$code" = 137 ]
    cause_first killed "server 1" "was killed by SIGKILL at step [0-9]+"
}

@test "SIGKILL of the scheduler: the others end within 2 s with one sentence, and the job with 137" {
    strike killed KILL 2000 scheduler
    same_sentence server-0 server-1 worker-0 worker-1 worker-2
    grep -qE "^the scheduler at 127\.0\.0\.1:[0-9]+ is gone: " <<<"$sentence"
    [ "$code" = 137 ]
    cause_first killed scheduler "was killed by SIGKILL"
}

@test "a worker that exits with its own code ends the job with that code" {
    start own --servers 1 --nproc-per-node 3 "$programs/stepper" steps=100000 pause_ms=25 1:exit_at=60,42
    wait_for_end 10
    [ "$code" = 42 ]
    cause_first own "worker 1" "ended with exit code 42 at step [0-9]+"
    nothing_is_left
}

@test "a worker that crashes ends the job with 128 and its signal" {
    start crash --servers 1 --nproc-per-node 3 "$programs/stepper" steps=100000 pause_ms=25 2:crash_at=60
    wait_for_end 10
    [ "$code" = 139 ]
    cause_first crash "worker 2" "was killed by SIGSEGV at step [0-9]+"
    nothing_is_left
}

# The signal $1 to the launcher of a job whose workers have child processes.
end_launcher() {
    start ended --servers 2 --nproc-per-node 2 bash -c 'sleep 1000 & (sleep 1000 & exec sleep 1000) & exec "$@"' worker \
        "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 2
    [ "$(marked | wc -l)" -ge 12 ]
    kill "-$1" "$launcher"
    wait_for_end 8
    nothing_is_left
}

@test "SIGKILL of the launcher leaves no process behind, and no grandchild" {
    end_launcher KILL
    [ "$code" = 137 ]
}

@test "SIGTERM of the launcher leaves no process behind and exits with 143" {
    end_launcher TERM
    [ "$code" = 143 ]
    grep -qx "penstock: interrupted by SIGTERM.*; nothing kept (no --store)" "$tmp/ended.err"
}

@test "SIGINT of the launcher leaves no process behind and exits with 130" {
    end_launcher INT
    [ "$code" = 130 ]
    grep -qx "penstock: interrupted by SIGINT.*; nothing kept (no --store)" "$tmp/ended.err"
}

# ---- silence: run beside all other tests ---------

silence() {
    job_setup
    trap job_teardown EXIT
    case $1 in
    sleeper)
        pen run --standalone --job "$job" --servers 1 --nproc-per-node 2 "$programs/stepper" steps=1 1:pause_ms=15000 \
            >"$tmp/out" 2>"$tmp/err"
        [ "$(grep -c ' step 0 APPLIED ' "$tmp/out")" = 2 ]
        ;;
    worker)
        strike silent STOP 12000 worker 1
        same_sentence scheduler server-0 server-1 worker-0 worker-2
        grep -qE "^worker 1 \($host\) is gone: it has not pushed '[a-z0-9.]+' for step [0-9]+; last seen (9|10|11)\.[0-9] s ago$" <<<"$sentence" ||
            grep -qE "^worker 1 \($host\) is gone in step [0-9]+, .*pen_[a-z_]+.*; last seen (9|10|11)\.[0-9] s ago$" <<<"$sentence"
        cause_first silent "worker 1" "stopped answering and was killed at step [0-9]+"
        ;;
    server)
        strike silent STOP 12000 server 1
        same_sentence scheduler server-0 worker-0 worker-1 worker-2
        grep -qE "^server 1 \($host\) is gone: it held '[a-z0-9.]+'.*; step [0-9]+; last seen (9|10|11)\.[0-9] s ago$" <<<"$sentence"
        cause_first silent "server 1" "stopped answering and was killed at step [0-9]+"
        ;;
    scheduler)
        strike silent STOP 12000 scheduler
        same_sentence server-0 server-1 worker-0 worker-1 worker-2
        grep -qE "^the scheduler at 127\.0\.0\.1:[0-9]+ is gone: " <<<"$sentence"
        cause_first silent scheduler "stopped answering and was killed"
        ;;
    esac
    [ "$1" = sleeper ] || [ "$code" = 137 ]
    nothing_is_left
}

silence_ended_well() {
    for _ in $(seq 400); do
        [ -s "$SILENT/$1.rc" ] && break
        sleep 0.1
    done
    cat "$SILENT/$1.log"
    [ "$(cat "$SILENT/$1.rc")" = 0 ]
}

@test "SIGSTOP of a worker: the others end within lease + 2 s with one sentence, and nothing is left" {
    silence_ended_well worker
}

@test "SIGSTOP of a server: the others end within lease + 2 s with one sentence, and nothing is left" {
    silence_ended_well server
}

@test "SIGSTOP of the scheduler: the others end within lease + 2 s with one sentence, and nothing is left" {
    silence_ended_well scheduler
}

@test "a worker that sleeps longer than the lease is alive, and the job continues" {
    silence_ended_well sleeper
}
