# devices.bats - `penstock run` on machines with CUDA devices: how many workers, and which device each sees.
#
# The devices are those of the fake driver (tests/gpu/driver).

load ../support/job

setup() {
    job_setup
    driver=$build/tests/gpu/driver
    [ -e "$driver/libcuda.so.1" ] || skip "built without CUDA"
    export LD_LIBRARY_PATH=$driver:$build/lib
    unset CUDA_VISIBLE_DEVICES SLURM_GPUS_ON_NODE SLURMD_NODENAME
}

teardown() { job_teardown; }

# What each worker sees, by rank, on a machine of $1 devices:  sees DEVICES FLAGS_OF_RUN...
sees() {
    CUDA_ON_HOST_DEVICES=$1 pen run --standalone --no-prefix "${@:2}" sh -c 'echo "$RANK:${CUDA_VISIBLE_DEVICES-all}"' \
        2>"$tmp/err" >"$tmp/out" || return
    sort -n "$tmp/out" | paste -sd ' '
}

@test "with gpu and auto there is one worker for each device, and each sees its own" {
    [ "$(sees 1 --nproc-per-node gpu)" = "0:0" ]
    [ "$(sees 2 --nproc-per-node gpu)" = "0:0 1:1" ]
    [ "$(sees 4 --nproc-per-node gpu)" = "0:0 1:1 2:2 3:3" ]
    [ "$(sees 4 --nproc-per-node auto)" = "0:0 1:1 2:2 3:3" ]
    [ "$(sees 4 --nproc-per-node 2)" = "0:0 1:1" ]
    ! grep -q share "$tmp/err" || return 1
}

@test "a list in CUDA_VISIBLE_DEVICES chooses the devices and their order, by number, UUID or MIG part" {
    export CUDA_VISIBLE_DEVICES=3,1
    [ "$(sees 4 --nproc-per-node gpu)" = "0:3 1:1" ]
    CUDA_VISIBLE_DEVICES="2, 0,-1,3"
    [ "$(sees 4 --nproc-per-node gpu)" = "0:2 1:0" ]
    CUDA_VISIBLE_DEVICES=GPU-2,GPU-0
    [ "$(sees 4 --nproc-per-node gpu)" = "0:GPU-2 1:GPU-0" ]
    CUDA_VISIBLE_DEVICES=MIG-1,MIG-3,MIG-0 # of which a process sees one at most
    [ "$(sees 4 --nproc-per-node gpu)" = "0:MIG-1 1:MIG-3 2:MIG-0" ]
    CUDA_VISIBLE_DEVICES=0
    [ "$(sees 4 --nproc-per-node gpu --visible-devices all)" = "0:0" ]
}

@test "more workers than devices share them evenly, which one line says" {
    [ "$(sees 2 --nproc-per-node 4)" = "0:0 1:1 2:0 3:1" ]
    grep -qx 'penstock: 4 workers share 2 CUDA devices, 2 on each' "$tmp/err"
    [ "$(sees 2 --nproc-per-node 3)" = "0:0 1:1 2:0" ]
    grep -qx 'penstock: 3 workers share 2 CUDA devices, 1 or 2 on each' "$tmp/err"
    [ "$(sees 1 --nproc-per-node 2)" = "0:0 1:0" ]
    grep -qx 'penstock: 2 workers share 1 CUDA device' "$tmp/err"
}

@test "--visible-devices all leaves the environment as it is" {
    [ "$(sees 2 --nproc-per-node gpu --visible-devices all)" = "0:all 1:all" ]
    [ "$(sees 2 --nproc-per-node 4 --visible-devices all)" = "0:all 1:all 2:all 3:all" ]
    run sees 2 --visible-devices some
    [ "$status" = 2 ]
    grep -qF "penstock run: --visible-devices is 'some', but must be own or all" "$tmp/err"
}

# A command line that ends with the sentence $1:  refused SENTENCE FLAGS_OF_RUN...
refused() {
    local code=0 sentence=$1
    shift
    pen run --standalone "$@" true >"$tmp/refused" 2>&1 || code=$?
    [ "$code" = 2 ] || { echo "code $code"; cat "$tmp/refused"; return 1; }
    grep -qF -- "penstock: $sentence" "$tmp/refused" || { cat "$tmp/refused"; return 1; }
}

@test "without a device, what needs one is refused with the remedy, and the rest runs on the host" {
    export CUDA_VISIBLE_DEVICES=
    refused "--nproc-per-node is gpu, but there is no CUDA device (CUDA_VISIBLE_DEVICES lists none); use a number, cpu or auto" \
        --nproc-per-node gpu
    refused "--device is cuda, but there is no CUDA device (CUDA_VISIBLE_DEVICES lists none); use --device host or auto" --device cuda
    PET_NPROC_PER_NODE=gpu refused "PET_NPROC_PER_NODE is gpu, but there is no CUDA device"
    PENSTOCK_DEVICE=cuda refused "--device is cuda, but there is no CUDA device"
    [ "$(sees 2 --nproc-per-node auto | wc -w)" = "$(nproc)" ]
    [ "$(sees 2 --nproc-per-node 1 --device auto)" = "0:" ]
    if [ ! -e /dev/nvidiactl ]; then
        LD_LIBRARY_PATH=$build/lib CUDA_VISIBLE_DEVICES=0 refused "--nproc-per-node is gpu, but there is no CUDA device (built with" \
            --nproc-per-node gpu
        [ "$(LD_LIBRARY_PATH=$build/lib CUDA_VISIBLE_DEVICES=0 sees 2 --nproc-per-node 1)" = "0:0" ]
    fi
}

@test "hostile lists of devices are refused with a sentence" {
    export CUDA_ON_HOST_DEVICES=2
    CUDA_VISIBLE_DEVICES='$(reboot)' refused "CUDA_VISIBLE_DEVICES has '\$(reboot)', which is not a device; list numbers, GPU-UUID"
    CUDA_VISIBLE_DEVICES=0,0 refused "CUDA_VISIBLE_DEVICES lists '0' twice; list each device once"
    CUDA_VISIBLE_DEVICES=0,7 refused "CUDA_VISIBLE_DEVICES lists 2 devices, but the driver finds 1"
    CUDA_VISIBLE_DEVICES=$(printf '9%.0s' {1..100000}) refused "CUDA_VISIBLE_DEVICES has '9999"
}

@test "Slurm's number of devices is believed only where CUDA_VISIBLE_DEVICES names them" {
    export CUDA_ON_HOST_DEVICES=4 SLURMD_NODENAME=n1 SLURM_GPUS_ON_NODE=2
    refused "Slurm assigned 2 of 4 devices, but CUDA_VISIBLE_DEVICES does not list them; list them there" --nproc-per-node gpu
    [ "$(CUDA_VISIBLE_DEVICES=1,3 sees 4 --nproc-per-node gpu)" = "0:1 1:3" ]
    [ "$(SLURM_GPUS_ON_NODE=4 sees 4 --nproc-per-node gpu | wc -w)" = 4 ]
    local text
    for text in x -1 4x 99999999999999999999 ''; do
        SLURM_GPUS_ON_NODE=$text refused "SLURM_GPUS_ON_NODE is '$text', but must be a number from 0 to 128"
    done
    unset SLURMD_NODENAME # a login node, or an interactive shell there
    [ "$(sees 4 --nproc-per-node gpu | wc -w)" = 4 ]
}

@test "the launcher itself never opens the driver" {
    CUDA_ON_HOST_DEVICES=2 pen run --standalone --no-prefix --nproc-per-node gpu \
        sh -c 'grep -c libcuda /proc/$PPID/maps || :' >"$tmp/out" 2>"$tmp/err"
    [ "$(sort -u "$tmp/out")" = 0 ] || { cat "$tmp/out" "$tmp/err"; return 1; }
}

# Each worker sees only its own device, as device 0, and yet they map each other's memory.
@test "workers that see one device each sum in each other's device memory" {
    local devices
    for devices in 1 2 4; do
        CUDA_ON_HOST_DEVICES=$devices pen run --standalone --nproc-per-node 4 --device cuda "$programs/on_device" sum \
            >"$tmp/out" 2>"$tmp/err" || { cat "$tmp/out" "$tmp/err"; return 1; }
        [ "$(grep -c '^\[[0-3]\] sum 10 10 ' "$tmp/out")" = 4 ] || { cat "$tmp/out"; return 1; }
        [ "$(grep -o 'sees .*' "$tmp/out" | sort -u | wc -l)" = "$devices" ]
        ! grep -q 'go through the host' "$tmp/err" || { cat "$tmp/err"; return 1; }
    done
}

# In clear text on one host, so that machine 1 needs no join line from machine 0.
@test "a machine with another number of devices is turned away with a sentence; with equal numbers ranks go on" {
    local port code=0
    port=$(free_port)
    two=(--nnodes 2 --master-addr 127.0.0.1 --master-port "$port" --encryption clear --job "$job" --nproc-per-node gpu --init-timeout-ms 60000)
    CUDA_ON_HOST_DEVICES=2 MARK=$mark "$penstock" run --node-rank 0 "${two[@]}" "$programs/on_device" sum >"$tmp/0.out" 2>"$tmp/0.err" 3>&- &
    launcher=$!
    CUDA_ON_HOST_DEVICES=3 pen run --node-rank 1 "${two[@]}" "$programs/on_device" sum >"$tmp/1.out" 2>"$tmp/1.err" || code=$?
    [ "$code" = 1 ]
    grep -qF "penstock: this machine starts 3 workers, but machine 0 starts 2; all machines need the same --nproc-per-node" "$tmp/1.err" ||
        { cat "$tmp/1.err"; return 1; }
    CUDA_ON_HOST_DEVICES=2 pen run --node-rank 1 "${two[@]}" "$programs/on_device" sum >"$tmp/1.out" 2>"$tmp/1.err"
    wait "$launcher"
    [ "$(sort "$tmp"/[01].out | grep -o '^.*sum 10 10' | paste -sd ' ')" = "[0] sum 10 10 [1] sum 10 10 [2] sum 10 10 [3] sum 10 10" ]
    nothing_is_left
}
