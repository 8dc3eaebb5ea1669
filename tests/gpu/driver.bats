# driver.bats - the code above the CUDA driver, on the fake driver.

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
@test "a fake device folds data on another device of the same process" { played 2 kernels peer; }
@test "copies on the fake device are right" { played 1 kernels copy; }
@test "every wait of a kernel on the fake device ends: by its flags, the abort word, or its deadline" { played 1 kernels flag; }

@test "one stream waits for another's event, in any order of execution" {
    for seed in 1 2 3 4 5; do CUDA_ON_HOST_SEED=$seed played 1 kernels stream; done
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
