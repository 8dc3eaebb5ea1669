# netfault_hosts.bats - two hosts with cables between them (network namespaces, support/netfault.bash). One of them is
# unplugged, is cut off in one direction, loses frames, or moves, while a job trains on both.
#
# Each host runs a launcher, a server and a worker; n0 also runs the scheduler, unless stated otherwise. The scenarios
# run in parallel.
# alone: the network's hosts have fixed names.

load ../support/job
load ../support/netfault

lease_ms=6000
outage_s=3.4
example=(--mode ps-bsp --optim "adamw lr=0.002 weight_decay=0.01" --clip 0.5 --steps 120 --seed 5 --slow-ms 40)

setup_file() {
    export FAULTS=$BATS_FILE_TMPDIR
    can_have_hosts >"$FAULTS/cannot" || return 0
    local name
    for name in calm unplugged half_cut lossy moved replaced lost_host half_lost_host; do
        (set +e; (set -eE; scenario "$name") >"$FAULTS/$name.log" 2>&1; echo "$?" >"$FAULTS/$name.rc") 3>&- &
    done
}

setup() { job_setup; }
teardown() { job_teardown; }

scenario() {
    job_setup
    trap job_teardown EXIT
    export PENSTOCK_LEASE_MS=$lease_ms
    "$1"
    nothing_is_left 5
}

calm() {
    taskset -c 0 "$penstock" run --standalone --servers 2 --nproc-per-node 2 "${fashion[@]}" "${example[@]}" \
        --slow-ms 0 --out "$tmp/calm.json"
    crc calm >"$FAULTS/crc"
}

# ---- shorter than the lease ----------------------------------------------------------------------

begin() {
    hosts_start 2
    hosts_job 2 "${fashion[@]}" "${example[@]}" --out "$tmp/faulty.json"
    until_true hosts_are_in_step 5
}

finish() {
    end_well 50 run0 run1
    is_undisturbed
}

is_undisturbed() {
    leave_hosts
    for _ in $(seq 600); do [ -s "$FAULTS/crc" ] || sleep 0.05; done
    echo "undisturbed $(cat "$FAULTS/crc"), disturbed $(crc faulty)"
    [ -n "$(crc faulty)" ]
    [ "$(crc faulty)" = "$(cat "$FAULTS/crc")" ]
}

leave_hosts() {
    local pid
    for pid in "$switch_pid" ${n0_pid:-} ${n1_pid:-} ${n2_pid:-} ${n3_pid:-} ${n4_pid:-} "$sw_pid"; do kill "$pid"; done
}

unplugged() {
    begin
    cable 1 down
    nothing_moves hosts_step
    cable 1 up
    finish
}

half_cut() {
    begin
    switch_say rule 1 0 100 0 0
    nothing_moves hosts_step
    switch_say rule "*" "*" 0 0 0
    until_true hosts_are_in_step $(($(hosts_step) + 3))
    switch_say rule 0 1 100 0 0
    nothing_moves hosts_step
    switch_say rule "*" "*" 0 0 0
    finish
}

lossy() {
    begin
    switch_say rule "*" "*" 3 8 6
    until_true hosts_are_in_step 40
    switch_say count "*" "*"
    echo "frames that passed, and that were lost: $answer"
    [ "${answer#* }" -ge 10 ]
    finish
}

# The scheduler on n0, both workers on n1, each server on its own host, until they train:  spread SCHEDULER_FLAGS...
# A server's host may return with another address, so servers are shown by name (--host), not by address.
spread() {
    local i
    role_on n0 scheduler "$penstock" scheduler --host "*" --port 29400 --world-size 2 --servers 2 "$@"
    for i in 0 1; do
        role_on "n$((i + 2))" "s$i" "$penstock" server --master-addr n0 --master-port 29400 --rank "$i" --host "n$((i + 2))"
        role_on n1 "w$i" env RANK=$i WORLD_SIZE=2 LOCAL_RANK=$i LOCAL_WORLD_SIZE=2 MASTER_ADDR=n0 MASTER_PORT=29400 \
            PENSTOCK_SERVERS=2 PENSTOCK_SCHEDULER=external "${fashion[@]}" "${example[@]}" --out "$tmp/faulty.json"
    done
    until_true hosts_are_in_step 5
}

# The scheduler's host moves, and then a server's.
moved() {
    hosts_start 4
    spread
    move 0 10.78.0.70
    until_true hosts_are_in_step 25
    move 3 10.78.0.73
    end_well 50 w0 w1 s0 s1 scheduler
    is_undisturbed
}

# A server dies, and another of its rank starts at once on another host, if possible before the news of the death.
replaced() {
    hosts_start 5
    spread --replicas 1
    kill -9 "$s1_pid"
    role_on n4 s1 "$penstock" server --master-addr n0 --master-port 29400 --rank 1
    end_well 50 w0 w1 s0 s1 scheduler
    grep -q 'server 1 (n3) is gone; other servers took over' "$tmp/scheduler.err"
    is_undisturbed
}

# ---- longer than the lease -----------------------------------------------------------------------

begin_long() {
    hosts_start 2
    hosts_job 2 "$programs/stepper" steps=100000 pause_ms=20
    until_true hosts_are_in_step 3
    at=${EPOCHREALTIME/[.,]/}
}

somebody_is_gone() {
    grep -q ' is gone' "$tmp/run0.err"
    grep -q ' is gone' "$tmp/run1.err"
}

# Both sides name the lost host within lease + 2 s; the launchers end 3 s later with a failure: they wait for the others.
both_failed() {
    local name pid
    until_true somebody_is_gone
    echo "both sides knew $(((${EPOCHREALTIME/[.,]/} - at) / 1000)) ms later"
    [ $(((${EPOCHREALTIME/[.,]/} - at) / 1000)) -le $((lease_ms + 2000)) ]
    ended_within "$at" $((lease_ms + 2000 + 3000)) run0 run1
    for name in run0 run1; do
        pid=${name}_pid
        ! wait "${!pid}" || { echo "$name ended with 0"; return 1; }
    done
    cat "$tmp"/run?.err
    leave_hosts
}

# What the scheduler and its neighbours print: the far host, by the name of a process there.
n1_is_named() {
    grep -qE "^(penstock: |  verdict  )(worker|server) 1 \(n1\) is gone.*; last seen [56]\.[0-9] s ago by the scheduler at [^;]*; (.*; )?\`penstock doctor --master-addr [^ ]+\` on n1 tests the connection$" "$tmp/run0.err"
}

lost_host() {
    begin_long
    cable 1 down
    both_failed
    n1_is_named
    grep -qE "the scheduler at n0:29400 is gone: " "$tmp/run1.err" # it knows no other name
}

half_lost_host() {
    begin_long
    switch_say rule 1 0 100 0 0
    both_failed
    n1_is_named
}

# ---- results -------------------------------------------------------------------------------------

came_to_pass() {
    [ ! -s "$FAULTS/cannot" ] || skip "$(cat "$FAULTS/cannot")"
    for _ in $(seq 900); do
        [ -s "$FAULTS/$1.rc" ] && break
        sleep 0.1
    done
    cat "$FAULTS/$1.log"
    [ "$(cat "$FAULTS/$1.rc")" = 0 ]
}

@test "a host that is unplugged for half a lease changes no bit of the result" {
    came_to_pass calm
    came_to_pass unplugged
}

@test "a link that carries only one direction for half a lease changes no bit of the result" {
    came_to_pass half_cut
}

@test "lost, delayed and reordered frames change no bit of the result" {
    came_to_pass lossy
}

@test "the scheduler's host and a server's return with new addresses and their old names: no bit changes" {
    came_to_pass moved
}

@test "a server that dies and returns at once on another host, with a copy elsewhere, changes no bit" {
    came_to_pass replaced
}

@test "a host that is unplugged ends the job by name within lease + 2 s" {
    came_to_pass lost_host
}

@test "a host that receives but cannot send ends the job by name within lease + 2 s" {
    came_to_pass half_lost_host
}
