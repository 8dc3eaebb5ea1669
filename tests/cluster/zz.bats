# sharing.bats - processes of one machine in other networks, process numbers, users: they train to the same bits without a
# setting, and share memory where it was proven that they can.  Workers are started by hand, as from-ddp.md does it: RANK,
# WORLD_SIZE, and the scheduler's address.
#
# Traffic is in clear text, which hosts of one switch need a setting for (PENSTOCK_ENCRYPTION); keys are tested elsewhere.

load ../support/job
load ../support/hosts

setup() { job_setup; }
teardown() { job_teardown; }

# What a worker is started with, where and as whom:  worker RANK WORLD COMMAND...   -> $tmp/RANK.{out,err}
by_hand() {
    local rank=$1 world=$2
    shift 2
    MARK=$mark RANK=$rank WORLD_SIZE=$world MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" >"$tmp/$rank.out" 2>"$tmp/$rank.err" 3>&- &
    declare -g "hand${rank}_pid=$!"
}

free_port() {
    port=$((20000 + RANDOM % 10000))
}

# All of them, with variables before the program:  all_by_hand WORLD COMMAND...   -> $output, sorted
all_by_hand() {
    local r
    free_port
    for ((r = 0; r < $1; r++)); do by_hand "$r" "$1" "${@:2}"; done
    for ((r = 0; r < $1; r++)); do ends "hand$r" 0 30; done
    sort "$tmp"/[0-9].out
}

# ---- where workers are ---------------------------------------------------------------------------

@test "RANK and WORLD_SIZE are enough: local rank, node and their numbers are those of the machine, and sums of NODE and ACROSS are right" {
    [ "$(all_by_hand 3 "$programs/places")" = "rank 0: local 0 of 3, node 0 of 1, sum 3
rank 1: local 1 of 3, node 0 of 1, sum 3
rank 2: local 2 of 3, node 0 of 1, sum 3" ]
    nothing_is_left
}

@test "LOCAL_RANK without LOCAL_WORLD_SIZE: there are as many as the machine has" {
    free_port
    for r in 0 1 2; do by_hand "$r" 3 env LOCAL_RANK=$((2 - r)) "$programs/places"; done
    for r in 0 1 2; do ends "hand$r" 0 30; done
    [ "$(sort "$tmp"/[0-9].out)" = "rank 0: local 2 of 3, node 0 of 1, sum 3
rank 1: local 1 of 3, node 0 of 1, sum 3
rank 2: local 0 of 3, node 0 of 1, sum 3" ]
}

@test "what a launcher says in full stays: torchrun's variables of two nodes, on one machine" {
    free_port
    for r in 0 1; do
        by_hand "$r" 2 env LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK="$r" GROUP_WORLD_SIZE=2 "$programs/places"
    done
    for r in 0 1; do ends "hand$r" 0 30; done
    [ "$(sort "$tmp"/[0-9].out)" = "rank 0: local 0 of 1, node 0 of 2, sum 2
rank 1: local 0 of 1, node 1 of 2, sum 2" ]
}

@test "one LOCAL_RANK for two workers of a machine is a sentence, the same on both" {
    free_port
    for r in 0 1; do by_hand "$r" 2 env LOCAL_RANK=0 "$programs/places"; done
    for r in 0 1; do ends "hand$r" 1 30; done
    for r in 0 1; do
        grep -qx "worker 0 ($host) and worker 1 ($host) are on one node and both say LOCAL_RANK 0; give each its own, or set LOCAL_RANK for none" "$tmp/$r.err"
    done
}

@test "two hosts, RANK and WORLD_SIZE by hand: each is a node, with local ranks of its own" {
    can_have_bridge >"$tmp/cannot" || skip "$(cat "$tmp/cannot")"
    hosts_start 2
    for r in 0 1 2 3; do
        begin_on "node$((r % 2))" "w$r" env RANK="$r" WORLD_SIZE=4 MASTER_ADDR=10.79.0.1 MASTER_PORT=29600 \
            PENSTOCK_ENCRYPTION=clear "$programs/places"
    done
    for r in 0 1 2 3; do ends "w$r" 0 30; done
    [ "$(sort "$tmp"/w?.out)" = "rank 0: local 0 of 2, node 0 of 2, sum 4
rank 1: local 0 of 2, node 1 of 2, sum 4
rank 2: local 1 of 2, node 0 of 2, sum 4
rank 3: local 1 of 2, node 1 of 2, sum 4" ]
}

# ---- whose memory is whose -----------------------------------------------------------------------

# 2 MiB of parameters: sums inside a node pay, and bodies are large enough to be lent.
steps=(rows=4096 steps=30 pause_ms=50)

reference() {
    pen run --nproc-per-node 2 "$programs/stepper" "${steps[@]}" pause_ms=0 2>"$tmp/reference.err" |
        sed -n 's/^\[0\] //p' >"$tmp/reference"
    [ -s "$tmp/reference" ]
}

# Once the job has begun, the scheduler on node0 says which ranks rank 0 shares memory with:  sharing_is RANKS
sharing_is() {
    local said shared
    for _ in $(seq 20); do
        said=$(on node0 "$penstock" status --json --timeout-ms 1000 --master-addr 10.79.0.1 --master-port 29600 2>/dev/null) &&
            [ "$(jq .epoch <<<"$said")" -ge 1 ] && break
        sleep 0.05
    done
    shared=$(jq -c '.members[] | select(.role == "worker" and .rank == 0) | .shares_memory_with' <<<"$said")
    echo "rank 0 shares memory with $shared; expected: $1"
    [ "$shared" = "$1" ]
}

# Trains in all modes, rank R and the server each behind a command of its own:  trains_apart SHARED ENTER...
# ENTER may say @R, which is the number of the process: 0, 1, 2.
trains_apart() {
    local shared=$1 mode r servers
    shift
    for mode in allreduce zero2 ps-bsp; do echo "$mode $EPOCHREALTIME" >&3
        servers=0
        [ $mode != ps-bsp ] || servers=1
        for r in 0 1; do
            begin_on "${place[$r]}" "w$r" "${@//@R/$r}" env RANK="$r" WORLD_SIZE=2 MASTER_ADDR=10.79.0.1 MASTER_PORT=29600 \
                PENSTOCK_SERVERS=$servers "$programs/stepper" "${steps[@]}" mode=$mode
        done
        [ $servers = 0 ] || begin_on "${place[1]}" s0 "${@//@R/2}" "$penstock" server --master-addr 10.79.0.1 --master-port 29600
        echo "asked $EPOCHREALTIME" >&3;         sharing_is "$shared"; echo "known $EPOCHREALTIME" >&3
        for r in 0 1; do ends "w$r" 0 60; done
        [ $servers = 0 ] || ends s0 0 10
        echo "ended $EPOCHREALTIME" >&3; tail -n 3 $tmp/*.err >&3 ;         cmp "$tmp/reference" "$tmp/w0.out"
    done
}

hosts_or_skip() {
    can_have_bridge >"$tmp/cannot" || skip "$(cat "$tmp/cannot")"
    reference
    export PENSTOCK_ENCRYPTION=clear
    hosts_start 2 "$@"
}

@test "workers of other networks, names and /dev/shm train alike, and share the memory that they can map" {
    hosts_or_skip containers
    place=(node0 node1)
    trains_apart '[1]' env
    nothing_is_left 5 || hosts_stop
}

@test "workers that do not see each other's processes train alike over the network, though their /dev/shm is one" {
    hosts_or_skip containers shm
    place=(node0 node1)
    trains_apart '[]' unshare -pf --kill-child --mount-proc
}

@test "workers of several users train alike over the network" {
    hosts_or_skip containers
    [ "$(id -u)" = 0 ] || skip "only root starts processes of other users"
    place=(node0 node0)
    chmod 755 "$tmp"
    chmod 777 "$tmp/hosts" "$tmp"/hosts/*
    trains_apart '[]' setpriv --reuid 4000@R --regid 4000@R --clear-groups
}
