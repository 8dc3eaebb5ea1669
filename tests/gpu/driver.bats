# driver.bats - the code above the CUDA driver, on the fake driver.

load ../support/bats

setup() {
    cd "$BATS_TEST_DIRNAME/../.."
    programs=${BUILD:-$PWD/build}/tests/gpu
    [ -e "$programs/driver/libcuda.so.1" ] || skip "built without CUDA"
}

# Runs a program of this folder on a number of fake devices:  played DEVICES PROGRAM...
played() {
    run timeout --kill-after=10 120 env LD_LIBRARY_PATH="$programs/driver" CUDA_ON_HOST_DEVICES="$1" "$programs/$2" "${@:3}"
    echo "$output"
    [ "$status" = 0 ]
}

@test "only a process that names its folder finds the fake driver" {
    [ ! -e /dev/nvidiactl ] || skip "there is a real one"
    run env -u LD_LIBRARY_PATH "$programs/kernels" touch
    [ "$status" = 77 ]
    played 1 kernels touch
}

@test "memory of the fake device is out of the host's reach" { played 1 kernels touch; }
@test "folds on the fake device are the host's, bit for bit" { played 1 kernels fold; }
@test "sums on the fake device are the host's, bit for bit" { played 1 kernels sum; }
@test "the fake device weighs, measures and decides as the host, bit for bit" { played 1 kernels step; }
@test "every update rule on the fake device gives the host's bits, with rows by the device's own count" { played 1 kernels update; }
@test "the bandwidth of a fused step is measured beside a copy kernel's" { played 1 update 0 100000; }
@test "a fake device folds data on another device of the same process" { played 2 kernels peer; }
@test "copies on the fake device are right" { played 1 kernels copy; }
@test "every wait of a kernel on the fake device ends: by its flags, the abort word, or its deadline" { played 1 kernels flag; }

@test "one stream waits for another's event, in any order of execution" {
    for seed in 1 2 3 4 5; do CUDA_ON_HOST_SEED=$seed played 1 kernels stream; done
}

@test "an event that other processes wait for is not made anew in another context" {
    played 1 kernels context
    [[ $output == "other processes wait for events of the CUDA context that the group's first call used;"* ]]
}

# All kinds and types, but not all pairs: the complete set is for a GPU (gpu.bats).
some_collectives() { played "$3" collectives "$1" "$2" "$3" $((2 * $1 + 1)); }

@test "collectives are right on one fake device: 2 processes, hostflag" { some_collectives 2 hostflag 1; }
@test "collectives are right on one fake device: 4 processes, hostflag" { some_collectives 4 hostflag 1; }
@test "collectives are right on one fake device: 2 processes, stream" { some_collectives 2 stream 1; }
@test "collectives are right on one fake device: 4 processes, stream" { some_collectives 4 stream 1; }
@test "collectives are right on two fake devices: 2 processes, stream" { some_collectives 2 stream 2; }
@test "collectives are right on two fake devices: 4 processes, stream" { some_collectives 4 stream 2; }
@test "collectives are right on two fake devices: 2 processes, spin" { some_collectives 2 spin 2; }

# Every kind that the fake NCCL carries, and only there: its log has a line for each call of each member.
by_nccl() {
    local kind log=$BATS_TEST_TMPDIR/nccl.log
    export NCCL_ON_HOST_LOG=$log
    some_collectives "$1" nccl "$1"
    [[ ${lines[0]} == *", then NCCL" ]]
    for kind in all_reduce reduce reduce_scatter all_gather broadcast "grouped broadcast"; do
        [ "$(grep -c "^$kind " "$log")" -ge "$1" ] || { cat "$log"; return 1; }
    done
}

@test "the fake NCCL carries large collectives of 2 processes on 2 devices: sums in its order, copies, uneven parts" { by_nccl 2; }
@test "the fake NCCL carries large collectives of 4 processes on 4 devices: sums in its order, copies, uneven parts" { by_nccl 4; }

@test "device_backend=nccl is refused, on all members alike, where one cannot start it or two share a device" {
    refused() {
        run timeout 60 env LD_LIBRARY_PATH="$programs/driver" "$@"
        echo "$output"
        [ "$status" = 1 ]
        [ "$(grep -c "device_backend=nccl, but NCCL does not start on rank" <<<"$output")" = 3 ]
        [ "$(grep "device_backend=nccl, but NCCL does not start on rank" <<<"$output" | sort -u | wc -l)" = 1 ]
    }
    refused CUDA_ON_HOST_DEVICES=3 NCCL_ON_HOST_FAILS=1 "$programs/collectives" 3 nccl 3
    [[ $output == *"on rank 1; use device_backend=auto"* ]]
    refused CUDA_ON_HOST_DEVICES=2 "$programs/collectives" 3 nccl 2
    [[ $output == *"on rank "[0-2]", where ranks share a device"* ]] # NCCL tells all of them; one is first
}

# For several orders of the streams:  chained MEMBERS SYNC DEVICES
chained() {
    local seed
    for seed in 1 2; do CUDA_ON_HOST_SEED=$seed played "$3" stream_order "$1" "$2" "$3"; done
}

@test "calls in stream order are right without a wait of the host: 3 processes on one fake device, hostflag" { chained 3 hostflag 1; }
@test "calls in stream order are right without a wait of the host: 4 processes on two fake devices, stream" { chained 4 stream 2; }
@test "calls in stream order are right without a wait of the host: 2 processes on one fake device, stream" { chained 2 stream 1; }
@test "calls in stream order are right without a wait of the host: 2 processes on two fake devices, spin" { chained 2 spin 2; }

@test "calls in stream order are right without a wait of the host: 2 processes on two fake devices, NCCL" {
    export NCCL_ON_HOST_LOG=$BATS_TEST_TMPDIR/nccl.log
    chained 2 nccl 2
    [ "$(grep -c '^all_reduce 40000 ' "$NCCL_ON_HOST_LOG")" -ge 6 ]
}

@test "a driver that lacks a function is not called missing: the function and the remedy are named" {
    [ ! -e /dev/nvidiactl ] || skip "there is a real one"
    echo 'int cuInit(unsigned flags) { return (int)flags; }' | cc -shared -fPIC -o "$BATS_TEST_TMPDIR/libcuda.so.1" -xc -
    run env LD_LIBRARY_PATH="$BATS_TEST_TMPDIR" "$programs/kernels" touch
    echo "$output"
    [ "$status" = 77 ]
    [[ $output == *"libcuda.so.1 lacks cu"*": install a driver for CUDA "*" or newer" ]]
    run env -u LD_LIBRARY_PATH "$programs/kernels" touch
    [[ $output == *"no driver on this machine (libcuda.so.1 not found)" ]]
}

@test "spin is refused if two processes share a fake device" {
    run timeout 60 env LD_LIBRARY_PATH="$programs/driver" "$programs/collectives" 2 spin
    echo "$output"
    [ "$status" = 1 ]
    [[ $output == *"needs a device for each member"* ]]
}

@test "penstock bench measures a collective on memory of a fake device, and verifies its result" {
    local build=${programs%/tests/gpu}
    run timeout 60 env LD_LIBRARY_PATH="$programs/driver" "$build/bin/penstock" bench all-reduce --ranks 2 --bytes 65536 \
        --device cuda --seconds 0.05 --json
    echo "$output"
    [ "$status" = 0 ]
    [[ $output == *'"device":"cuda"'*'"verified":true'* ]]
}

@test "--nproc-per-node gpu and auto are as many workers as devices that are shown; CUDA_VISIBLE_DEVICES counts" {
    local word build=${programs%/tests/gpu}
    for word in gpu auto; do
        run timeout 60 env LD_LIBRARY_PATH="$programs/driver" CUDA_ON_HOST_DEVICES=3 "$build/bin/penstock" run --standalone --no-prefix \
            --nproc-per-node $word sh -c 'echo $LOCAL_WORLD_SIZE'
        [ "$status" = 0 ]
        [ "$(grep -cx 3 <<<"$output")" = 3 ]
    done
    run timeout 60 env LD_LIBRARY_PATH="$programs/driver" CUDA_ON_HOST_DEVICES=3 CUDA_VISIBLE_DEVICES=0,2 "$build/bin/penstock" run \
        --standalone --no-prefix --nproc-per-node gpu sh -c 'echo $LOCAL_WORLD_SIZE'
    [ "$(grep -cx 2 <<<"$output")" = 2 ]
}

@test "no kernel of an update or a decision keeps registers in memory, on any architecture that is built" {
    local file log architecture architectures nvcc cache=${programs%/tests/gpu}/CMakeCache.txt
    nvcc=$(sed -n 's/^CUDAToolkit_NVCC_EXECUTABLE:[A-Z]*=//p' "$cache")
    [ -x "$nvcc" ] || skip "needs nvcc"
    architectures=$("$nvcc" --list-gpu-code | grep -xE 'sm_(80|90|100)')
    [ "$(wc -w <<<"$architectures")" -ge 2 ]
    for file in update step; do
        log=${programs%/tests/gpu}/common/kernels/$file.ptxas # of the build
        ! grep -i warning "$log" || return 1
        for architecture in $architectures; do
            [ "$(grep -c "Compiling entry function .* for '$architecture'" "$log")" -ge 8 ]
        done
        [ "$(grep -c 'bytes spill stores' "$log")" -ge "$(grep -c 'Compiling entry function' "$log")" ]
        ! grep 'bytes spill stores' "$log" | grep -vE ' (0|4) bytes spill stores' || return 1 # 4: around a call
    done
}
