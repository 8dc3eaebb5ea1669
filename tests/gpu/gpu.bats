# gpu.bats - on a machine with an NVIDIA GPU: `make gpu-test`.  Elsewhere every test is skipped.

setup() {
    cd "$BATS_TEST_DIRNAME/../.."
    programs=${BUILD:-$PWD/build}/tests/gpu
    [ -x "$programs/kernels" ] || skip "built without CUDA"
}

# Runs a program of this folder; its exit code 77 means that there is no device.
on_gpu() {
    run timeout --kill-after=10 300 "$programs/$1" "${@:2}"
    echo "$output"
    [ "$status" != 77 ] || skip "${lines[0]}"
    [ "$status" = 0 ]
}

@test "folds on the device are the host's, bit for bit" { on_gpu kernels fold; }
@test "sums on the device are the host's, bit for bit" { on_gpu kernels sum; }
@test "the device weighs, measures and decides as the host, bit for bit" { on_gpu kernels step; }
@test "every update rule on the device gives the host's bits, with rows by the device's own count" { on_gpu kernels update; }
@test "memory of the device is out of the host's reach" { on_gpu kernels touch; }
@test "one stream of the device waits for another's event" { on_gpu kernels stream; }
@test "a device folds data on another device of the same process" { on_gpu kernels peer; }
@test "copies on the device are right" { on_gpu kernels copy; }
@test "every wait of a kernel ends: by its flags, the abort word, or its deadline" { on_gpu kernels flag; }
@test "every collective is right for every type: 2 processes on one device, hostflag" { on_gpu collectives 2 hostflag; }
@test "every collective is right for every type: 4 processes on one device, hostflag" { on_gpu collectives 4 hostflag; }
@test "every collective is right for every type: 2 processes on one device, stream" { on_gpu collectives 2 stream; }
@test "every collective is right for every type: 4 processes on one device, stream" { on_gpu collectives 4 stream; }
@test "every collective is right for every type: 2 processes on two devices, stream" { on_gpu collectives 2 stream 2; }
@test "every collective is right for every type: 2 processes on two devices, spin" { on_gpu collectives 2 spin 2; }
@test "all_reduce of 256 MiB by 2 processes reaches 0.8 of the memory's bound" { on_gpu bandwidth 2 0.8; }
@test "all_reduce of 256 MiB by 4 processes is measured" { on_gpu bandwidth 4; }

@test "a fused AdamW step reaches 0.9 of a copy kernel's bandwidth" { on_gpu update 0.9; }

@test "the network of gpt2 on the device gives the CPU's loss and gradients" {
    cmake --build "${BUILD:-$PWD/build}" --target gpu_gpt2
    on_gpu gpt2 check
}
