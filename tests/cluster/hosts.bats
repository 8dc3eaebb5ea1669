# hosts.bats - jobs on several hosts (support/hosts.bash), started with the commands of the documentation: no job name, no
# address of a process's own, no identity of a host and no switch that avoids a path is given.
#
# Each worker has one thread (OMP_NUM_THREADS, which users may leave out): matrix products that are split differently
# differ in their last bits, and bits are compared with those of one machine.

load ../support/job
load ../support/hosts

setup() {
    job_setup
    can_have_bridge >"$tmp/cannot" || skip "$(cat "$tmp/cannot")"
    export OMP_NUM_THREADS=1
}
teardown() { job_teardown; }

few=(--steps 60 --optim "adamw lr=0.002 weight_decay=0.01" --clip 0.5 --seed 5)

alone() { # FLAGS...   -> $tmp/alone.json
    pen run "$@" "${fashion[@]}" "${few[@]}" --out "$tmp/alone.json" >"$tmp/alone.out" 2>"$tmp/alone.err" || { cat "$tmp/alone.err"; return 1; }
}

# The line that machine 0 printed for the others.
join_line() {
    for _ in $(seq 500); do
        line=$(sed -n 's/^penstock: on each other machine, with its --node-rank:  --join //p' "$tmp/$1.err")
        [ -n "$line" ] && return
        sleep 0.02
    done
    echo "$1 printed no line to join by"
    return 1
}

@test "two hosts, torchrun's flags and --join: servers train to the parameters of one machine" {
    alone --nproc-per-node 2 --servers 2
    hosts_start 2
    begin_on node0 run0 "$penstock" run --nnodes 2 --node-rank 0 --master-addr node0 --servers 2 "${fashion[@]}" "${few[@]}" --out "$tmp/hosts.json"
    join_line run0
    begin_on node1 run1 "$penstock" run --nnodes 2 --node-rank 1 --servers 2 --join "$line" "${fashion[@]}" "${few[@]}"
    ends run0 0
    ends run1 0
    same_crc alone hosts
    hosts_stop
    nothing_is_left 5
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

@test "a launcher with the name of another job starts nothing, and hears the name and the remedy" {
    hosts_start 2
    begin_on node0 run0 "$penstock" run --encryption clear --job mine --nnodes 2 --node-rank 0 --master-addr node0 sleep 20
    begin_on node1 run1 "$penstock" run --encryption clear --job yours --nnodes 2 --node-rank 1 --master-addr node0 touch "$tmp/started"
    ends run1 1 10
    is_text "penstock: the scheduler at node0 runs the job 'mine', not 'yours'; leave out --job, or say --job mine (PENSTOCK_JOB)" \
        < <(grep -vE 'waiting for machine 0|encryption=clear' "$tmp/run1.err")
    [ ! -e "$tmp/started" ]
    kill "$run0_pid"
    ends run0 143 10
    hosts_stop
}

@test "a machine that waits for machine 0 says so and can be interrupted; a name that is no file name is refused" {
    hosts_start 1
    begin_on node0 run1 "$penstock" run --encryption clear --nnodes 2 --node-rank 1 --master-addr 10.79.0.1 true
    for _ in $(seq 250); do grep -q 'waiting for machine 0' "$tmp/run1.err" && break || sleep 0.02; done
    kill -INT "$run1_pid"
    ends run1 130 10
    grep -qx 'penstock: waiting for machine 0, whose scheduler is to be at 10.79.0.1:29500' "$tmp/run1.err"
    run pen run --job a/b true
    [ "$status" = 2 ]
    [ "$output" = "penstock: the job's name is 'a/b', but must have 1 to 63 bytes, none of them / \\ \" or a control character, and no dot in front" ]
    hosts_stop
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

# What status says of its members, as ROLE ADDRESS-WITHOUT-PORT, sorted.
shown_addresses() {
    on node0 timeout 5 "$penstock" status --json 2>"$tmp/status.err" | members_of |
        sed -n 's/.*"role":"\([a-z]*\)".*"addresses":\["tcp:\/\/\([^"]*\):[0-9]*".*/\1 \2/p' | sort
}

@test "hosts with one name and no name service: every role shows the address of the interface that leads to the scheduler" {
    local mode
    alone --nproc-per-node 2 --servers 2
    hosts_start 2 equal nameless
    for mode in ps-bsp ddp; do
        local servers=(--servers 2)
        [ $mode = ps-bsp ] || servers=()
        begin_on node0 run0 "$penstock" run --nnodes 2 --node-rank 0 --master-addr 10.79.0.1 "${servers[@]}" "${fashion[@]}" "${few[@]}" --out "$tmp/$mode.json"
        join_line run0
        begin_on node1 run1 "$penstock" run --nnodes 2 --node-rank 1 --join "$line" "${servers[@]}" "${fashion[@]}" "${few[@]}"
        ends run0 0
        ends run1 0
        same_crc alone $mode
    done
    hosts_stop
}

@test "a scheduler named by its host's own name, loopback there (Debian's 127.0.1.1): others reach what runs beside it" {
    alone --nproc-per-node 4
    hosts_start 2
    begin_on node0 run0 "$penstock" run --nproc-per-node 2 --nnodes 2 --node-rank 0 --master-addr node0 "${fashion[@]}" "${few[@]}" --out "$tmp/hosts.json"
    join_line run0
    begin_on node1 run1 "$penstock" run --nproc-per-node 2 --nnodes 2 --node-rank 1 --join "$line" "${fashion[@]}" "${few[@]}"
    ends run0 0
    ends run1 0
    same_crc alone hosts
    hosts_stop
}

@test "--host is what others dial: of a launcher's servers and workers, and nothing else is" {
    hosts_start 2
    begin_on node0 run0 "$penstock" run --encryption clear --nnodes 2 --node-rank 0 --master-addr node0 --servers 2 --host node0 \
        "$programs/stepper" steps=100000 pause_ms=20
    begin_on node1 run1 "$penstock" run --encryption clear --nnodes 2 --node-rank 1 --master-addr node0 --servers 2 \
        "$programs/stepper" steps=100000 pause_ms=20
    for _ in $(seq 200); do [ "$(shown_addresses | wc -l)" -ge 4 ] && break || sleep 0.1; done
    is_text $'server 10.79.0.2\nserver node0\nworker 10.79.0.2\nworker node0' < <(shown_addresses)
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
    grep -qF "the scheduler's name 'node0' is loopback on this host, which has several interfaces (eth0 10.79.0.1, y0 10.80.0.1) and no default route; say --host ADDRESS, or an address with --master-addr" \
        "$tmp/run0.err"
    on node0 ip route add default via 10.80.0.9
    begin_on node0 run0 "$penstock" run --encryption clear --nproc-per-node 1 --servers 1 --master-addr node0 "$programs/stepper" steps=1
    ends run0 0 20
    hosts_stop
}

@test "a launcher whose --master-addr is its own loopback hears so: that is not machine 0" {
    hosts_start 1 equal
    begin_on node0 run1 "$penstock" run --encryption clear --nnodes 2 --node-rank 1 --master-addr node --init-timeout-ms 2000 true
    ends run1 1 20
    grep -qx "penstock: waiting for machine 0, whose scheduler is to be at node:29500; here that name is loopback, this machine itself: say its address" "$tmp/run1.err"
    grep -qE "^penstock: machine 0 has not answered at node:29500 for [0-9.]+ s; .penstock doctor --master-addr node. tests the way$" "$tmp/run1.err"
    hosts_stop
}

@test "torchrun's c10d command, the same words on two hosts: the one of the endpoint is machine 0" {
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

@test "any machine of a job answers status, and its own processes are found there to be killed; Ctrl-C on machine 0 ends all" {
    local pid
    hosts_start 2
    begin_on node0 run0 "$penstock" run --nnodes 2 --node-rank 0 --master-addr node0 --servers 2 --replicas 1 --max-restarts 3 \
        "$programs/stepper" steps=100000 pause_ms=20
    join_line run0
    begin_on node1 run1 "$penstock" run --nnodes 2 --node-rank 1 --join "$line" --servers 2 --replicas 1 --max-restarts 3 \
        "$programs/stepper" steps=100000 pause_ms=20
    for _ in $(seq 500); do grep -q 'step 5 ' "$tmp/run1.out" && break || sleep 0.02; done
    is_text "$(on node0 "$penstock" status | sed -n 's/ *training.*//p')" < <(on node1 "$penstock" status | sed -n 's/ *training.*//p')
    on node1 sh -c "kill -9 \$($penstock status --pid server 1)"
    for _ in $(seq 500); do grep -q 'starting it again' "$tmp/run1.err" && break || sleep 0.02; done
    grep -qx 'penstock: server 1 ended (signal 9); starting it again' "$tmp/run1.err"
    kill -INT "$run0_pid"
    ends run0 130 10
    ends run1 1 10
    grep -q 'the scheduler was stopped before the job had ended' "$tmp/run1.err"
    ! grep -q 'starting again' "$tmp/run1.err" || return 1
    ! on node1 "$penstock" status 2>"$tmp/status.err" || return 1
    grep -q 'no job of .penstock run. is running here' "$tmp/status.err"
    hosts_stop
}
