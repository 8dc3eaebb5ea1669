# sharing.bats - processes of one machine in different networks, PID namespaces and users: they train to the same bits
# without a setting, and share memory where a proof shows that they can. Workers are started by hand, as in from-ddp.md:
# RANK, WORLD_SIZE, and the scheduler's address.
#
# Traffic is in clear text, which needs a setting between hosts (PENSTOCK_ENCRYPTION); other tests cover keys.

load ../support/job
load ../support/hosts

setup() { job_setup; }
teardown() { job_teardown; }

# Starts a worker in any place, as any user:  worker RANK WORLD COMMAND...   -> $tmp/RANK.{out,err}
by_hand() {
    local rank=$1 world=$2
    shift 2
    MARK=$mark RANK=$rank WORLD_SIZE=$world MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" >"$tmp/$rank.out" 2>"$tmp/$rank.err" 3>&- &
    declare -g "hand${rank}_outer=$!"
}

free_port() {
    port=$((20000 + RANDOM % 10000))
}

# Starts all of them, with variables before the program:  all_by_hand WORLD COMMAND...   -> $output, sorted
all_by_hand() {
    local r
    free_port
    for ((r = 0; r < $1; r++)); do by_hand "$r" "$1" "${@:2}"; done
    for ((r = 0; r < $1; r++)); do ends "hand$r" 0 30; done
    sort "$tmp"/[0-9].out
}

# ---- ranks and nodes -----------------------------------------------------------------------------

@test "RANK and WORLD_SIZE are enough: local rank and node come from the machine, and the sums of NODE and ACROSS are right" {
    [ "$(all_by_hand 3 "$programs/places")" = "rank 0: local 0 of 3, node 0 of 1, sum 3
rank 1: local 1 of 3, node 0 of 1, sum 3
rank 2: local 2 of 3, node 0 of 1, sum 3" ]
    nothing_is_left
}

@test "LOCAL_RANK without LOCAL_WORLD_SIZE: the size is the number of workers on the machine" {
    free_port
    for r in 0 1 2; do by_hand "$r" 3 env LOCAL_RANK=$((2 - r)) "$programs/places"; done
    for r in 0 1 2; do ends "hand$r" 0 30; done
    [ "$(sort "$tmp"/[0-9].out)" = "rank 0: local 2 of 3, node 0 of 1, sum 3
rank 1: local 1 of 3, node 0 of 1, sum 3
rank 2: local 0 of 3, node 0 of 1, sum 3" ]
}

@test "complete variables of a launcher are kept: torchrun's variables of two nodes, on one machine" {
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
        grep -qx "worker 0 ($host) and worker 1 ($host) are on one node and both have LOCAL_RANK 0; set a different one for each, or none at all" "$tmp/$r.err"
    done
}

@test "two hosts, RANK and WORLD_SIZE by hand: each is a node with its own local ranks" {
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

# ---- shared memory -------------------------------------------------------------------------------

# 2 MiB of parameters: node sums pay off, and message bodies are large enough to be lent.
steps=(rows=700 steps=6)

reference() {
    pen run --nproc-per-node 2 "$programs/stepper" "${steps[@]}" 2>"$tmp/reference.err" | sed -n 's/^\[0\] //p' >"$tmp/reference"
    [ -s "$tmp/reference" ]
}

# Asks the scheduler at a port of node0; true: the job has begun.  -> $said
has_begun() {
    said=$(on node0 "$penstock" status --json --timeout-ms 1000 --master-addr 10.79.0.1 --master-port "$1" 2>/dev/null) &&
        [ "$(jq .view <<<"$said")" -ge 1 ]
}

# The ranks that rank 0 shares memory with, as the scheduler reports once the job has begun:  sharing_is PORT RANKS
sharing_is() {
    local said shared
    within 10 has_begun "$1"
    shared=$(jq -c '.members[] | select(.role == "worker" and .rank == 0) | .shares_memory_with' <<<"$said")
    echo "port $1: rank 0 shares memory with $shared; expected: $2"
    [ "$shared" = "$2" ]
}

modes=(allreduce zero2 ps-bsp)

# Trains in all modes at once, with rank R and the server each behind a command:  trains_apart SHARED ENTER...
# ENTER may contain @R, the number of the process: 0, 1, 2. Rank 1 waits in a step until the scheduler was asked.
trains_apart() {
    local shared=$1 m r where servers
    shift
    for m in 0 1 2; do
        where=(MASTER_ADDR=10.79.0.1 MASTER_PORT=2960$m)
        servers=0
        [ "${modes[$m]}" != ps-bsp ] || servers=1
        for r in 0 1; do
            begin_on "${place[$r]}" "m${m}w$r" "${@//@R/$r}" env RANK="$r" WORLD_SIZE=2 "${where[@]}" PENSTOCK_SERVERS=$servers \
                "$programs/stepper" "${steps[@]}" mode="${modes[$m]}" 1:wait_at=2,"$tmp/asked"
        done
        [ $servers = 0 ] || begin_on "${place[2]}" s0 "${@//@R/2}" "$penstock" server --master-addr 10.79.0.1 --master-port 2960$m
    done
    for m in 0 1 2; do sharing_is 2960$m "$shared"; done
    touch "$tmp/asked"
    for m in 0 1 2; do
        for r in 0 1; do ends "m${m}w$r" 0 60; done
        cmp "$tmp/reference" "$tmp/m${m}w0.out"
    done
    ends s0 0 10
}

hosts_or_skip() {
    can_have_bridge >"$tmp/cannot" || skip "$(cat "$tmp/cannot")"
    reference
    export PENSTOCK_ENCRYPTION=clear
    hosts_start "$@"
}

@test "workers of other networks, names and /dev/shm train alike, and share the memory that they can map" {
    hosts_or_skip 2 containers pids nameless
    place=(node0 node1 node1)
    trains_apart '[1]' env
    hosts_stop
    nothing_is_left 5
}

@test "workers that do not see each other's processes train alike over the network, though their /dev/shm is one" {
    hosts_or_skip 3 containers shm nameless
    place=(node0 node1 node2)
    trains_apart '[]' env
}

@test "workers of several users train alike over the network" {
    hosts_or_skip 1
    [ "$(id -u)" = 0 ] || skip "only root starts processes of other users"
    place=(node0 node0 node0)
    chmod 755 "$tmp"
    chmod 777 "$tmp/hosts" "$tmp"/hosts/*
    trains_apart '[]' setpriv --reuid 4000@R --regid 4000@R --clear-groups
}
