#!/usr/bin/env bash
# gpt2.sh - compares tokens per second of gpt2 and PyTorch in one run:  tests/bench/gpt2.sh [PAIRS [PRESET...]]
#
# Two processes with one thread each; the same network, initial values, bytes, order and AdamW. PyTorch runs
# DistributedDataParallel over Gloo (tests/bench/peers/gpt2_torch.py); gpt2 runs without servers (ddp) and with one
# server that runs AdamW (ps). All use the OpenBLAS that libblas.so.3 points to. Each of PAIRS (7) rounds runs PyTorch,
# ddp, PyTorch, ps.
# Prints every figure, then for each preset (tiny, 10m) and mode the median of the ratios with the smallest and the
# largest, and the largest relative difference of the losses; ends with 0 if all medians are at least 1 and losses agree
# to 1e-3.
#   BUILD=DIR  the build (build)      STEPS=30  steps of a run, warm-up of 5 included      BATCH=16      PYTHON=/usr/bin/python3
set -u
BATS_TEST_DIRNAME=$(cd "$(dirname "$0")" && pwd)
. "$BATS_TEST_DIRNAME/../support/job.bash"
job_setup
trap job_teardown EXIT
export LIMIT=1800 PENSTOCK_LOG_LEVEL=error
pairs=${1:-7}
[ $# -gt 0 ] && shift
presets=("$@")
[ ${#presets[@]} -gt 0 ] || presets=(tiny 10m)
steps=${STEPS:-30} batch=${BATCH:-16} python=${PYTHON:-/usr/bin/python3}
failed=0

"$python" -c 'import torch' 2>/dev/null || { echo "$python has no torch: install the Debian package python3-torch"; exit 1; }
"$programs/gpt2_judge" - >"$tmp/text" || exit 1

by_torch() { # PRESET -> $tmp/torch.json
    MARK=$mark OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 "$python" "$root/tests/bench/peers/gpt2_torch.py" --nproc 2 --threads 1 \
        --preset "$1" --data "$tmp/text" --batch "$batch" --steps "$steps" --port "$(free_port)" >"$tmp/torch.json" || exit 1
}

by_us() { # PRESET MODE -> $tmp/us.{json,loss}
    local flags=()
    [ "$2" = ps ] && flags=(--servers 1)
    pen run --standalone --job "$job-us" --nproc-per-node 2 --mode "$2" "${flags[@]}" "$examples/gpt2" --preset "$1" \
        --starts-here --data "$tmp/text" --shuffle no --schedule constant --clip 0 --optim "adamw lr=1e-3 beta2=0.95 weight_decay=0.1" \
        --batch "$batch" --steps "$steps" --eval-sequences 2 --sample 0 --out "$tmp/us.json" --loss-log "$tmp/us.loss" \
        >"$tmp/us.out" 2>"$tmp/us.err" || { cat "$tmp/us.out" "$tmp/us.err"; exit 1; }
}

# The largest relative difference of the two losses.
loss_difference() {
    sed 's/.*"losses": \[\([^]]*\)\].*/\1/' "$tmp/torch.json" | tr -d ' ' | tr ',' '\n' | paste -d ' ' - "$tmp/us.loss" |
        awk '{d = ($1 - $3) / $1; if (d < 0) d = -d; if (d > worst) worst = d} END {printf "%.1e", worst}'
}

for preset in "${presets[@]}"; do
    for i in $(seq "$pairs"); do
        for mode in ddp ps; do
            by_torch "$preset"
            by_us "$preset" "$mode"
            theirs=$(value torch tokens_per_s)
            ours=$(awk -v s="$(value us step_p50_s)" -v b="$batch" -v l="$(value us length)" 'BEGIN {printf "%.1f", b * l / s}')
            echo "$preset $mode $ours $theirs $(loss_difference)" | tee -a "$tmp/all" |
                awk '{printf "%-6s %-4s  %9.0f tokens/s   torch %9.0f   ratio %.3f   losses %s\n", $1, $2, $3, $4, $3 / $4, $5}'
        done
    done
done
echo
for preset in "${presets[@]}"; do
    for mode in ddp ps; do
        awk -v p="$preset" -v m="$mode" '$1 == p && $2 == m {print $3 / $4, $5}' "$tmp/all" | sort -g |
            awk -v p="$preset" -v m="$mode" '
                {r[NR] = $1; if ($2 > worst) worst = $2}
                END {median = NR % 2 ? r[(NR + 1) / 2] : (r[NR / 2] + r[NR / 2 + 1]) / 2
                     ok = median >= 1 && worst <= 1e-3
                     printf "%-6s  %-6s %-4s  median ratio %.3f (%.3f to %.3f, %d pairs), losses differ by at most %.1e\n", ok ? "ok" : "FAILED", p, m, median, r[1], r[NR], NR, worst
                     exit !ok}' || failed=1
    done
done
exit $failed
