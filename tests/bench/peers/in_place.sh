#!/usr/bin/env bash
# in_place.sh - all_reduce of float32 sums in place in shared memory, 2 ranks, beside OpenMPI in place and a plain loop of
# two threads, by turns, as Markdown tables:
#
#     tests/bench/peers/in_place.sh [--pairs N] [--min-bytes B] [--max-bytes B] [--factor F] [--seconds S] [--build DIR]
#                                   [--before PENSTOCK]  >docs/results/YYYY-MM-DD-in-place.md
#
# One pair is one run of each contender. OpenMPI counts for each size with the tuning whose median is best: single copy by
# CMA, or two copies. --before adds an older penstock, without the flag, as the contender "before". A ratio is the median
# over the pairs of the ratio within the pair.
set -euo pipefail
cd "$(dirname "$0")/../../.."
build=build before="" pairs=7 min=1048576 max=67108864 factor=4 seconds=0.1
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2 ;;
    --before) before=$2 ;;
    --pairs) pairs=$2 ;;
    --min-bytes) min=$2 ;;
    --max-bytes) max=$2 ;;
    --factor) factor=$2 ;;
    --seconds) seconds=$2 ;;
    *) echo "in_place.sh: '$1' is no flag; the first lines of this file list them" >&2; exit 2 ;;
    esac
    shift 2
done
penstock=$build/bin/penstock
peers=$build/bin/peers
cmake --build "$build" --target bench_peers >&2
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT

# note CONTENDER ROUND: turns the JSON lines of one run into "contender round bytes algbw".
note() {
    sed -n "s/.*\"bytes\":\([0-9]*\).*\"algbw_GBps\":\([0-9.eE+-]*\).*/$1 $2 \1 \2/p" >>"$lines"
}

ours() { # PROGRAM REGISTERED IN_PLACE [MORE]
    "$1" bench all-reduce --ranks 2 --min-bytes "$min" --max-bytes "$max" --factor "$factor" --seconds "$seconds" \
        --pairs 1 --no-limit --json --registered "$2" --in-place "$3" "${@:4}"
}

openmpi() { # SINGLE_COPY
    timeout 600 mpirun --allow-run-as-root --bind-to none --mca btl self,vader \
        --mca btl_vader_single_copy_mechanism "$1" -n 2 "$peers/bench_openmpi" "$min" "$max" "$factor" "$seconds" 1
}

memories=(foreign registered)
for ((round = 1; round <= pairs; round++)); do
    echo "pair $round of $pairs" >&2
    for r in 1 0; do
        ours "$penstock" $r 1 | note "in:${memories[$r]}" "$round"
        [ -n "$before" ] && ours "$before" $r 1 | note "in:${memories[$r]}:before" "$round"
        ours "$penstock" $r 1 --overwrite 1 | note "flag:${memories[$r]}" "$round"
        ours "$penstock" $r 0 | note "out:${memories[$r]}" "$round"
        [ -n "$before" ] && ours "$before" $r 0 | note "out:${memories[$r]}:before" "$round"
    done
    "$peers/bench_loop" "$min" "$max" "$factor" "$seconds" | note loop "$round"
    [ -x "$peers/bench_openmpi" ] && for copy in cma none; do openmpi $copy | note "openmpi:$copy" "$round"; done
done

echo "# all_reduce in place in shared memory, $(date -u +%Y-%m-%d)"
echo
echo "float32 SUM, 2 ranks on $(nproc) cores of $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1); $("$penstock" version | head -1)."
echo "algbw = bytes / time of one call, the mean over ranks, in GB/s (1e9 bytes). Medians of $pairs pairs with (smallest to largest)."
echo
echo "    tests/bench/peers/in_place.sh --pairs $pairs --min-bytes $min --max-bytes $max --factor $factor --seconds $seconds"
echo
awk -f tests/bench/peers/in_place.awk "$lines"
