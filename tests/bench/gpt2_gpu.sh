#!/usr/bin/env bash
# gpt2_gpu.sh - gpt2 on GPUs beside PyTorch, and with a server:  tests/bench/gpt2_gpu.sh [--dry] [B [T [ACCUM]]]
#
# The preset 124m in bf16 with ACCUM (4) micro-batches of B (32) sequences of T (1024) tokens a step and GPU. Each of
# RUNS (7) rounds runs on one GPU gpt2 alone; gpt2 with one server on this host (ps, zero2), which has masters and state
# and runs AdamW; and PyTorch with torch.compile, fused AdamW and its own attention. With 2 GPUs and more, it also runs
# gpt2 in mode ddp with a worker on each, and PyTorch's DistributedDataParallel over NCCL on the same GPUs. PyTorch takes
# part if PYTHON has a torch that finds the GPUs; else the reason is printed.
# Prints the tokens a second of each run's median step and its MFU: 6 N + 6 L C T flops a token over the rate of
# cuBLASLt's matrix products in the same process (PyTorch's and ddp's: in the run alone before it). Then the medians
# with the smallest and the largest, the ratio of a step with a server to one without, and the ratio of our tokens a
# second to PyTorch's, alone and in ddp, each over the two runs of one round. Tokens are random: the result of learning
# does not matter here.
# --dry: a tiny model on the fake driver of tests/gpu, PyTorch on the CPU over Gloo; the figures then mean nothing.
#   BUILD=DIR  the build (build)   GPUS=N (all)   RUNS=7   STEPS=20 of a run   MODES="ps zero2"   PRESET=124m
#   PYTHON=python3
set -u
BATS_TEST_DIRNAME=$(cd "$(dirname "$0")" && pwd)
. "$BATS_TEST_DIRNAME/../support/job.bash"
job_setup
trap job_teardown EXIT
export LIMIT=1800 PENSTOCK_LOG_LEVEL=error
is_dry=no
[ "${1:-}" = --dry ] && { is_dry=yes; shift; }
python=${PYTHON:-python3} runs=${RUNS:-7} modes=${MODES:-ps zero2}
if [ $is_dry = yes ]; then
    rows=${1:-2} length=${2:-16} accum=${3:-2} steps=${STEPS:-3} preset=tiny vocab=256
    size=(--layers 2 --heads 2 --channels 32 --block "$length")
    flags=(--plugin "$build/tests/gpu/plugin/libgpt2_cuda.so")
    gpus=${GPUS:-2}
    export LD_LIBRARY_PATH=$build/tests/gpu/driver:$build/lib CUDA_ON_HOST_DEVICES=$gpus
else
    rows=${1:-32} length=${2:-1024} accum=${3:-4} steps=${STEPS:-20} preset=${PRESET:-124m} vocab=50257
    size=() flags=()
    [ -e /dev/nvidiactl ] || { echo "there is no NVIDIA GPU here; --dry runs everything else"; exit 1; }
    gpus=${GPUS:-$(ls /dev | grep -c '^nvidia[0-9]')}
fi

# A token file in the format of reader.h: 4 million tokens below $vocab.
"$python" - "$tmp/tokens" "$vocab" <<'PY' || { echo "$python is missing, or could not write the tokens"; exit 1; }
import array, random, struct, sys
n, draw = 1 << 22, random.Random(1)
pool = array.array("H", (draw.randrange(int(sys.argv[2])) for _ in range(1 << 16)))
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<256i", 20240520, 1, n, *[0] * 253))
    for _ in range(n >> 16):
        pool.tofile(file)
        pool = pool[1009:] + pool[:1009]
PY

gpus_of() { [[ $1 == *ddp ]] && echo "$gpus" || echo 1; }

# One run:  by_us NAME [LAUNCHER_FLAGS...]  -> $tmp/NAME.json
by_us() {
    local name=$1 start=()
    shift
    [ $# = 0 ] || start=("$penstock" run --standalone --job "$job-$name" --nproc-per-node "$(gpus_of "$name")" "$@")
    MARK=$mark timeout -k 5 "$LIMIT" "${start[@]}" "$examples/gpt2" --preset "$preset" "${size[@]}" --device cuda "${flags[@]}" \
        --precision bf16 --tokens "$tmp/tokens" --length "$length" --batch $((rows * accum * $(gpus_of "$name"))) --grad-accum "$accum" \
        --steps "$steps" --eval-sequences 8 --sample 0 --out "$tmp/$name.json" >"$tmp/$name.out" 2>"$tmp/$name.err" ||
        { echo "$name failed:"; cat "$tmp/$name.out" "$tmp/$name.err"; exit 1; }
}

# The same network, batch and precision in PyTorch, a process on each of N GPUs: median seconds of a step. Fails without
# a torch that finds them:  by_torch N
by_torch() {
    local rank port pids=() code=0
    port=$(free_port)
    for rank in $(seq $(($1 - 1)) -1 0); do
        RANK=$rank WORLD_SIZE=$1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port LD_LIBRARY_PATH='' MARK=$mark \
            timeout -k 5 "$LIMIT" "$python" "$tmp/by_torch.py" "$is_dry" "$(value alone layers)" "$(value alone heads)" \
            "$(value alone channels)" "$length" "$rows" "$length" "$accum" "$steps" "$vocab" 2>"$tmp/torch.$rank" &
        pids+=($!)
    done
    for rank in "${pids[@]}"; do wait "$rank" || code=1; done
    return $code
}

cat >"$tmp/by_torch.py" <<'PY'
import contextlib, os, statistics, sys, time
try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError:
    sys.exit("no torch in " + sys.executable + "; name another with PYTHON=")
dry, (layers, heads, channels, block, rows, length, accum, steps, vocab) = sys.argv[1] == "yes", map(int, sys.argv[2:])
place = "cpu" if dry else "cuda"
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if not dry and torch.cuda.device_count() < ranks:
    sys.exit(f"torch {torch.__version__} finds {torch.cuda.device_count()} of {ranks} GPUs")
if not dry:
    torch.cuda.set_device(rank)
if ranks > 1:
    if not dry and not torch.distributed.is_nccl_available():
        sys.exit(f"torch {torch.__version__} is built without NCCL")
    torch.distributed.init_process_group("gloo" if dry else "nccl", rank=rank, world_size=ranks)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.fc, self.out = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, heads, c // heads).transpose(1, 2) for y in self.qkv(self.ln_1(x)).split(c, 2))
        if hasattr(functional, "scaled_dot_product_attention"):
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            hidden = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
            y = ((q @ k.transpose(2, 3)) * (c // heads) ** -0.5).masked_fill(hidden, -1e30).softmax(3) @ v
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.out(functional.gelu(self.fc(self.ln_2(x)), approximate="tanh"))

class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding((vocab + 127) // 128 * 128, channels), nn.Embedding(block, channels)
        self.blocks, self.ln_f = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(channels)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for one in self.blocks:
            x = one(x)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))

torch.manual_seed(1)
torch.set_float32_matmul_precision("high")
model = Gpt2().to(place)
faster = torch.compile(model) if hasattr(torch, "compile") and not dry else model
if ranks > 1:
    faster = nn.parallel.DistributedDataParallel(faster, device_ids=None if dry else [rank])
optim = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, **({} if dry else {"fused": True}))
torch.manual_seed(2 + rank)
data = torch.randint(vocab, (accum, rows, length + 1), device=place)
seconds = []
for step in range(steps + 3):
    if not dry:
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for i, part in enumerate(data):
        is_last = ranks == 1 or i == accum - 1  # only the last micro-batch sums over the GPUs
        with contextlib.nullcontext() if is_last else faster.no_sync():
            with torch.autocast(place, dtype=torch.bfloat16):
                loss = faster(part[:, :-1].contiguous(), part[:, 1:].contiguous()) / accum
            loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optim.step()
    optim.zero_grad(set_to_none=True)
    loss.item()
    seconds.append(time.perf_counter() - begun)
if rank == 0:
    print(statistics.median(seconds[3:]))
if ranks > 1:
    torch.distributed.destroy_process_group()
PY

# Prints a run's line, and keeps its seconds a step:  note NAME SECONDS MFU
note() {
    local tokens=$((rows * accum * length * $(gpus_of "$1")))
    echo "$1 $2 $3 $tokens" >>"$tmp/all"
    awk -v n="$1" -v s="$2" -v mfu="$3" -v tokens="$tokens" 'BEGIN {
        printf "%-9s %10.0f tokens/s   %9.2f ms a step   MFU %.2f %%\n", n, tokens / s, s * 1e3, mfu * 100}'
}

# MFU of each GPU in a step of $2 seconds, with the network and the GPU rate that run $1 reported.
mfu_of() {
    awk -v s="$2" -v n="$(value "$1" parameters)" -v l="$(value "$1" layers)" -v c="$(value "$1" channels)" -v t="$length" \
        -v tokens=$((rows * accum * length)) -v peak="$(value "$1" peak_gflops)" \
        'BEGIN {print (peak > 0 ? tokens * (6 * n + 6 * l * c * t) / s / (peak * 1e9) : 0)}'
}

# Runs PyTorch, unless that has failed before:  torch_takes_part NAME GPUS
declare -A without
torch_takes_part() {
    [ -z "${without[$1]:-}" ] || return 0
    if seconds=$(by_torch "$2"); then
        note "$1" "$seconds" "$(mfu_of alone "$seconds")"
    else
        without[$1]=yes
        echo "$1 is not compared: $(tail -qn 1 "$tmp/torch.0")"
    fi
}

for _ in $(seq "$runs"); do
    by_us alone
    seconds=$(value alone step_p50_s)
    note alone "$seconds" "$(mfu_of alone "$seconds")"
    for mode in $modes; do
        by_us "$mode" --servers 1 --mode "$mode"
        seconds=$(value "$mode" step_p50_s)
        note "$mode" "$seconds" "$(mfu_of "$mode" "$seconds")"
    done
    torch_takes_part torch 1
    [ "$gpus" -gt 1 ] || continue
    by_us ddp --mode ddp
    seconds=$(value ddp step_p50_s)
    note ddp "$seconds" "$(mfu_of alone "$seconds")"
    torch_takes_part torch-ddp "$gpus"
done
[ "$gpus" -gt 1 ] || echo "ddp is not measured: it needs 2 GPUs, and there is $gpus"

# Median, smallest and largest of the numbers on standard input, multiplied by $1.
spread() {
    sort -g | awk -v by="$1" '{x[NR] = $1 * by}
        END {printf "%.4g (%.4g to %.4g, n = %d)", NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2, x[1], x[NR], NR}'
}

echo
echo "$preset, bf16, $accum x $rows x $length tokens a step, $(value alone parameters) parameters, peak $(value alone peak_gflops) GFLOP/s"
for name in alone $modes torch ddp torch-ddp; do
    grep -q "^$name " "$tmp/all" || continue
    echo "$name: $(gpus_of "$name") GPU, tokens/s $(awk -v n="$name" '$1 == n {print $4 / $2}' "$tmp/all" | spread 1)" \
        "  MFU % $(awk -v n="$name" '$1 == n {print $3}' "$tmp/all" | spread 100)"
done
for mode in $modes; do # each run is compared with the one before it
    echo "a step of $mode takes $(awk -v n="$mode" '$1 == "alone" {a = $2} $1 == n {print $2 / a}' "$tmp/all" | spread 1) times as long as alone"
done
for pair in "alone torch" "ddp torch-ddp"; do
    grep -q "^${pair#* } " "$tmp/all" || continue
    echo "$pair: our tokens/s over PyTorch's $(awk -v us="${pair% *}" -v it="${pair#* }" '
        $1 == us {a = $4 / $2} $1 == it {print a / ($4 / $2)}' "$tmp/all" | spread 1)"
done
