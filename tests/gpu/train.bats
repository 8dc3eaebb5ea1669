# train.bats - gpt2 trains on a GPU through the SDK, on machines without one: the driver is the fake one of
# tests/gpu/driver, whose memory kills a host that touches it, and the network is the plugin whose kernels run on the
# host.
# Each job lets its streams run in another order.
#   ON_GPU=1  with the real driver, a real GPU and the real library

load ../support/job

setup() {
    job_setup
    plugin=$build/tests/gpu/plugin/libgpt2_cuda.so
    driver=$build/tests/gpu/driver
    [ -n "${ON_GPU:-}" ] && plugin=$build/bin/examples/libgpt2_cuda.so driver=$build/lib
    if [ ! -e "$plugin" ] || [ ! -d "$driver" ]; then skip "built without CUDA"; fi
    printf '%s\n' "In the beginning was the word, and the word was a byte."{,,,,,,,,,,,,,,,} >"$tmp/text"
    export LD_LIBRARY_PATH=$driver:$build/lib PENSTOCK_LOG_LEVEL=error
    seed=0
}

teardown() { job_teardown; }

small=(--layers 2 --channels 32 --heads 2 --block 8 --batch 4 --eval-sequences 8 --log-every 1 --sample 0 --steps 3)

# Trains to the end:  gpt2 NAME LAUNCHER_FLAGS... -- EXAMPLE_FLAGS...   -> $tmp/NAME.{json,loss,out,err}
gpt2() {
    local name=$1 flags
    take_flags "${@:2}"
    shift $((${#flags[@]} + 2))
    seed=$((seed + 1))
    CUDA_ON_HOST_SEED=$seed pen run --standalone --job "$job-$name" "${flags[@]}" "$examples/gpt2" --data "$tmp/text" \
        --plugin "$plugin" "${small[@]}" "$@" --out "$tmp/$name.json" --loss-log "$tmp/$name.loss" >"$tmp/$name.out" 2>"$tmp/$name.err" ||
        { echo "exit $? of job $name:"; cat "$tmp/$name.out" "$tmp/$name.err"; return 1; }
}

# The losses of two runs differ by at most $3, relatively; prints how much of that was used.
same_curve() {
    paste -d ' ' "$tmp/$1.loss" "$tmp/$2.loss" | awk -v most="$3" -v who="$1 $2" '
        {d = ($2 - $4) / $2; if (d < 0) d = -d; if (d > worst) worst = d; n++}
        END {printf "%s: %d steps, largest relative difference %.1e of %s\n", who, n, worst, most; exit !(n > 0 && worst <= most)}'
}

# In float32 only the order of sums differs. In bf16 every row is rounded, by at most 2^-9 of itself; observed: twice
# that.
@test "alone, the GPU has the losses of the CPU: to 1e-4 in fp32, to 2^-8 in bf16; recomputed rows give the same bits" {
    local precision
    for precision in fp32 bf16; do
        gpt2 "cpu-$precision" --nproc-per-node 1 -- --precision $precision
        gpt2 "gpu-$precision" --nproc-per-node 1 -- --precision $precision --device cuda
    done
    same_curve cpu-fp32 gpu-fp32 1e-4
    same_curve cpu-bf16 gpu-bf16 0.0039
    [ "$(value cpu-fp32 device)" = host ] && [ "$(value gpu-fp32 device)" = cuda ]
    awk -v peak="$(value gpu-fp32 peak_gflops)" -v mfu="$(value gpu-fp32 mfu)" 'BEGIN {exit !(peak > 0 && mfu > 0 && mfu < 1)}'
    PENSTOCK_DEVICE=cuda gpt2 again --nproc-per-node 1 -- --recompute --held yes
    same_crc gpu-fp32 again
    [ "$(value again device)" = cuda ]
    nothing_is_left
}

# Without servers, zero2 and zero3 sum micro-batches after the ranks, as on the CPU: equal bits between these two.
@test "2 workers with GPUs: ddp, ps, zero1, zero2, zero3 and full_shard, with micro-batches and clipping, train the same bits" {
    local mode
    for mode in ddp zero1 zero2 zero3 full_shard; do
        gpt2 "$mode" --nproc-per-node 2 --mode "$mode" -- --device cuda --grad-accum 2 --clip 0.5
    done
    for mode in ps zero2 zero3; do
        gpt2 "s-$mode" --nproc-per-node 2 --servers 2 --mode "$mode" -- --device cuda --grad-accum 2 --clip 0.5
    done
    CUDA_ON_HOST_DEVICES=2 gpt2 s1-ps --nproc-per-node 2 --servers 1 --mode ps -- --device cuda --grad-accum 2 --clip 0.5
    [ "$(value ddp clipped)" -ge 1 ]
    same_crc ddp zero1 s-ps s1-ps s-zero2 s-zero3
    same_crc zero2 zero3 full_shard
    same_curve ddp zero3 1e-4
    cmp "$tmp/ddp.loss" "$tmp/s-zero3.loss"
    nothing_is_left
}

@test "2 workers with GPUs in bf16, by tensor cores: the strategies train the same bits, and write the same text" {
    local mode
    small+=(--heads 1) # of 32 channels, as attention.cu requires
    for mode in ddp zero2 zero3; do
        gpt2 "$mode" --nproc-per-node 2 --mode "$mode" -- --device cuda --precision bf16 --sample 12 --sample-out "$tmp/$mode.text"
    done
    gpt2 s-ps --nproc-per-node 2 --servers 2 --mode ps -- --device cuda --precision bf16
    gpt2 s-zero2 --nproc-per-node 2 --servers 1 --mode zero2 -- --device cuda --precision bf16
    same_crc ddp zero2 zero3 s-ps s-zero2
    [ "$(wc -c <"$tmp/ddp.text")" = 12 ]
    cmp "$tmp/ddp.text" "$tmp/zero2.text"
    cmp "$tmp/ddp.text" "$tmp/zero3.text"
    nothing_is_left
}

@test "killed with SIGKILL and resumed, workers with GPUs end with the same parameters and the same losses" {
    local first kept=-1
    gpt2 whole --servers 1 --nproc-per-node 2 -- --device cuda --steps 10
    start cut --servers 1 --nproc-per-node 2 --store "$tmp/store" --snapshot-every 2 \
        "$examples/gpt2" --data "$tmp/text" "${small[@]}" --steps 10 --device cuda --plugin "$plugin" --slow-ms 150
    for _ in $(seq 400); do
        kept=$(status_value snapshot)
        [ "${kept:--1}" -ge 4 ] && break
        kill -0 "$launcher"
        sleep 0.02
    done
    [ "$kept" -ge 4 ]
    kill -9 "$launcher"
    wait_for_end 5
    nothing_is_left
    gpt2 rest --servers 1 --nproc-per-node 2 --store "$tmp/store" --resume -- --device cuda --steps 10
    first=$(head -n 1 "$tmp/rest.loss" | cut -d ' ' -f 1)
    echo "went on from step $first"
    [ "$first" -ge 4 ] && [ "$first" -lt 10 ]
    same_crc whole rest
    cmp <(awk -v from="$first" '$1 >= from' "$tmp/whole.loss") "$tmp/rest.loss"
    nothing_is_left
}

@test "zero3 on GPUs goes on from its snapshot, and so does the CPU" {
    gpt2 whole --nproc-per-node 2 --mode zero3 -- --device cuda --precision bf16 --steps 4
    gpt2 cut --nproc-per-node 2 --mode zero3 --store "$tmp/store" --snapshot-every 2 -- --device cuda --precision bf16 --steps 2
    cp -r "$tmp/store" "$tmp/store-2"
    gpt2 rest --nproc-per-node 2 --mode zero3 --store "$tmp/store" --resume -- --device cuda --precision bf16 --steps 4
    gpt2 cpu --nproc-per-node 2 --store "$tmp/store-2" --resume -- --precision bf16 --steps 2
    same_crc whole rest
    same_crc cut cpu
    nothing_is_left
}

@test "what GPUs export, GPUs and the CPU import" {
    gpt2 made --nproc-per-node 2 --mode zero3 -- --device cuda --starts-here --export "$tmp/model.safetensors"
    gpt2 gpu --nproc-per-node 2 --servers 1 --mode ps -- --device cuda --steps 0 --import "$tmp/model.safetensors"
    gpt2 cpu --nproc-per-node 2 -- --steps 0 --import "$tmp/model.safetensors"
    same_crc made gpu cpu
    [ "$(value made held_loss)" = "$(value gpu held_loss)" ]
    nothing_is_left
}

# gpt2 ends with code 1 and the sentence $1.
says() {
    local code=0 sentence=$1
    shift
    "$examples/gpt2" --data "$tmp/text" "${small[@]}" --device cuda "$@" >"$tmp/says.out" 2>"$tmp/says.err" || code=$?
    [ "$code" = 1 ] || { echo "code $code"; cat "$tmp/says.err"; return 1; }
    grep -qF -- "$sentence" "$tmp/says.err" || { cat "$tmp/says.err"; return 1; }
}

@test "what a GPU cannot do, and what is missing, is a sentence" {
    says "gpt2: on a GPU precision is fp32 or bf16" --plugin "$plugin" --precision fp16
    says "gpt2: on a GPU the channels must be a multiple of 8" --plugin "$plugin" --channels 36
    says "gpt2: the network for a GPU cannot be loaded: $tmp/none.so: cannot open shared object file" --plugin "$tmp/none.so"
    says "gpt2: the network for a GPU cannot be loaded: $build/lib/libpenstock.so: it is of another build" --plugin "$build/lib/libpenstock.so"
    [ -n "${ON_GPU:-}" ] ||
        CUDA_ON_HOST_MIB=1 says "gpt2: the GPU has not enough memory for the network's activations" --plugin "$plugin" --channels 256
    CUDA_VISIBLE_DEVICES='' says "device=cuda: " --plugin "$plugin"
    [ -e /dev/nvidiactl ] || LD_LIBRARY_PATH=$build/lib says "no driver on this machine" --plugin "$plugin"
    cp "$examples/gpt2" "$tmp/gpt2"
    examples=$tmp says "gpt2: the network for a GPU cannot be loaded: $tmp/libgpt2_cuda.so: not there; it is built where the CUDA toolkit is"
}
