# tensor_updates.bats - updates on a device, their state, and the calls beside training, with the fake CUDA driver (driver/).
#   ON_GPU=1  with the real driver and a real GPU

load ../support/job
load ../support/units

unit_words=(steps=3 rows=10 embed=30 clip=30 persistence_threshold=1000)

setup() {
    job_setup
    [ -e "$build/tests/gpu/driver/libcuda.so.1" ] || skip "built without CUDA"
    [ -n "${ON_GPU:-}" ] || LD_LIBRARY_PATH=$build/tests/gpu/driver:$build/lib
}
teardown() { job_teardown; }

@test "every update rule runs ahead on the device with the bits of the host" {
    local rule
    for rule in "sgd lr=0.1 momentum=0.9" adam adagrad rmsprop adadelta adamax ftrl lion lamb; do
        units "host-${rule%% *}" -- mode=allreduce own=1 ahead=1 "optim=$rule"
        units "${rule%% *}" -- mode=allreduce own=1 ahead=1 "optim=$rule" device=cuda
        same_steps "host-${rule%% *}" "${rule%% *}"
    done
    CUDA_ON_HOST_DEVICES=2 units parts -- mode=zero1 own=1 ahead=1 optim=lamb device=cuda
    units parts-host -- mode=zero2 ahead=1 optim=lamb
    same_steps host-lamb parts parts-host
}

# 16 MiB: enough for values, gradients and buckets, and not for the moments of AdamW.
@test "offload_optimizer=cpu keeps the optimizer's state in host memory: a model that does not fit trains with the bits of the host" {
    local unit_words=(steps=3 rows=200 clip=60)
    units host -- mode=allreduce
    export CUDA_ON_HOST_DEVICES=2
    CUDA_ON_HOST_MIB=16 units offloaded -- mode=allreduce device=cuda lazy=1 offload_optimizer=cpu
    units zero1 -- mode=zero1 device=cuda lazy=1 offload_optimizer=cpu
    same_steps host offloaded zero1
    if [ -z "${ON_GPU:-}" ]; then
        ! CUDA_ON_HOST_MIB=16 units full -- mode=allreduce device=cuda || return 1
        ! CUDA_ON_HOST_MIB=8 units fuller -- mode=allreduce device=cuda >"$tmp/said" || return 1
        grep -qE "^penstock: device [01] has no [0-9]+ bytes left for optimizer state of '.*'; use offload_optimizer=cpu, or more" "$tmp/said"
    fi
    "$programs/on_device" restore "store=$tmp/store" offload_optimizer=cpu >"$tmp/restored"
    "$programs/on_device" restore "store=$tmp/store2" | diff - "$tmp/restored"
}

@test "a dynamic loss scale is that of the step before, also if the step ends undecided" {
    local words=(own=1 ahead=1 steps=6 bad=2 precision=fp16 applies_loss_scale=yes loss_scale_window=2)
    units host -- mode=allreduce "${words[@]}"
    units device -- mode=allreduce "${words[@]}" device=cuda
    same_steps host device
    grep -q 'outcome 1 ' "$tmp/device.out"
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

@test "a tensor of a device is in Python an array that all calls take, by __cuda_array_interface__" {
    local python
    python=$(BUILD=$build PYTHONPATH=$root/tests/python TMPDIR=$tmp /usr/bin/python3 -c "import tap; print(tap.interpreter())")
    PYTHONPATH=$root/python LD_LIBRARY_PATH=$LD_LIBRARY_PATH CUDA_ON_HOST_DEVICES=1 "$python" - <<-END
		import array, penstock
		with penstock.init(optim="sgd lr=1", steps=2, device="cuda") as job:
		    one = job.register("one", shape=(4,), init="const v=1", frozen=True)
		    w = job.register("w", shape=(4,), init="const v=5")
		    job.commit()
		    for step in job.steps():
		        with step:
		            job.world.all_reduce(one.view(), w.grad())
		    values = array.array("f", bytes(16))
		    job.get_slots([(w, "param", values)])
		    assert list(values) == [3] * 4, values
		    shown = w.view().__cuda_array_interface__
		    assert shown["shape"] == (4,) and shown["typestr"] == "<f4", shown
	END
}

@test "a gradient that the SDK keeps over micro-batches is cleared after the work that reads it, on whatever stream" {
    local seed
    for seed in 1 2 3 4 5; do
        [ "$(CUDA_ON_HOST_SEED=$seed "$programs/on_device" kept accum=2 device=cuda)" = "kept -4.50299978 -4.52099991 sum -451050.00734329224" ]
    done
}

@test "device tensors are pushed and pulled one by one, by blocking calls" {
    "$programs/on_device" verbs commit=eager >"$tmp/alone"
    cat "$tmp/alone"
    diff - "$tmp/alone" <<-END
	fresh 0 0 sum 0
	drawn 0.25 0.25 sum 25000
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

@test "a snapshot between lazy steps has the count of updates that its values have" {
    "$programs/on_device" restore-ahead "store=$tmp/ahead" | diff - <(
        for i in 0 1 2 3 4; do echo "step $i outcome 4"; done
        echo "step 2 outcome 0 applied 3"
    )
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

@test "a stream that is being captured is refused by every call that would use it, with the call and the remedy" {
    local captured="the stream is being captured into a CUDA graph; end the capture first, or name a stream that is not captured"
    "$programs/on_device" captured >"$tmp/captured"
    diff "$tmp/captured" - <<-END
	pen_all_reduce: $captured
	pen_all_reduce: the default stream cannot be used while another stream is captured into a CUDA graph; end the capture first, or name another stream
	pen_wait_stream: $captured
	pen_use: $captured
	pen_release: $captured
	pen_ready: $captured
	END
}

@test "a collective that is under way, also a first one, does not end the capture of another stream" {
    local devices
    for devices in 1 2; do
        CUDA_ON_HOST_DEVICES=$devices pen run --standalone --no-prefix --nproc-per-node 2 --device cuda "$programs/on_device" beside >"$tmp/beside"
        sort -u "$tmp/beside" | diff - <(printf '%s\n' "sum 4 16 sum 900000")
    done
}

@test "pen_wait_stream() makes a stream wait for a collective, and not the host" {
    CUDA_ON_HOST_DEVICES=2 pen run --standalone --no-prefix --job "$job" --nproc-per-node 2 --device cuda "$programs/on_device" follow >"$tmp/follow"
    sort -u "$tmp/follow" | diff - <(printf '%s\n' "caps 1" "sum 4 16 sum 900000")
}

# Rank 1 stops, so that kernels or streams of the others wait for it; then it dies.
# With device_backend=stream a stream waits for an event of the dead process, and so does a program that waits for its own
# stream, as units does without servers.
@test "a worker that dies while its node sums on the device: the others fail with its sentence, and nothing waits for it" {
    local name mode
    [ -z "${ON_GPU:-}" ] || skip "needs three devices"
    for name in spin-ps-hier spin-allreduce spin-zero2 stream-ps-hier; do
        mode=${name#*-}
        export CUDA_ON_HOST_DEVICES=3 PENSTOCK_DEVICE_BACKEND=${name%%-*}
        start $name --log-dir "$tmp/logs-$name" --servers $([ $mode = ps-hier ] && echo 1 || echo 0) --nproc-per-node 3 \
            "$programs/units" "${unit_words[@]/steps=3/steps=1000000}" mode=$mode device=cuda lazy=1
        for _ in $(seq 1000); do
            grep -q 'rank 1 step 5 ' "$tmp/$name.out" && break
            sleep 0.02
        done
        kill_asleep worker 1
        wait_for_end 10
        cat "$tmp/$name.err"
        [ "$(said_by "$tmp/logs-$name" | grep -c '^\[[02]\] units: worker 1 (.*) is gone in step ')" = 2 ]
        nothing_is_left
    done
}
