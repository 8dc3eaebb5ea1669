# tensors.bats - training tensors on a device, with the fake CUDA driver (driver/): the host cannot touch the device's
# memory, and its streams run in random order.
#   ON_GPU=1  with the real driver and a real GPU

load ../support/job
load ../support/units

unit_words=(steps=3 rows=40 clip=60 persistence_threshold=1000)

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
    units hier --servers 2 -- mode=ps-hier device=cuda
    units ddp -- mode=allreduce own=1 device=cuda
    units zero1 -- mode=zero1 device=cuda
    units zero2 -- mode=zero2 device=cuda
    units zero3 -- mode=zero3 device=cuda
    units zero2-servers --servers 2 -- mode=zero2 device=cuda
    units zero3-servers --servers 2 -- mode=zero3 device=cuda
    same_steps host ps ps-held hier ddp zero1 zero2 zero3 zero2-servers zero3-servers
    nothing_is_left
}

@test "streams in any order: values arrive before they are used, and gradients are complete before they are sent" {
    units host --servers 2 -- mode=ps-bsp own=1
    for seed in 1 2 3; do
        export CUDA_ON_HOST_SEED=$seed
        units "ps-$seed" --servers 2 -- mode=ps-bsp own=1 device=cuda lazy=1 look=1
        units "zero3-$seed" --servers 1 -- mode=zero3 device=cuda lazy=1 max_reuse=0 prefetch_backward=post look=1
        units "full-$seed" -- mode=full_shard device=cuda lazy=1 max_reuse=0
        same_steps host "ps-$seed" "zero3-$seed" "full-$seed"
    done
    nothing_is_left
}

@test "gradients of micro-batches are summed on the device with the bits of the host" {
    units host --servers 1 -- mode=ps-bsp own=1 accum=3
    units ps --servers 1 -- mode=ps-bsp own=1 accum=3 device=cuda lazy=1
    units zero2 --servers 1 -- mode=zero2 accum=3 device=cuda
    units last -- mode=zero2 accum=3 accum_reduce=last device=cuda
    same_steps host ps zero2 last
    units each-host -- mode=zero3 accum=3
    units each -- mode=zero3 accum=3 device=cuda
    same_steps each-host each
    units diverge-host --servers 1 -- mode=zero3 accum=2 diverge=1
    units diverge --servers 1 -- mode=zero3 accum=2 diverge=1 device=cuda
    same_steps diverge-host diverge
    nothing_is_left
}

@test "device tensors are pushed and pulled one by one, by blocking calls" {
    "$programs/on_device" verbs commit=eager >"$tmp/alone"
    cat "$tmp/alone"
    diff - "$tmp/alone" <<-END
	committed 1.5 4.5 sum 275000
	own 0.5 0.5 sum 50000
	other 1 1 sum 100000
	pulled 1 1 sum 100000
	pen_push('t'): device memory needs a call that waits; pass req NULL, or use pen_ready() and pen_step_end() to overlap
	END
    pen run --standalone --no-prefix --job "$job" --servers 1 --nproc-per-node 1 "$programs/on_device" verbs commit=eager >"$tmp/served"
    diff "$tmp/alone" "$tmp/served"
}

@test "values and gradients may move on the device while the program trains" {
    "$programs/on_device" stay >"$tmp/stay"
    "$programs/on_device" bind | diff "$tmp/stay" -
    grep -q 'bound -5 -17 sum -1000000' "$tmp/stay"
}

@test "restoring a snapshot brings its values to the device" {
    run "$programs/on_device" restore "store=$tmp/store"
    echo "$output"
    [ "$status" = 0 ]
    [ "$(grep -c '^kept -1.5 -7.5 sum -400000$' <<<"$output")" = 2 ]
    [ "$(grep -c '^end -5 -17 sum -1000000$' <<<"$output")" = 2 ]
}

@test "an impossible device is refused with a sentence: a second one, none at all" {
    [ -n "${ON_GPU:-}" ] || CUDA_ON_HOST_DEVICES=2 "$programs/on_device" two | grep -Fx \
        "'second' is on cuda device 1, but this context uses device 0; run one process for each device"
    run env CUDA_VISIBLE_DEVICES= "$programs/units" device=cuda
    echo "$output"
    [ "$status" = 1 ]
    grep -q "device=cuda: built with CUDA .*; use device=host, or see .penstock doctor." <<<"$output"
}

@test "a gradient that a device never computes ends the step at its deadline, by name" {
    "$programs/on_device" stuck | grep -Fx "the gradient of 't': waited 0.1 s for cuda device 0 to finish its queue; \
look for a kernel that does not end, or raise deadline_ms"
}

@test "each worker of a node uses the device of its local rank" {
    [ -z "${ON_GPU:-}" ] || skip "needs two devices"
    CUDA_ON_HOST_DEVICES=2 units two --servers 1 -- mode=ps-bsp device=cuda
    units host --servers 1 -- mode=ps-bsp
    same_steps host two
}
