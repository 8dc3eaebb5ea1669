# hosts_start.bats - jobs on 2, 3 and 4 hosts (support/hosts.bash), started in every supported way, with 0 to 4 servers,
# encrypted and clear, with names and without: each has the sums, norms and parameters of one machine.
#
# The tests cover pairs, not all combinations; jobs of one test run in parallel on the same hosts, each at its own port.
# Settings that users give by hand are given by hand: an address, a port, a rank, the number of ranks, and the secret.

load ../support/job
load ../support/hosts

worker=(steps=4 rows=64)

# The result of one machine, for each world size.
setup_file() {
    local n
    job_setup
    for n in 2 3 4; do
        pen run --nproc-per-node "$n" "$programs/stepper" "${worker[@]}" >"$tmp/$n.out" 2>"$tmp/$n.err" &
    done
    wait
    for n in 2 3 4; do lines_of "$tmp/$n.out" >"$BATS_FILE_TMPDIR/alone.$n"; done
    [ "$(wc -l <"$BATS_FILE_TMPDIR/alone.4")" = 16 ] || cat "$tmp/4.err" >&2
    job_teardown
}

setup() {
    job_setup
    can_have_bridge >"$tmp/cannot" || skip "$(cat "$tmp/cannot")"
    "$penstock" keygen "$tmp/secret" 2>/dev/null
    worker=("$programs/stepper" "${worker[@]}")
    parts=()
}
teardown() { job_teardown; }

lines_of() {
    cat "$@" | sed -n 's/^\(\[[0-9]*\] \)\{0,1\}\(rank .*\)/\2/p' | sort
}

# Starts one more process of job J:  part J HOST COMMAND...
part() {
    local p=${parts[$1]:-0}
    parts[$1]=$((p + 1))
    begin_on "$2" "job${1}part$p" "${@:3}"
}

# All processes of job J end well, and its N workers computed the result of one machine:  is_as_alone J N
is_as_alone() {
    local p
    for ((p = 0; p < parts[$1]; p++)); do ends "job${1}part$p" 0; done
    lines_of "$tmp/job${1}part"*.out | diff "$BATS_FILE_TMPDIR/alone.$2" - || { cat "$tmp/job$1"*.err; return 1; }
}

# `penstock run` on COUNT hosts, the others with the join line of the first:  run_joined J COUNT ADDRESS FLAGS...
run_joined() {
    local i
    part "$1" node0 "$penstock" run --nnodes "$2" --node-rank 0 --master-addr "$3" --master-port "2950$1" "${@:4}" "${worker[@]}"
    join_line "job${1}part0"
    for ((i = 1; i < $2; i++)); do
        part "$1" "node$i" "$penstock" run --nnodes "$2" --node-rank "$i" --join - "${@:4}" "${worker[@]}" <<<"$line"
    done
}

# Starts the servers of a job by hand, one on each of these hosts:  servers J ADDRESS HOSTS...
servers() {
    local at
    for at in "${@:3}"; do part "$1" "$at" env MASTER_ADDR="$2" MASTER_PORT="2950$1" "$penstock" server; done
}

@test "four hosts: --join, torchrun's variables in full, RANK and WORLD_SIZE alone, Slurm's: with 4, 1 and no servers, encrypted" {
    local r
    hosts_start 4
    run_joined 1 4 node0 --servers 4

    export PENSTOCK_SECRET_FILE=$tmp/secret
    for r in 0 1 2 3; do
        part 2 "node$((r / 2))" env RANK="$r" WORLD_SIZE=4 LOCAL_RANK=$((r % 2)) LOCAL_WORLD_SIZE=2 GROUP_RANK=$((r / 2)) \
            GROUP_WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=29502 PENSTOCK_SERVERS=1 "${worker[@]}"
        part 3 "node$r" env RANK="$r" WORLD_SIZE=4 MASTER_ADDR=node0 MASTER_PORT=29503 "${worker[@]}"
    done
    servers 2 node0 node2
    for r in 0 1 2; do
        part 4 "node$((r + 1))" env SLURM_JOB_ID=29504 SLURM_STEP_ID=0 SLURM_PROCID="$r" SLURM_NTASKS=3 SLURM_STEP_NUM_TASKS=3 \
            SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE='1(x3)' SLURM_NODEID="$r" SLURM_STEP_NUM_NODES=3 \
            SLURM_STEP_NODELIST='node[1-3]' SLURM_JOB_NODELIST='node[1-3]' "${worker[@]}"
    done
    is_as_alone 1 4
    is_as_alone 2 4
    is_as_alone 3 4
    is_as_alone 4 3
    hosts_stop
    nothing_is_left 5
}

@test "three hosts: torchrun's command, an accelerate file for two machines, mpirun's variables, those of PMI: 2, 1 and no servers" {
    local r clear=PENSTOCK_ENCRYPTION=clear
    hosts_start 3
    for r in 0 1 2; do
        part 1 "node$r" "$penstock" run --secret-file "$tmp/secret" --nnodes=3 --nproc_per_node=1 --node_rank=$r --rdzv_id=42 \
            --rdzv_backend=c10d --rdzv_endpoint=node0:29501 --servers=2 "${worker[@]}"
    done
    for r in 0 1; do
        printf '%s\n' 'compute_environment: LOCAL_MACHINE' 'distributed_type: MULTI_CPU' 'num_machines: 2' "machine_rank: $r" \
            'num_processes: 4' 'main_process_ip: node0' 'main_process_port: 29502' >"$tmp/machine$r.yaml"
        part 2 "node$r" "$penstock" run --config "$tmp/machine$r.yaml" --encryption clear --servers 1 "${worker[@]}"
    done
    for r in 0 1 2; do
        part 3 "node$r" env OMPI_COMM_WORLD_RANK="$r" OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 \
            PMIX_NAMESPACE=7 MASTER_ADDR=node0 MASTER_PORT=29503 $clear PENSTOCK_SERVERS=2 "${worker[@]}"
        part 4 "node$r" env PMI_RANK="$r" PMI_SIZE=3 MASTER_ADDR=node0 MASTER_PORT=29504 $clear "${worker[@]}"
    done
    PENSTOCK_ENCRYPTION=clear servers 3 node0 node1 node2
    is_as_alone 1 3
    is_as_alone 2 4
    is_as_alone 3 3
    is_as_alone 4 3
    hosts_stop
}

@test "hosts with one name and no name service are told apart: --join, and RANK and WORLD_SIZE by hand; a firewall drops a port" {
    local r
    hosts_start 3 equal nameless
    drop_port node1 29500 # the port of a scheduler; node1 has none
    run_joined 1 3 10.79.0.1 --servers 1
    for r in 0 1; do
        part 2 "node$((r + 1))" env RANK="$r" WORLD_SIZE=2 MASTER_ADDR=10.79.0.2 MASTER_PORT=29502 PENSTOCK_ENCRYPTION=clear "${worker[@]}"
    done
    for r in 0 1 2 3; do
        part 3 "node$((r % 2))" env RANK="$r" WORLD_SIZE=4 MASTER_ADDR=10.79.0.1 MASTER_PORT=29503 PENSTOCK_ENCRYPTION=clear "$programs/places"
    done
    is_as_alone 1 3
    is_as_alone 2 2
    for r in 0 1 2 3; do ends "job3part$r" 0; done
    [ "$(sort "$tmp"/job3part?.out)" = "rank 0: local 0 of 2, node 0 of 2, sum 4
rank 1: local 0 of 2, node 1 of 2, sum 4
rank 2: local 1 of 2, node 0 of 2, sum 4
rank 3: local 1 of 2, node 1 of 2, sum 4" ]
    hosts_stop
}

@test "hosts that have IPv6 only: the address with brackets and without, and a name: --join, torchrun's command, by hand" {
    local r
    hosts_start 2 ipv6
    run_joined 1 2 fd79::1 --servers 2
    run_joined 2 2 node0
    for r in 0 1; do
        part 3 "node$r" "$penstock" run --secret-file "$tmp/secret" --nnodes=2 --nproc_per_node=1 --rdzv_backend=c10d \
            "--rdzv_endpoint=[fd79::1]:29503" --servers=4 "${worker[@]}"
        part 4 "node$r" env RANK="$r" WORLD_SIZE=2 MASTER_ADDR=fd79::1 MASTER_PORT=29504 PENSTOCK_SECRET_FILE="$tmp/secret" "${worker[@]}"
    done
    is_as_alone 1 2
    is_as_alone 2 2
    is_as_alone 3 2
    is_as_alone 4 2
    on node1 "$penstock" doctor --master-addr fd79::1 --master-port 29504 >"$tmp/doctor" || :
    grep -q 'fd79::1' "$tmp/doctor"
    hosts_stop
}
