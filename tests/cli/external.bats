# external.bats - `penstock run --scheduler external`: the launcher of one node's workers, as in a pod or a Slurm step.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# A scheduler and $1 servers for $2 workers on a free port, with the variables that Kubernetes' manifests give to all.
fleet() {
    local i
    port=$(free_port)
    pen keygen "$tmp/secret" >/dev/null 2>&1
    export PENSTOCK_JOB=$job PENSTOCK_SERVERS=$1 PENSTOCK_WORLD_SIZE=$2 PENSTOCK_SECRET_FILE=$tmp/secret PENSTOCK_ENCRYPTION=on \
        PENSTOCK_INIT_TIMEOUT_MS=60000
    MARK=$mark "$penstock" scheduler --host 127.0.0.1 --port $port >"$tmp/scheduler.log" 2>&1 3>&- &
    export PENSTOCK_MASTER_ADDR=127.0.0.1 PENSTOCK_MASTER_PORT=$port
    for ((i = 0; i < $1; i++)); do
        MARK=$mark PENSTOCK_RANK=$i PENSTOCK_OFFLOAD_PATH=$tmp/offload$i "$penstock" server >"$tmp/server$i.log" 2>&1 3>&- &
    done
}

# The workers of node $1 of $2, $3 each, in the background, with the variables of Kubeflow Trainer, which name node 0:  node I NODES EACH FLAGS_OF_RUN... -- PROGRAM...   -> $pids
node() {
    MARK=$mark PENSTOCK_SCHEDULER=external PET_NODE_RANK=$1 PET_NNODES=$2 PET_NPROC_PER_NODE=$3 \
        PET_MASTER_ADDR=job-node-0-0.job PET_MASTER_PORT=29400 \
        timeout -k 5 100 "$penstock" run "${@:4}" >>"$tmp/node$1.log" 2>&1 3>&- &
    pids[$1]=$!
}

# All nodes end with 0.
nodes_end() {
    local i
    for i in "${!pids[@]}"; do
        wait "${pids[$i]}" || { echo "node $i: $?"; cat "$tmp"/*.log; return 1; }
    done
}

# Process ids of worker $1.
worker() {
    local pid
    for pid in $(marked); do
        grep -qzsx "RANK=$1" "/proc/$pid/environ" && [ "$(readlink "/proc/$pid/exe")" = "$examples/fashion_mnist" ] && echo "$pid"
    done
    return 0
}


# Waits until training is at step $1.
until_step() {
    local end=$((SECONDS + 60))
    until [ "$("$penstock" status --master-addr 127.0.0.1 --master-port "$port" --json 2>/dev/null | jq '.step // -1')" -ge "$1" ] 2>/dev/null; do
        [ $SECONDS -lt $end ] || { cat "$tmp"/*.log; return 1; }
        sleep 0.1
    done
}

steps=(--steps 40 --batch 64 --seed 7)

@test "two nodes of two workers train beside an external scheduler and servers, with the parameters of one launcher" {
    train whole --nproc-per-node 4 --servers 2 -- "${steps[@]}"
    export PENSTOCK_OFFLOAD_OPTIMIZER=nvme # of all, while only the servers have a folder
    fleet 2 4
    node 1 2 2 "${fashion[@]}" "${steps[@]}"
    node 0 2 2 "${fashion[@]}" "${steps[@]}" --out "$tmp/parts.json"
    nodes_end
    same_crc whole parts
    [ "$(value parts workers)" = 4 ] && [ "$(value parts servers)" = 2 ]
    nothing_is_left 10
}

@test "a killed worker is restarted by its launcher; a killed launcher's node returns; the parameters are the same" {
    export PENSTOCK_REPLICAS=1 PENSTOCK_ON_WORKER_LOSS=wait
    train whole --nproc-per-node 4 --servers 2 -- "${steps[@]}"
    fleet 2 4
    node 0 2 2 --max-restarts 3 "${fashion[@]}" "${steps[@]}" --slow-ms 100 --out "$tmp/parts.json"
    node 1 2 2 --max-restarts 3 "${fashion[@]}" "${steps[@]}" --slow-ms 100
    until_step 5
    kill -9 $(worker 1)
    until_step 12
    grep -q 'penstock: worker 1 ended (signal 9); restarting it' "$tmp/node0.log"
    kill -9 "$(pgrep -P "${pids[1]}")" # the launcher; its guard ends the workers
    wait "${pids[1]}" || :
    node 1 2 2 --max-restarts 3 "${fashion[@]}" "${steps[@]}"
    nodes_end
    same_crc whole parts
    nothing_is_left 10
}

# A command line that ends with 2 and the sentence $1:  refused SENTENCE FLAGS_OF_RUN...
refused() {
    local code=0 sentence=$1
    shift
    PENSTOCK_SCHEDULER=external pen run "$@" true >"$tmp/refused" 2>&1 || code=$?
    [ "$code" = 2 ] || { echo "code $code"; cat "$tmp/refused"; return 1; }
    grep -qF -- "penstock: $sentence" "$tmp/refused" || { cat "$tmp/refused"; return 1; }
}

@test "numbers that contradict each other, and hostile ones, are refused with a sentence" {
    PENSTOCK_WORLD_SIZE=4 refused "the world size is 4 (PENSTOCK_WORLD_SIZE or WORLD_SIZE), but --nnodes 2 x --nproc-per-node 3 are 6 workers" \
        --nnodes 2 --nproc-per-node 3
    PENSTOCK_SERVERS=-1 refused "PENSTOCK_SERVERS is '-1', but must be a number from 0 to 10000"
    PENSTOCK_SERVERS=99999999999999999999 refused "PENSTOCK_SERVERS is '99999999999999999999', but must be"
    PENSTOCK_MASTER_PORT='29500;' refused "PENSTOCK_MASTER_PORT is '29500;', but must be a number from 0 to 65535"
    MASTER_PORT=x refused "MASTER_PORT is 'x', but must be a number from 0 to 65535"
    WORLD_SIZE=many refused "WORLD_SIZE is 'many', but must be a number from 0 to 1048576"
    PENSTOCK_REPLICAS=9 refused "PENSTOCK_REPLICAS is '9', but must be a number from 0 to 2"
    refused "--standalone and --scheduler external contradict each other" --standalone
    refused "--scheduler external needs its --master-port" --master-port 0
    PENSTOCK_MASTER_ADDR=192.0.2.1 refused "machine 0 needs the job's secret; use --join - and paste the line from machine 0, or --secret-file FILE"
}

@test "without a scheduler the launcher says whom it waits for, and gives up in time" {
    local code=0 port; port=$(free_port)
    pen run --scheduler external --master-port $port --init-timeout-ms 1500 true >"$tmp/out" 2>&1 || code=$?
    [ "$code" = 1 ]
    grep -qxF "penstock: waiting for the job (scheduler at 127.0.0.1:$port)" "$tmp/out"
    grep -qF "penstock: the job has not answered at 127.0.0.1:$port for " "$tmp/out"
}
