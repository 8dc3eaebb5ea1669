# faults.bats - a driver that shares nothing, maps nothing or reuses addresses: jobs go on, with the same sums.

load ../support/job
load ../support/units

setup() {
    job_setup
    [ -e "$build/tests/gpu/driver/libcuda.so.1" ] || skip "built without CUDA"
    export LD_LIBRARY_PATH=$build/tests/gpu/driver:$build/lib
}
teardown() { job_teardown; }

# Sums of two workers in $tmp/NAME.sums, all it printed in $tmp/NAME.log:  job NAME DEVICES [VARIABLE=VALUE...] [-- RUN_FLAGS...]
job() {
    local name=$1 devices=$2 variables=()
    shift 2
    while [ $# -gt 0 ] && [ "$1" != -- ]; do variables+=("$1"); shift; done
    timeout 60 env CUDA_ON_HOST_DEVICES="$devices" "${variables[@]}" "$penstock" run --standalone --no-prefix --nproc-per-node 2 \
        "${@:2}" "$programs/on_device" reduce device=cuda >"$tmp/$name.log" 2>&1 || { cat "$tmp/$name.log"; return 1; }
    grep '^rank' "$tmp/$name.log" | sort >"$tmp/$name.sums"
    [ "$(grep -c ' round ' "$tmp/$name.sums")" = 16 ]
}

# The job of $1 has the sums of `right`, and passed the host's memory, for this reason, on both workers.
went_through_host() {
    diff "$tmp/right.sums" "$tmp/$1.sums"
    [ "$(grep -c "go through the host: .*$2" "$tmp/$1.log")" = 2 ] || { cat "$tmp/$1.log"; return 1; }
}

@test "a driver that shares or opens no memory, on one worker or on all: sums are right, and both say that the host carries them" {
    local devices call
    job right 1
    for devices in 1 2; do
        for call in cuIpcGetMemHandle=801 cuIpcOpenMemHandle=217 cuIpcOpenMemHandle=999; do
            job all $devices CUDA_ON_HOST_FAILS=$call
            went_through_host all "(${call#*=})\|rank [01] cannot share its device with others"
            job one $devices CUDA_ON_HOST_FAILS=$call CUDA_ON_HOST_FAILS_RANK=1
            went_through_host one "(${call#*=})\|rank 1 cannot share its device with others"
        done
    done
    nothing_is_left
}

@test "a driver that shares or opens no events: auto needs none; stream goes through the host, and names the remedy" {
    local call
    job right 2
    for call in cuIpcGetEventHandle=801 cuIpcOpenEventHandle=400; do
        job auto 2 CUDA_ON_HOST_FAILS=$call
        diff "$tmp/right.sums" "$tmp/auto.sums"
        ! grep -q 'through the host' "$tmp/auto.log" || return 1
        job shared 1 CUDA_ON_HOST_FAILS=$call
        diff "$tmp/right.sums" "$tmp/shared.sums"
        job stream 2 CUDA_ON_HOST_FAILS=$call CUDA_ON_HOST_FAILS_RANK=1 -- --device-backend stream
        went_through_host stream "device_backend=stream, but rank 1 cannot [a-z]* the events of rank [01]'s device; use --visible-devices all"
    done
    job visible 2 CUDA_ON_HOST_EVENTS=visible -- --device-backend stream
    went_through_host visible "device_backend=stream, but rank 0 cannot open the events of rank 1's device; use --visible-devices all"
    nothing_is_left
}

@test "kernels that are loaded at their first launch, which waits for the device: a wait of spin ends, also in training" {
    job right 2
    job lazy 2 CUDA_ON_HOST_LAZY=1
    diff "$tmp/right.sums" "$tmp/lazy.sums"
    units host -- mode=allreduce steps=3 rows=40 own=1
    CUDA_ON_HOST_LAZY=1 CUDA_ON_HOST_DEVICES=2 units lazy -- mode=allreduce steps=3 rows=40 own=1 device=cuda lazy=1 bucket_bytes=100000
    same_steps host lazy
    nothing_is_left
}

@test "calls of two groups that begin in opposite order do not wait for each other, also where a device has one queue" {
    local seed variable
    for variable in CUDA_ON_HOST_ONE_QUEUE CUDA_ON_HOST_LAZY; do
        for seed in 1 2 3 4; do
            export CUDA_ON_HOST_SEED=$seed
            timeout 20 env $variable=1 CUDA_ON_HOST_DEVICES=2 "$penstock" run --standalone --no-prefix --nproc-per-node 2 \
                "$programs/on_device" crossed device=cuda >"$tmp/crossed"
            sort -u "$tmp/crossed" | diff - <(echo "sum 4 16 sum 900000")
        done
    done
    nothing_is_left
}

@test "memory that workers free and allocate again at the same addresses: no collective works on what was there before" {
    local devices
    for devices in 1 2; do
        CUDA_ON_HOST_REUSE=1 CUDA_ON_HOST_DEVICES=$devices pen run --standalone --no-prefix --nproc-per-node 2 \
            "$programs/on_device" renew device=cuda >"$tmp/renew" 2>"$tmp/renew.err"
        sort -u "$tmp/renew" | sort -V | diff - <(for i in {0..15}; do echo "sum $((2 * i + 2)) $((2 * i + 14)) sum $((200000 * i + 700000))"; done)
        ! grep 'through the host' "$tmp/renew.err" || return 1
    done
    nothing_is_left
}

@test "no memory of a device is freed while another worker maps it" {
    local name
    CUDA_ON_HOST_COUNTS=$tmp/counts.%p job sums 1
    CUDA_ON_HOST_COUNTS=$tmp/counts.%p job apart 2
    for name in allreduce zero1 zero3; do
        CUDA_ON_HOST_COUNTS=$tmp/counts.%p CUDA_ON_HOST_DEVICES=2 units "$name" -- mode=$name device=cuda lazy=1 steps=3 rows=40
    done
    [ "$(cat "$tmp"/counts.* | grep -c '^sdk.sync.cuIpcOpenMemHandle ')" = 10 ]
    cat "$tmp"/counts.* | grep free.while && return 1
    nothing_is_left
}
