# failover.bats - processes of a job with copies are killed or stopped while it trains: it ends with 0 and with the
# parameters of an undisturbed training. bench/failover.sh does the same at random moments, and measures.
#
# The scenarios mostly wait, so they run in parallel; each checks itself, and the tests check the results.

load ../support/job
load ../support/netfault

example=(--mode ps-bsp --optim "adamw lr=0.002 weight_decay=0.01" --clip 0.5 --steps 110 --seed 5)

setup_file() {
    export FAILOVERS=$BATS_FILE_TMPDIR
    local name
    for name in calm server_killed scheduler_killed worker_killed host_lost server_stopped; do
        (set +e; (set -eE; scenario "$name") >"$FAILOVERS/$name.log" 2>&1; echo "$?" >"$FAILOVERS/$name.rc") 3>&- &
    done
}

setup() { job_setup; }
teardown() { job_teardown; }

scenario() {
    job_setup
    trap job_teardown EXIT
    "$1"
    nothing_is_left 5
}

calm() {
    train calm --servers 2 --nproc-per-node 2 -- "${example[@]}"
    crc calm >"$FAILOVERS/crc"
}

# Starts the training with these launcher flags and returns in its first steps.
begin() {
    start hurt --servers 2 --nproc-per-node 2 "$@" "${fashion[@]}" "${example[@]}" --slow-ms 35 \
        --out "$tmp/hurt.json"
    wait_for_step 5
}

finish() {
    wait_for_end 60
    cat "$tmp/hurt.err"
    [ "$code" = 0 ]
    for _ in $(seq 600); do [ -s "$FAILOVERS/crc" ] || sleep 0.05; done
    echo "undisturbed $(cat "$FAILOVERS/crc"), disturbed $(crc hurt); longest step $(value hurt step_max_s) s"
    [ -n "$(crc hurt)" ]
    [ "$(crc hurt)" = "$(cat "$FAILOVERS/crc")" ]
}

# $1 was restarted, and nothing else was.
was_started_again() {
    [ "$(grep -cE "^penstock: ($1) .*restarting it$" "$tmp/hurt.err")" = "$2" ]
    [ "$(grep -c 'restarting it$' "$tmp/hurt.err")" = "$2" ]
}

server_killed() {
    begin --replicas 1
    kill -9 "$(member server 0)"
    finish
    was_started_again "server 0" 1
}

scheduler_killed() {
    begin --replicas 1
    kill -9 "$(member scheduler)"
    finish
    was_started_again "the scheduler" 1
}

worker_killed() {
    begin --on-worker-loss wait --max-restarts 2
    kill -9 "$(member worker 1)"
    finish
    was_started_again "worker 1" 1
}

host_lost() {
    begin --replicas 1 --on-worker-loss wait --max-restarts 2
    kill -9 "$(member server 1)" "$(member worker 1)"
    finish
    was_started_again "server 1|worker 1" 2
}

# The lease is the default, 10 s.
server_stopped() {
    local pid
    begin --replicas 1
    pid=$(member server 1)
    kill -STOP "$pid"
    sleep 5
    kill -CONT "$pid"
    finish
    was_started_again "server 1" 0
    ! grep -qE 'is gone|took over' "$tmp/hurt.err" || return 1
    awk -v s="$(value hurt step_max_s)" 'BEGIN {exit !(s >= 4.5)}' # the step waited for it
}

came_to_pass() {
    for _ in $(seq 900); do
        [ -s "$FAILOVERS/$1.rc" ] && break
        sleep 0.1
    done
    cat "$FAILOVERS/$1.log"
    [ "$(cat "$FAILOVERS/$1.rc")" = 0 ]
}

@test "SIGKILL of a server with a copy changes no bit of the result" {
    came_to_pass calm
    came_to_pass server_killed
}

@test "SIGKILL of the scheduler, which is restarted, changes no bit of the result" {
    came_to_pass scheduler_killed
}

@test "SIGKILL of a worker that the job waits for changes no bit of the result" {
    came_to_pass worker_killed
}

@test "SIGKILL of a server and a worker at once, like the loss of a host, changes no bit of the result" {
    came_to_pass host_lost
}

@test "the job waits for a server that is stopped for 5 s, and does not replace it" {
    came_to_pass server_stopped
}
