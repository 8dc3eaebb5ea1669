# slurm.bats - deploy/slurm under a real Slurm: munged, slurmctld and four slurmd of Debian on this machine.
#
# The scripts run as shipped. Every result is compared with that of `penstock run`, bit for bit.

load ../support/job
load support/slurm

setup_file() {
    slurm=$(mktemp -d "${TMPDIR:-/tmp}/slurm-XXXXXX")
    export slurm
    slurm_needs
    slurm_open
}

teardown_file() {
    slurm_close
    rm -rf "$slurm"
}

setup() {
    slurm_needs
    job_setup
    export PATH=$build/bin:$PATH:/usr/sbin SLURM_CONF=$slurm/slurm.conf PENSTOCK_SNAPSHOT_EVERY=20
    export STORE=$tmp/store OMP_NUM_THREADS=1
    example=(fashion_mnist --steps 120 --batch 64 --seed 7)
    example[0]=$examples/fashion_mnist
    cd "$tmp"
}

teardown() {
    local id
    for id in $(squeue -h -o %i 2>/dev/null); do scancel "$id" 2>/dev/null || :; done
    slurm_wait 30 no_jobs || :
    job_teardown
}

no_jobs() { [ -z "$(squeue -h 2>/dev/null)" ]; }

# The result of `penstock run` with 2 servers and 4 workers.
reference() {
    env -u PENSTOCK_SNAPSHOT_EVERY "$penstock" run --standalone --nproc-per-node 4 --servers 2 "${example[@]}" --out "$tmp/reference.json" \
        >"$tmp/reference.out" 2>&1 3>&- || { cat "$tmp/reference.out"; return 1; }
}

# submit NAME SCRIPT SBATCH_FLAGS...: submits the example with that script  -> $id
submit() {
    local name=$1 script=$2
    shift 2
    id=$(MARK=$mark sbatch --parsable --output="$tmp/$name.log" "$@" "$root/deploy/slurm/$script" "${example[@]}" --out "$tmp/$name.json" 3>&-)
}

ends_well() {
    slurm_wait "${1:-120}" slurm_is_over "$id" || { echo "job $id is $(slurm_state "$id")"; cat "$tmp"/*.log; return 1; }
    slurm_is "$id" COMPLETED || { echo "job $id is $(slurm_state "$id")"; cat "$tmp"/*.log; return 1; }
}

has_snapshot() { penstock snapshot list --store "$STORE" 2>/dev/null | grep -v 'not complete' | grep -qw complete; }

@test "Slurm reads lists of hosts like penstock" {
    local list
    for list in 'n[1-3,7,010-012]' 'gpu-[001-003,20],x' 'a,b,c' 'r[1-2]n[08-11]' 'n[9-11]' 'n[098-101]' "n[1-2],m[5,7-8]"; do
        diff <(scontrol show hostnames "$list") <("$build/tests/unit_launch_test" "$list") || { echo "$list"; return 1; }
    done
}

@test "a step of uneven tasks: every task finds its rank, its host's share and the first host" {
    srun --nodes=2 --ntasks=4 --output="$tmp/env-%t" penstock env --json 3>&-
    local task sum=0
    for task in 0 1 2 3; do
        [ "$(jq .values.rank.value "$tmp/env-$task")" = "$task" ]
        [ "$(jq -r .values.rank.from "$tmp/env-$task")" = SLURM_PROCID ]
        [ "$(jq .values.world_size.value "$tmp/env-$task")" = 4 ]
        [ "$(jq .values.nodes.value "$tmp/env-$task")" = 2 ]
        [[ $(jq -r .values.master_addr.value "$tmp/env-$task") = n[1-4] ]]
        [ "$(jq .values.local_rank.value "$tmp/env-$task")" = 0 ] && sum=$((sum + $(jq .values.local_world_size.value "$tmp/env-$task")))
    done
    [ "$sum" = 4 ]
}

@test "train.sbatch on two nodes, with two servers and four workers, gives the parameters of penstock run" {
    reference
    submit slurm train.sbatch --nodes=2 --ntasks=4
    ends_well
    same_crc reference slurm
    [ "$(value slurm workers)" = 4 ]
    [ "$(value slurm servers)" = 2 ]
    [ -z "$(ls -d "$STORE"/keys-* 2>/dev/null)" ]
    nothing_is_left 20
}

# A wrapper of the example that runs COMMAND first.
in_front() {
    printf '#!/bin/sh\n%s\nexec "$@"\n' "$1" >"$tmp/program"
    chmod +x "$tmp/program"
    example=("$tmp/program" "${example[@]}")
}

@test "three tasks here and one there, which count as two hosts, give the same parameters" {
    reference
    in_front "export PENSTOCK_HOST_ID=\$SLURMD_NODENAME; echo \$SLURM_NODEID \$SLURM_STEP_TASKS_PER_NODE >>$tmp/nodes"
    submit slurm train.sbatch --nodes=2 --ntasks=4
    ends_well
    same_crc reference slurm
    [ "$(sort "$tmp/nodes" | uniq -c | tr -s ' ' | paste -sd:)" = " 3 0 3,1: 1 1 3,1" ] || { cat "$tmp/nodes"; return 1; }
}

@test "a worker is killed: the job is requeued, resumes from a snapshot, and ends with the same parameters" {
    local pid
    example+=(--slow-ms 20)
    reference
    submit slurm train.sbatch --nodes=2 --ntasks=4
    slurm_wait 60 has_snapshot
    for pid in $(marked); do
        grep -qzsx SLURM_PROCID=2 "/proc/$pid/environ" && [ "$(readlink "/proc/$pid/exe")" = "$examples/fashion_mnist" ] && kill -9 "$pid"
    done
    slurm_wait 60 is_requeued
    ends_well 240
    grep -q 'requeued, 1 of 3' "$tmp/slurm.log"
    grep -q 'goes on from the newest snapshot' "$tmp/slurm.log"
    same_crc reference slurm
}

is_requeued() { [ "$(slurm_restarts "$id")" = 1 ]; }

@test "every worker has the GPU that Slurm assigned to it" {
    reference
    in_front "echo \$SLURM_PROCID \$CUDA_VISIBLE_DEVICES >>$tmp/gpus"
    submit slurm train.sbatch --nodes=2 --ntasks=4 --ntasks-per-node=2 --gpus-per-task=1
    ends_well
    same_crc reference slurm
    [ "$(cut -d' ' -f1 "$tmp/gpus" | sort -u | wc -l)" = 4 ]
    [ "$(grep -cE '^[0-3] [01]$' "$tmp/gpus")" = 4 ]
}

@test "workers that fail before they join end the job" {
    example=(false)
    REQUEUES=0 submit slurm train.sbatch --nodes=2 --ntasks=4
    slurm_wait 60 slurm_is_over "$id" || { cat "$tmp/slurm.log"; return 1; }
    slurm_is "$id" FAILED
    nothing_is_left 20
}

# The fake driver counts what Slurm lists in CUDA_VISIBLE_DEVICES.
@test "with --gpus-per-node each node has a launcher, which starts a worker for each GPU and divides its cores" {
    [ -e "$build/tests/gpu/driver/libcuda.so.1" ] || skip "built without CUDA"
    reference
    export LD_LIBRARY_PATH=$build/tests/gpu/driver:$build/lib CUDA_ON_HOST_DEVICES=2
    in_front "echo \$RANK \$LOCAL_RANK \$CUDA_VISIBLE_DEVICES \$OMP_NUM_THREADS >>$tmp/gpus"
    unset OMP_NUM_THREADS
    submit slurm train.sbatch --nodes=2 --gpus-per-node=2 --cpus-per-task=2
    ends_well
    same_crc reference slurm
    [ "$(value slurm workers)" = 4 ]
    [ "$(sort "$tmp/gpus" | paste -sd:)" = "0 0 0 1:1 1 1 1:2 0 0 1:3 1 1 1" ] || { cat "$tmp/gpus"; return 1; }
}

@test "--gpus-per-node on one node of one core, with two servers" {
    [ -e "$build/tests/gpu/driver/libcuda.so.1" ] || skip "built without CUDA"
    export LD_LIBRARY_PATH=$build/tests/gpu/driver:$build/lib CUDA_ON_HOST_DEVICES=2
    REQUEUES=0 submit slurm train.sbatch --nodes=1 --gpus-per-node=2
    ends_well 40
    [ "$(value slurm workers)" = 2 ]
    [ "$(value slurm servers)" = 2 ]
}

@test "a heterogeneous job: servers on separate nodes, and the same parameters" {
    reference
    id=$(MARK=$mark sbatch --parsable --output="$tmp/het.log" --ntasks=2 : --nodes=2 --ntasks=4 "$root/deploy/slurm/train.sbatch" \
        "${example[@]}" --out "$tmp/het.json" 3>&-)
    ends_well
    same_crc reference het
}

@test "srun alone trains a job without servers, with the parameters of penstock run" {
    unset PENSTOCK_SNAPSHOT_EVERY
    "$penstock" run --standalone --nproc-per-node 4 "${example[@]}" --out "$tmp/reference.json" >"$tmp/reference.out" 2>&1 3>&-
    penstock keygen "$tmp/secret"
    PENSTOCK_SECRET_FILE=$tmp/secret timeout 120 srun --nodes=2 --ntasks=4 "${example[@]}" --out "$tmp/srun.json" >"$tmp/srun.log" 2>&1 3>&- ||
        { cat "$tmp/srun.log"; return 1; }
    same_crc reference srun
    [ "$(value srun workers)" = 4 ]
}

@test "scancel ends every process of the job" {
    example=("$examples/fashion_mnist" --steps 1000000)
    submit slurm train.sbatch --nodes=2 --ntasks=4
    slurm_wait 60 has_snapshot
    scancel "$id"
    slurm_wait 60 slurm_is "$id" CANCELLED
    nothing_is_left 60
}
