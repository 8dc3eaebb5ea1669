# reach.bats - members that cannot reach each other, on hosts of their own (support/hosts.bash): one sentence within 10 s of
# the beginning, the same on all of them, and nobody else is blamed.
#
# Which ports members listen at is for the system to choose; a host that is to hear nothing but its scheduler drops what it
# says from all ports above 29500.  The hosts have one kernel, so workers could map each other's memory and need no
# network between them: where they shall, shared memory is off.

load ../support/job
load ../support/hosts

setup() {
    job_setup
    can_have_bridge >"$tmp/cannot" || skip "$(cat "$tmp/cannot")"
}
teardown() { job_teardown; }

two_hosts() { # FLAGS... of both launchers
    begun=${EPOCHREALTIME/[.,]/}
    begin_on node0 run0 "$penstock" run --encryption clear --nnodes 2 --node-rank 0 --master-addr node0 "$@" "$programs/stepper" steps=5
    begin_on node1 run1 "$penstock" run --encryption clear --nnodes 2 --node-rank 1 --master-addr node0 "$@" "$programs/stepper" steps=5
}

# All processes of the job have ended, soon, with this sentence, as a pattern.
all_say() { # PATTERN NAME...
    local name said first=
    for name in "${@:2}"; do
        ends "$name" 1 20
        said=$(grep -hoE "$1" "$tmp/$name.err" | head -n 1)
        [ -n "$said" ] || { echo "$name does not say: $1"; cat "$tmp/$name.err"; return 1; }
        [ -z "$first" ] || [ "$said" = "$first" ] || { echo "$name says '$said', not '$first'"; return 1; }
        first=$said
        ! grep -E 'is gone|has not pushed|has not entered' "$tmp/$name.err" || return 1
    done
    echo "after $(((${EPOCHREALTIME/[.,]/} - begun) / 1000)) ms: $first"
    [ $((${EPOCHREALTIME/[.,]/} - begun)) -lt $((${limit_s:-15} * 1000000)) ]
}

remedy='open the TCP ports between these hosts, or start server 0 with --host ADDRESS, one that all hosts reach'

@test "a server that one of two hosts cannot reach: both hosts say who, whom, where and what to do" {
    hosts_start 2
    drop_port node0 29501-65534
    two_hosts --servers 1
    all_say "worker 1 \(node1\) cannot reach server 0 \(node0\) at [^ ]+:[0-9]+: no answer, timed out; $remedy" run0 run1
    hosts_stop
}

@test "workers without servers that cannot reach each other: the same sentence on both hosts" {
    hosts_start 2
    drop_port node0 29501-65534
    export PENSTOCK_SHARED_MEMORY=no
    two_hosts
    all_say 'worker [01] \(node[01]\) cannot reach worker [01] \(node[01]\) at [^ ]+:[0-9]+: [A-Za-z, ]+(; 1 more connection fails, also of worker [01] \(node[01]\))?; open the TCP ports between these hosts' run0 run1
    hosts_stop
}

@test "two servers with copies of each other that cannot reach each other, though workers reach both: one sentence for all" {
    hosts_start 3
    begun=${EPOCHREALTIME/[.,]/}
    on node0 ip rule add ipproto tcp to "$(host_address node1)" dport 29501-65534 unreachable
    begin_on node2 scheduler "$penstock" scheduler --encryption clear --host "*" --port 29500 --world-size 1 --servers 2 --replicas 1
    begin_on node0 server0 "$penstock" server --encryption clear --master-addr node2 --master-port 29500 --rank 0
    begin_on node1 server1 "$penstock" server --encryption clear --master-addr node2 --master-port 29500 --rank 1
    begin_on node2 worker0 env RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=node2 MASTER_PORT=29500 \
        PENSTOCK_ENCRYPTION=clear PENSTOCK_SERVERS=2 PENSTOCK_SCHEDULER=external "$programs/stepper" steps=5
    all_say "server [01] \(node[01]\) cannot reach server [01] \(node[01]\) at [^ ]+:[0-9]+: (network is unreachable|no answer, timed out); open the TCP ports between these hosts, or start server [01] with --host ADDRESS, one that all hosts reach" scheduler server0 server1 worker0
    hosts_stop
}

@test "a server started with an address of another network: its workers say that they cannot reach it there, and the remedy" {
    hosts_start 1
    begun=${EPOCHREALTIME/[.,]/}
    begin_on node0 scheduler "$penstock" scheduler --encryption clear --host "*" --port 29500 --world-size 1 --servers 1
    begin_on node0 server0 "$penstock" server --encryption clear --host 10.99.0.9 --master-addr node0 --master-port 29500
    begin_on node0 worker0 env RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=node0 MASTER_PORT=29500 \
        PENSTOCK_ENCRYPTION=clear PENSTOCK_SERVERS=1 PENSTOCK_SCHEDULER=external "$programs/stepper" steps=5
    all_say "worker 0 \(node0\) cannot reach server 0 \(node0\) at 10\.99\.0\.9:[0-9]+: network is unreachable; $remedy" scheduler server0 worker0
    hosts_stop
}

@test "a port that is closed while a job trains: both ends are named within the lease and the time a connection takes to break" {
    hosts_start 2
    begin_on node0 run0 "$penstock" run --encryption clear --nnodes 2 --node-rank 0 --master-addr node0 --servers 1 "$programs/stepper" steps=100000
    begin_on node1 run1 "$penstock" run --encryption clear --nnodes 2 --node-rank 1 --master-addr node0 --servers 1 "$programs/stepper" steps=100000
    for _ in $(seq 500); do grep -q 'step 5 ' "$tmp/run1.out" && break || sleep 0.02; done
    grep -q 'step 5 ' "$tmp/run1.out"
    begun=${EPOCHREALTIME/[.,]/}
    drop_port node0 29501-65534
    limit_s=18 # 6 s until the connection counts as broken, and a lease; the rest is for a busy machine
    all_say "worker 1 \(node1\) cannot reach server 0 \(node0\) at [^ ]+:[0-9]+: no answer, timed out; $remedy" run0 run1
    hosts_stop
}
