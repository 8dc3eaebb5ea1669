# tensors.bats - training tensors on a device, with the fake CUDA driver (driver/): the host cannot touch the device's
# memory, and its streams run in random order.
#   ON_GPU=1  with the real driver and a real GPU
#   TRIES=3   orders of its streams

load ../support/job
load ../support/units

tries=${TRIES:-3}
unit_words=(steps=3 rows=10 embed=30 clip=30 persistence_threshold=1000)

setup() {
    job_setup
    [ -e "$build/tests/gpu/driver/libcuda.so.1" ] || skip "built without CUDA"
    [ -n "${ON_GPU:-}" ] || LD_LIBRARY_PATH=$build/tests/gpu/driver:$build/lib
}
teardown() { job_teardown; }

@test "every mode trains device tensors with the bits of host tensors, clipped" {
    units host --servers 2 -- mode=ps-bsp own=1
    grep -q 'clip 0\.' "$tmp/host.out"
    grep -q 'clip 1 ' "$tmp/host.out"
    units ps --servers 2 -- mode=ps-bsp own=1 device=cuda
    units ps-held --servers 1 -- mode=ps-bsp device=cuda
    units flat --servers 2 -- mode=ps-bsp two_level=no own=1 device=cuda
    units hier --servers 2 -- mode=ps-hier device=cuda
    units ddp -- mode=allreduce own=1 device=cuda
    units zero1 -- mode=zero1 device=cuda
    units zero2 -- mode=zero2 device=cuda
    units zero3 -- mode=zero3 device=cuda
    units hybrid -- mode=hybrid_shard device=cuda
    units zero2-servers --servers 2 -- mode=zero2 device=cuda
    units zero3-servers --servers 2 -- mode=zero3 device=cuda
    same_steps host ps ps-held flat hier ddp zero1 zero2 zero3 hybrid zero2-servers zero3-servers
    nothing_is_left
}

@test "streams in any order: values arrive before they are used, and gradients are complete before they are sent" {
    units host --servers 2 -- mode=ps-bsp own=1
    for seed in $(seq "$tries"); do
        export CUDA_ON_HOST_SEED=$seed
        units "ps-$seed" --servers 2 -- mode=ps-bsp own=1 device=cuda lazy=1 look=1
        CUDA_ON_HOST_DEVICES=2 units "hier-$seed" --servers 1 -- mode=ps-hier own=1 device=cuda lazy=1 look=1 bucket_bytes=25000
        units "zero3-$seed" --servers 1 -- mode=zero3 device=cuda lazy=1 max_reuse=0 prefetch_backward=post look=1
        units "full-$seed" -- mode=full_shard device=cuda lazy=1 max_reuse=0
        same_steps host "ps-$seed" "hier-$seed" "zero3-$seed" "full-$seed"
    done
    nothing_is_left
}

@test "a host that runs ahead of the device: each update has the rates of its own count, also after skipped steps" {
    local words=(steps=9 own=1 ahead=1 bad=3 "schedule=WarmupLR warmup_num_steps=6 warmup_max_lr=0.05")
    units host -- mode=allreduce "${words[@]}"
    [ "$(grep -c 'outcome 1 .* bad 1 ' "$tmp/host.out")" = 2 ]
    [ "$(grep -c 'outcome 0 ' "$tmp/host.out")" = 16 ]
    for seed in $(seq "$tries"); do
        export CUDA_ON_HOST_SEED=$seed
        units "ahead-$seed" -- mode=allreduce "${words[@]}" device=cuda
        CUDA_ON_HOST_DEVICES=2 units "apart-$seed" -- mode=allreduce "${words[@]}" device=cuda bucket_bytes=25000
        units "zero1-$seed" -- mode=zero1 "${words[@]}" device=cuda
        CUDA_ON_HOST_DEVICES=2 units "zero1-apart-$seed" -- mode=zero1 "${words[@]}" device=cuda bucket_bytes=25000
        CUDA_ON_HOST_DEVICES=2 units "zero2-$seed" -- mode=zero2 "${words[@]}" own=0 device=cuda bucket_bytes=25000
        units "hier-$seed" --servers 1 -- mode=ps-hier "${words[@]}" device=cuda
        CUDA_ON_HOST_DEVICES=2 units "zero3-$seed" -- mode=zero3 "${words[@]}" own=0 device=cuda bucket_bytes=25000
        same_steps host "ahead-$seed" "apart-$seed" "zero1-$seed" "zero1-apart-$seed" "zero2-$seed" "zero3-$seed" "hier-$seed"
    done
    units four-host --nproc-per-node 4 -- mode=allreduce "${words[@]}" accum=2
    CUDA_ON_HOST_DEVICES=4 units four --nproc-per-node 4 -- mode=allreduce "${words[@]}" accum=2 device=cuda
    CUDA_ON_HOST_DEVICES=2 units four-zero1 --nproc-per-node 4 -- mode=zero1 "${words[@]}" accum=2 device=cuda
    CUDA_ON_HOST_DEVICES=2 units four-ps --nproc-per-node 4 --servers 2 -- mode=ps-bsp "${words[@]}" accum=2 device=cuda
    CUDA_ON_HOST_DEVICES=4 units four-zero3 --nproc-per-node 4 -- mode=zero3 "${words[@]}" own=0 accum=2 accum_reduce=last device=cuda
    same_steps four-host four four-zero1 four-zero3 four-ps
    nothing_is_left
}

@test "the sum of a node has the bits of the host in the type of the wire, and wide with deterministic=node" {
    local order
    for order in yes node; do
        units "host-$order" --servers 1 -- mode=ps-hier own=1 wire=bf16 deterministic=$order
        CUDA_ON_HOST_DEVICES=2 units "$order" --servers 1 -- mode=ps-hier own=1 wire=bf16 deterministic=$order device=cuda
        same_steps "host-$order" "$order"
    done
    ! same_steps yes node >"$tmp/differ" || return 1
}
