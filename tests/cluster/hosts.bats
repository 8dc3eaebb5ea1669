# hosts.bats - jobs on several hosts (support/hosts.bash), started with the documented commands: no job name, no address
# of a single process, no host identity and no switch that avoids a path is given.

load ../support/job
load ../support/hosts

setup() {
    job_setup
    can_have_bridge >"$tmp/cannot" || skip "$(cat "$tmp/cannot")"
}
teardown() { job_teardown; }

# The lines that a training prints, without the launcher's rank in front.
lines_of() {
    cat "$@" | sed -n 's/^\(\[[0-9]*\] \)\{0,1\}\(rank .*\)/\2/p' | sort
}

# The same training on one machine:  alone WORKERS WORDS...   -> $tmp/alone
alone() {
    pen run --nproc-per-node "$1" "$programs/stepper" "${@:2}" >"$tmp/alone.out" 2>"$tmp/alone.err" || { cat "$tmp/alone.err"; return 1; }
    lines_of "$tmp/alone.out" >"$tmp/alone"
}

# The launchers NAME... ended well, and their workers computed the result of one machine.
are_as_alone() {
    local name files=()
    for name in "$@"; do
        ends "$name" 0
        files+=("$tmp/$name.out")
    done
    lines_of "${files[@]}" | diff "$tmp/alone" -
}

@test "a launcher without --job takes the name of the job it joins, with --secret-file and in clear text: files, variables" {
    local how name
    hosts_start 2
    "$penstock" keygen "$tmp/secret"
    for how in "--secret-file $tmp/secret" "--encryption clear"; do
        # shellcheck disable=SC2086
        begin_on node0 run0 "$penstock" run $how --nnodes 2 --node-rank 0 --master-addr node0 sh -c 'echo $PENSTOCK_JOB'
        # shellcheck disable=SC2086
        begin_on node1 run1 "$penstock" run $how --nnodes 2 --node-rank 1 --master-addr node0 --log-dir "$tmp/logs" \
            sh -c 'echo $PENSTOCK_JOB; echo $TORCHELASTIC_RUN_ID'
        ends run0 0 20
        ends run1 0 20
        name=$(sed -n 's/^\[0\] //p' "$tmp/run0.out")
        [[ $name == sh-* ]]
        is_text "[1] $name"$'\n'"[1] $name" <"$tmp/run1.out"
        grep -q "^penstock: job $name " "$tmp/run1.err"
        [ -d "$tmp/logs/$name/attempt_0" ]
    done
    hosts_stop
}

@test "a launcher with the name of another job starts nothing, and is told the name and the remedy" {
    hosts_start 2
    begin_on node0 run0 "$penstock" run --encryption clear --job mine --nnodes 2 --node-rank 0 --master-addr node0 sleep 20
    begin_on node1 run1 "$penstock" run --encryption clear --job yours --nnodes 2 --node-rank 1 --master-addr node0 touch "$tmp/started"
    ends run1 1 10
    is_text "penstock: the scheduler at node0 runs the job 'mine', not 'yours'; leave out --job, or set --job mine (PENSTOCK_JOB)" \
        < <(grep -vE 'waiting for machine 0|encryption=clear' "$tmp/run1.err")
    [ ! -e "$tmp/started" ]
    kill "$run0_pid"
    ends run0 143 10
    hosts_stop
}

@test "a machine that waits for another says so, can be interrupted, and waits only until the workers join" {
    hosts_start 2
    begin_on node0 run1 "$penstock" run --encryption clear --nnodes 2 --node-rank 1 --master-addr 10.79.0.1 true
    begin_on node1 run0 "$penstock" run --encryption clear --nnodes 2 --node-rank 0 --master-addr node1 --init-timeout-ms 1000 true
    for _ in $(seq 250); do grep -q 'waiting for machine 0' "$tmp/run1.err" && break || sleep 0.02; done
    kill -INT "$run1_pid"
    ends run1 130 10
    grep -qx 'penstock: waiting for machine 0 (scheduler at 10.79.0.1:29500)' "$tmp/run1.err"
    ends run0 1 20
    grep -qE '^penstock: 1 of 2 workers has not joined after 1(\.[0-9])? s: rank 1\.  Ended without joining: 0\.  .penstock doctor --master-addr node1. on its host tests the connection$' "$tmp/run0.err"
    hosts_stop
}

@test "a job's name that is not a file name is refused" {
    run pen run --job a/b true
    [ "$status" = 2 ]
    [ "$output" = "penstock: invalid job name 'a/b'; use 1 to 63 bytes without / \\ \" or control characters, and no leading dot" ]
}

@test "a job that is over at once ends the launchers of all machines at once: one step, and a program that calls nothing of ours" {
    local begun
    hosts_start 2
    for program in "$programs/stepper steps=1" true; do
        begun=${EPOCHREALTIME/[.,]/}
        # shellcheck disable=SC2086
        begin_on node0 run0 "$penstock" run --encryption clear --nnodes 2 --node-rank 0 --master-addr node0 $program
        # shellcheck disable=SC2086
        begin_on node1 run1 "$penstock" run --encryption clear --nnodes 2 --node-rank 1 --master-addr node0 $program
        ends run0 0 10
        ends run1 0 10
        echo "$program: $(((${EPOCHREALTIME/[.,]/} - begun) / 1000)) ms"
    done
    hosts_stop
}

# The members that status shows for the job at a port of node0, as ROLE ADDRESS-WITHOUT-PORT, sorted.
shown_addresses() {
    on node0 timeout 5 "$penstock" status --json --master-port "$1" 2>"$tmp/status.err" | members_of |
        sed -n 's/.*"role":"\([a-z]*\)".*"addresses":\["tcp:\/\/\([^"]*\):[0-9]*".*/\1 \2/p' | sort
}

# Compares them once all have joined:  addresses_are PORT LINES
addresses_are() {
    local shown end=$((SECONDS + 20))
    until shown=$(shown_addresses "$1") && [ "$(wc -l <<<"$shown")" -ge "$(wc -l <<<"$2")" ]; do
        [ "$SECONDS" -lt "$end" ] && sleep 0.05 || break
    done
    is_text "$2" <<<"$shown"
}

@test "hosts with one name and no name service: every role shows the address of the interface that leads to the scheduler" {
    local words=(steps=4 wait_at=2,"$tmp/seen") i
    touch "$tmp/seen"
    alone 2 "${words[@]}"
    rm "$tmp/seen"
    hosts_start 2 equal nameless
    for i in 1 2; do
        local servers=$((4 - 2 * i))
        begin_on node0 "run$i" "$penstock" run --nnodes 2 --node-rank 0 --master-addr 10.79.0.1 --master-port "2950$i" --servers $servers \
            "$programs/stepper" "${words[@]}"
        join_line "run$i"
        begin_on node1 "other$i" "$penstock" run --nnodes 2 --node-rank 1 --join - --servers $servers "$programs/stepper" "${words[@]}" <<<"$line"
    done
    addresses_are 29501 $'server 10.79.0.1\nserver 10.79.0.2\nworker 10.79.0.1\nworker 10.79.0.2'
    addresses_are 29502 $'worker 10.79.0.1\nworker 10.79.0.2'
    touch "$tmp/seen"
    are_as_alone run1 other1
    are_as_alone run2 other2
    hosts_stop
    nothing_is_left 5
}

@test "a scheduler named by its host's own name, loopback there (Debian's 127.0.1.1): others reach what runs beside it" {
    alone 4 steps=4
    hosts_start 2
    begin_on node0 run0 "$penstock" run --nproc-per-node 2 --nnodes 2 --node-rank 0 --master-addr node0 "$programs/stepper" steps=4
    join_line run0
    begin_on node1 run1 "$penstock" run --nproc-per-node 2 --nnodes 2 --node-rank 1 --join - "$programs/stepper" steps=4 <<<"$line"
    are_as_alone run0 run1
    hosts_stop
}

@test "--host is what others dial: of a launcher's servers and workers, and nothing else is" {
    hosts_start 2
    begin_on node0 run0 "$penstock" run --encryption clear --nnodes 2 --node-rank 0 --master-addr node0 --servers 2 --host node0 \
        "$programs/stepper" steps=100000 pause_ms=20
    begin_on node1 run1 "$penstock" run --encryption clear --nnodes 2 --node-rank 1 --master-addr node0 --servers 2 \
        "$programs/stepper" steps=100000 pause_ms=20
    addresses_are 29500 $'server 10.79.0.2\nserver node0\nworker 10.79.0.2\nworker node0'
    kill "$run0_pid"
    ends run0 143 20
    ends run1 1 20
    hosts_stop
}

@test "several interfaces, no default route, and the scheduler's name is loopback: the sentence names them and --host" {
    hosts_start 1
    on node0 ip link add y0 type veth peer name y1
    on node0 sh -c 'ip addr add 10.80.0.1/24 dev y0; ip link set y0 up; ip link set y1 up'
    begin_on node0 run0 "$penstock" run --encryption clear --nproc-per-node 1 --servers 1 --master-addr node0 "$programs/stepper" steps=1
    ends run0 1 20
    grep -qF "the scheduler's name 'node0' is loopback on this host, which has several interfaces (eth0 10.79.0.1, y0 10.80.0.1) and no default route; set --host ADDRESS, or an address with --master-addr" \
        "$tmp/run0.err"
    on node0 ip route add default via 10.80.0.9
    begin_on node0 run0 "$penstock" run --encryption clear --nproc-per-node 1 --servers 1 --master-addr node0 "$programs/stepper" steps=1
    ends run0 0 20
    hosts_stop
}

@test "a launcher whose --master-addr is its own loopback is told that this is not machine 0" {
    hosts_start 1 equal
    begin_on node0 run1 "$penstock" run --encryption clear --nnodes 2 --node-rank 1 --master-addr node --init-timeout-ms 2000 true
    ends run1 1 20
    grep -qx "penstock: waiting for machine 0 (scheduler at node:29500); this name is loopback here: set --master-addr to its address" "$tmp/run1.err"
    grep -qE "^penstock: machine 0 has not answered at node:29500 for [0-9.]+ s; .penstock doctor --master-addr node. tests the connection$" "$tmp/run1.err"
    hosts_stop
}

@test "torchrun's c10d command, identical on two hosts: the host of the endpoint is machine 0" {
    local i name
    hosts_start 2
    "$penstock" keygen "$tmp/secret"
    for i in 0 1; do
        begin_on "node$i" "run$i" "$penstock" run --secret-file "$tmp/secret" --nnodes=2 --nproc_per_node=1 --rdzv_id=100 \
            --rdzv_backend=c10d --rdzv_endpoint=node0:29603 sh -c 'echo $RANK $WORLD_SIZE $GROUP_RANK $TORCHELASTIC_RUN_ID'
    done
    ends run0 0 20
    ends run1 0 20
    is_text "[0] 0 2 0 100" <"$tmp/run0.out"
    is_text "[1] 1 2 1 100" <"$tmp/run1.out"
    hosts_stop
}

@test "any machine of a job answers status and finds its own processes for kill; Ctrl-C on machine 0 ends all" {
    local pid
    hosts_start 2
    begin_on node0 run0 "$penstock" run --nnodes 2 --node-rank 0 --master-addr node0 --servers 2 --replicas 1 --max-restarts 3 \
        "$programs/stepper" steps=100000 pause_ms=20
    join_line run0
    begin_on node1 run1 "$penstock" run --nnodes 2 --node-rank 1 --join - --servers 2 --replicas 1 --max-restarts 3 \
        "$programs/stepper" steps=100000 pause_ms=20 <<<"$line"
    for _ in $(seq 500); do grep -q 'step 5 ' "$tmp/run1.out" && break || sleep 0.02; done
    is_text "$(on node0 "$penstock" status | sed -n 's/ *training.*//p')" < <(on node1 "$penstock" status | sed -n 's/ *training.*//p')
    on node1 sh -c "kill -9 \$($penstock status --pid server 1)"
    for _ in $(seq 500); do grep -q 'restarting it' "$tmp/run1.err" && break || sleep 0.02; done
    grep -qx 'penstock: server 1 ended (signal 9); restarting it' "$tmp/run1.err"
    kill -INT "$run0_pid"
    ends run0 130 10
    ends run1 1 10
    grep -q 'the scheduler was stopped before the job had ended' "$tmp/run1.err"
    ! grep -q 'restarting, ' "$tmp/run1.err" || return 1
    ! on node1 "$penstock" status 2>"$tmp/status.err" || return 1
    grep -q 'no job of .penstock run. is running here' "$tmp/status.err"
    hosts_stop
}

@test "a second machine that calls itself machine 0 is told that, and nothing about --job: with its own secret, a common one, none" {
    local flags i=0
    hosts_start 2
    "$penstock" keygen "$tmp/secret" 2>/dev/null
    for flags in "" "--secret-file $tmp/secret" "--encryption clear"; do
        i=$((i + 1))
        # shellcheck disable=SC2086
        begin_on node0 "first$i" "$penstock" run --nnodes 2 --node-rank 0 --master-addr node0 --master-port 2960$i $flags "$programs/stepper"
        for _ in $(seq 250); do grep -q 'machine 0 of 2' "$tmp/first$i.err" && break || sleep 0.02; done
        # shellcheck disable=SC2086
        begin_on node1 "second$i" "$penstock" run --nnodes 2 --node-rank 0 --master-addr node0 --master-port 2960$i $flags "$programs/stepper"
    done
    for i in 1 2 3; do
        ends "second$i" 1 30
        grep -q -- '--node-rank 0 is the machine with the address node0, which another machine has: give each other machine a --node-rank of its own, from 1 on, and --join -' "$tmp/second$i.err" || { cat "$tmp/second$i.err"; return 1; }
        ! grep -- '--job' "$tmp/second$i.err" || { cat "$tmp/second$i.err"; return 1; }
        declare -n pid=first${i}_pid
        kill -INT "$pid"
        ends "first$i" 130 10
    done
    hosts_stop
}

@test "hosts that share the user's folder but not the network meet over the network" {
    hosts_start 2
    mkdir -m 700 "$tmp/common"
    begin_on node0 run0 env XDG_RUNTIME_DIR="$tmp/common" "$penstock" run --nnodes 2 --node-rank 0 --master-addr node0 --servers 1 \
        "$programs/stepper" steps=4
    join_line run0
    begin_on node1 run1 env XDG_RUNTIME_DIR="$tmp/common" "$penstock" run --nnodes 2 --node-rank 1 --join - --servers 1 "$programs/stepper" \
        steps=4 <<<"$line"
    ends run0 0 30
    ends run1 0 30
    [ "$(cat "$tmp"/run?.out | grep -c 'step 3 ')" = 2 ]
    [ -z "$(ls "$tmp/common/penstock")" ]
    hosts_stop
}
