#!/usr/bin/env bash
# trace.sh - the cost of a timeline: pairs of the same job without and with --trace, by turns.
#   tests/bench/trace.sh [BUILD_DIR] [PAIRS] [STEPS]
# Two servers and two workers train Fashion-MNIST. Prints one JSON object: seconds of both, and the median of the ratios
# with / without, with the smallest and the largest. The order within a pair alternates, so that a machine that heats up
# or gets busier affects both alike.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath "${1:-build}")
pairs=${2:-9}
steps=${3:-400}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export LD_LIBRARY_PATH=$build/lib XDG_RUNTIME_DIR=$folder

seconds() { # [--trace FILE]: seconds of training, as the program prints them
    "$build/bin/penstock" run --standalone --servers 2 --nproc-per-node 2 "$@" "$build/bin/examples/fashion_mnist" \
        --steps "$steps" --out "$folder/result.json" >/dev/null 2>"$folder/err" || { cat "$folder/err" >&2; exit 1; }
    sed -n 's/.*"seconds": *\([0-9.e+-]*\).*/\1/p' "$folder/result.json"
}

seconds >/dev/null # warms up: reads the files and wakes the processor
for ((i = 0; i < pairs; i++)); do
    if ((i % 2)); then
        on=$(seconds --trace "$folder/t.json") off=$(seconds)
    else
        off=$(seconds) on=$(seconds --trace "$folder/t.json")
    fi
    echo "$off $on"
done | tee "$folder/pairs" >&2
records=$(grep -o '"records":[0-9]*' "$folder/t.json" | cut -d: -f2 | awk '{ n += $1 } END { print n }')
awk -v steps="$steps" -v records="$records" '
    { ratio[NR] = $2 / $1; off += $1; on += $2 }
    END {
        for (i = 2; i <= NR; i++)
            for (k = i; k > 1 && ratio[k] < ratio[k - 1]; k--) { x = ratio[k]; ratio[k] = ratio[k - 1]; ratio[k - 1] = x }
        median = NR % 2 ? ratio[(NR + 1) / 2] : (ratio[NR / 2] + ratio[NR / 2 + 1]) / 2
        printf "{\"bench\": \"trace\", \"pairs\": %d, \"steps\": %d, \"records\": %d, \"step_ms_off\": %.3f, \"step_ms_on\": %.3f, ",
            NR, steps, records, 1000 * off / NR / steps, 1000 * on / NR / steps
        printf "\"ratio_median\": %.4f, \"ratio_min\": %.4f, \"ratio_max\": %.4f}\n", median, ratio[1], ratio[NR]
    }' "$folder/pairs"
