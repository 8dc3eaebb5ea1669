# env.bats - `penstock env`: the values that a process here would use, their sources, and what is ignored.

load ../support/job

setup() {
    job_setup
    export SLURM_JOB_ID=81234 SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_NODEID=1 \
        SLURM_STEP_TASKS_PER_NODE=3,1 SLURM_JOB_NODELIST='n[07-08]'
}

teardown() { job_teardown; }

# says ITEM VALUE FROM
says() {
    grep -qE "^$1 +${2//./\\.} +from $3\$" <<<"$output" || { echo "$output"; return 1; }
}

@test "every value is printed with the variable that it comes from" {
    run pen env
    [ "$status" = 0 ]
    says rank 3 SLURM_PROCID
    says world_size 4 SLURM_STEP_NUM_TASKS
    says local_world_size 1 SLURM_STEP_TASKS_PER_NODE
    says master_addr n07 SLURM_JOB_NODELIST
    says master_port 16234 SLURM_JOB_ID
    grep -qx 'launcher          Slurm' <<<"$output"
}

@test "ignored variables are named, with the one that takes precedence" {
    RANK=0 WORLD_SIZE=2 MASTER_ADDR=head MASTER_PORT=29500 PENSTOCK_MASTER_PORT=29600 run pen env
    [ "$status" = 0 ]
    says rank 0 RANK
    says master_port 29600 PENSTOCK_MASTER_PORT
    grep -qx 'ignored           SLURM_PROCID: RANK has precedence' <<<"$output"
    grep -qx 'ignored           MASTER_PORT: PENSTOCK_MASTER_PORT has precedence' <<<"$output"
}

@test "two sources that contradict each other are refused with a sentence, also in the JSON" {
    WORLD_SIZE=8 run pen env
    [ "$status" = 1 ]
    grep -q '^penstock: WORLD_SIZE is 8 but SLURM_STEP_NUM_TASKS is 4; unset the wrong one' <<<"$output"
    WORLD_SIZE=8 run pen env --json
    grep -q '"error": "WORLD_SIZE is 8 but' <<<"$output"
}

@test "a server and the scheduler have their own view" {
    DMLC_NUM_WORKER=9 run pen env --role server
    [ "$status" = 0 ]
    says master_addr 127.0.0.1 "the default"
    grep -qx 'launcher          DMLC_\* of ps-lite' <<<"$output"
    DMLC_NUM_WORKER=9 DMLC_PS_ROOT_URI=10.0.0.1 DMLC_PS_ROOT_PORT=8000 run pen env --role scheduler
    says world_size 9 DMLC_NUM_WORKER
    says host 10.0.0.1 DMLC_PS_ROOT_URI
}

@test "values that no launcher sets come from the scheduler when the job runs" {
    local n
    unset "${!SLURM_@}"
    export MARK=$mark WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT
    MASTER_PORT=$(free_port)
    for n in 1 0; do RANK=$n "$programs/stepper" steps=100000 pause_ms=20 >"$tmp/worker-$n" 2>&1 3>&- & done
    for _ in $(seq 250); do
        RANK=1 run pen env
        [[ $output != *"from the scheduler"* ]] || break
        sleep 0.02
    done
    says rank 1 RANK
    says local_rank 1 "the scheduler"
    says local_world_size 2 "the scheduler"
    says nodes 1 "the scheduler"
    RANK=1 LOCAL_RANK=0 run pen env
    says local_rank 0 LOCAL_RANK
    RANK=0 run pen env --json
    grep -q '"from": "the scheduler"' <<<"$output"
}

@test "processes started only with ps-lite's variables train together" {
    local n
    unset "${!SLURM_@}"
    export MARK=$mark DMLC_PS_ROOT_URI=127.0.0.1 DMLC_PS_ROOT_PORT=$((10000 + RANDOM % 4900)) DMLC_NUM_WORKER=2 DMLC_NUM_SERVER=1
    DMLC_ROLE=scheduler timeout 60 "$penstock" scheduler >"$tmp/scheduler" 2>&1 3>&- &
    DMLC_ROLE=server timeout 60 "$penstock" server >"$tmp/server" 2>&1 3>&- &
    for n in 1 0; do
        DMLC_ROLE=worker DMLC_WORKER_ID=$n PENSTOCK_SCHEDULER=external timeout 60 "$examples/linear" >"$tmp/worker-$n" 2>&1 3>&- &
    done
    wait
    [ -s "$tmp/worker-0" ] || { cat "$tmp"/*; return 1; }
    cmp <(tail -n 1 "$tmp/worker-0") <(env -u DMLC_PS_ROOT_URI -u DMLC_NUM_WORKER "$examples/linear" 2>/dev/null | tail -n 1) || { cat "$tmp"/*; return 1; }
}
