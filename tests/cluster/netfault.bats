# netfault.bats - the network between the processes of a job fails while it trains: an outage shorter than the lease
# changes no bit of the result; a longer one ends the job with the name of the culprit.
#
# Everything is on loopback, and relays between the processes (support/netfault.bash) are the network. The scenarios
# mostly wait, so they run in parallel; each checks itself, and the tests check the results.
# The job has a secret, as it would across a network: without one, a loopback proof covers the ends of the connection, and
# a relay in between is refused.
# alone: silence is measured by a clock.

load ../support/job
load ../support/netfault

lease_ms=6000
outage_s=3.4 # TCP would retry 6.2 s after its beginning, when the lease is over
example=(--mode ps-bsp --optim "adamw lr=0.002 weight_decay=0.01" --clip 0.5 --steps 120 --seed 5 --slow-ms 40)

setup_file() {
    export FAULTS=$BATS_FILE_TMPDIR
    local name
    for name in calm silent_server silent_worker deaf_server resets delay stalls \
        lost_worker lost_server lost_scheduler no_answer; do
        (set +e; (set -eE; scenario "$name") >"$FAULTS/$name.log" 2>&1; echo "$?" >"$FAULTS/$name.rc") 3>&- &
    done
}

setup() { job_setup; }
teardown() { job_teardown; }

scenario() {
    job_setup
    trap job_teardown EXIT
    "$penstock" keygen "$tmp/secret" 2>"$tmp/keygen.err"
    export PENSTOCK_LEASE_MS=$lease_ms PENSTOCK_SECRET_FILE=$tmp/secret
    "$1"
    nothing_is_left 5
}

# ---- shorter than the lease ----------------------------------------------------------------------

calm() {
    taskset -c 0 "$penstock" run --standalone --servers 2 --nproc-per-node 2 "${fashion[@]}" "${example[@]}" \
        --slow-ms 0 --out "$tmp/calm.json"
    crc calm >"$FAULTS/crc"
}

# Starts the training and returns in its first steps.
begin() {
    relay_job "${fashion[@]}" "${example[@]}" --out "$tmp/faulty.json"
    until_true is_in_step 5
}

# The job ends well, with the parameters of the undisturbed training.
finish() {
    end_well 40 w0 w1 s0 s1 scheduler
    kill "$relay_pid"
    for _ in $(seq 600); do [ -s "$FAULTS/crc" ] || sleep 0.05; done
    echo "undisturbed $(cat "$FAULTS/crc"), disturbed $(crc faulty)"
    [ -n "$(crc faulty)" ]
    [ "$(crc faulty)" = "$(cat "$FAULTS/crc")" ]
}

silent_server() {
    begin
    relay_say hold "s1.*" both
    nothing_moves job_step
    relay_say pass "s1.*"
    finish
}

silent_worker() {
    begin
    relay_say hold "w1.control" both
    sleep "$outage_s"
    relay_say pass "w1.control"
    finish
}

deaf_server() {
    begin
    relay_say hold "s1.data" back
    relay_say hold "s0.control" back
    nothing_moves job_step
    relay_say pass "*"
    relay_say hold "s0.data" forth
    relay_say hold "w0.control" forth
    nothing_moves job_step
    relay_say pass "*"
    finish
}

resets() {
    local i cut=0
    begin
    for i in 1 2 3 4 5 6; do
        relay_say reset "*.data"
        cut=$((cut + answer))
        relay_say reset "*.control"
        cut=$((cut + answer))
        sleep 0.3
    done
    echo "$cut connections were reset"
    [ "$cut" -ge 24 ]
    finish
}

delay() {
    local begun
    begin
    relay_say delay "*" 12 8
    before=$(job_step)
    begun=${EPOCHREALTIME/[.,]/}
    until_true is_in_step $((before + 15))
    echo "15 steps took $(((${EPOCHREALTIME/[.,]/} - begun) / 1000)) ms"
    [ $((${EPOCHREALTIME/[.,]/} - begun)) -ge $((15 * 70 * 1000)) ]
    finish
}

stalls() {
    local name pid
    begin
    for name in s1 w1 scheduler; do
        pid=${name}_pid
        kill -STOP "${!pid}"
        sleep "$outage_s"
        kill -CONT "${!pid}"
        sleep 0.4
    done
    finish
}

# ---- longer than the lease -----------------------------------------------------------------------

# A job that trains for a long time.
begin_long() {
    relay_job "$programs/stepper" steps=100000 pause_ms=20
    until_true is_in_step 3
    at=${EPOCHREALTIME/[.,]/}
}

# All processes ended within lease + 2 s of the moment $at, and none with 0.
all_failed() {
    ended_within "$at" $((lease_ms + 2000)) "$@"
    local name pid
    for name in "$@"; do
        pid=${name}_pid
        ! wait "${!pid}" || { echo "$name ended with 0"; return 1; }
    done
    kill "$relay_pid"
}

# The last lines of all processes are the same sentence; -> $sentence
agree() {
    local name
    for name in "$@"; do
        sed -n 's/^\(penstock\|stepper\): //p' "$tmp/$name.err" | tail -n 1
    done | sort | uniq -c >"$tmp/said"
    cat "$tmp/said"
    [ "$(wc -l <"$tmp/said")" = 1 ]
    sentence=$(sed 's/^ *[0-9]* //' "$tmp/said")
}

lost_worker() {
    begin_long
    relay_say hold "w1.control" both
    all_failed scheduler s0 s1 w0 w1
    agree scheduler s0 s1 w0
    grep -qE "^worker 1 \($host\) is gone.*; last seen [56]\.[0-9] s ago$" <<<"$sentence"
    agree w1
    grep -qE "^the scheduler at .* is gone: " <<<"$sentence"
}

lost_server() {
    begin_long
    relay_say hold "s1.*" both
    all_failed scheduler s0 s1 w0 w1
    agree scheduler s0 w0 w1
    grep -qE "^server 1 \($host\) is gone: it held '.*; last seen [56]\.[0-9] s ago$" <<<"$sentence"
}

lost_scheduler() {
    begin_long
    relay_say hold "*.control" both
    all_failed scheduler s0 s1 w0 w1
    agree s0 s1 w0 w1
    grep -qE "^the scheduler at .* is gone: " <<<"$sentence"
}

# A server that is alive but out of reach of the others is not dead: the deadline of the call ends the job.
no_answer() {
    export PENSTOCK_DEADLINE_MS=4000
    begin_long
    relay_say hold "s1.data" forth
    ended_within "$at" 8000 w0 w1
    tail -n 1 "$tmp/w0.err" "$tmp/w1.err" # a worker that does not need the server waits for the other worker
    grep -qhE "^stepper: waited (3\.9|4)[0-9.]* s for server 1 \($host\) to answer the pu(sh|ll) of '[a-z0-9.]+' for step [0-9]+$" \
        "$tmp/w0.err" "$tmp/w1.err"
    kill "$relay_pid"
}

# ---- results -------------------------------------------------------------------------------------

came_to_pass() {
    for _ in $(seq 900); do
        [ -s "$FAULTS/$1.rc" ] && break
        sleep 0.1
    done
    cat "$FAULTS/$1.log"
    [ "$(cat "$FAULTS/$1.rc")" = 0 ]
}

@test "the undisturbed training ends well" {
    came_to_pass calm
}

@test "a server that is silent for half a lease changes no bit of the result" {
    came_to_pass silent_server
}

@test "a worker that is silent to the scheduler for half a lease changes no bit of the result" {
    came_to_pass silent_worker
}

@test "connections that carry only one direction for half a lease change no bit of the result" {
    came_to_pass deaf_server
}

@test "all connections are reset six times while a job trains, and no bit of the result changes" {
    came_to_pass resets
}

@test "delay and jitter on every connection change no bit of the result" {
    came_to_pass delay
}

@test "a server, a worker and the scheduler are stopped for half a lease each, and no bit of the result changes" {
    came_to_pass stalls
}

@test "a worker that is silent to the scheduler ends the job by name within lease + 2 s" {
    came_to_pass lost_worker
}

@test "a server behind a dead network ends the job by name within lease + 2 s" {
    came_to_pass lost_server
}

@test "a scheduler behind a dead network ends all processes with one sentence within lease + 2 s" {
    came_to_pass lost_scheduler
}

@test "a server that lives but takes no pushes is named when the deadline is over" {
    came_to_pass no_answer
}
