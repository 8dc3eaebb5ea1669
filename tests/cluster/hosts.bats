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
    [ "$output" = "penstock: --job is 'a/b', but must have 1 to 63 bytes, none of them / \\ \" or a control character, and no dot in front" ]
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
