#!/usr/bin/env bash
# compare.sh - compares all_reduce of float32 sums with OpenMPI and Gloo, by turns, as a Markdown table:
#
#     tests/bench/peers/compare.sh [--ranks N] [--pairs N] [--transport shm|tcp] [--min-bytes B] [--max-bytes B]
#                                  [--factor F] [--seconds S] [--build DIR] [--plot FILE.png]  >docs/results/YYYY-MM-DD-all-reduce.md
#
# One pair is one run of ours (registered and foreign buffers) and one of each tuning of each installed peer. For each
# size a peer counts with the tuning whose median is best; a ratio is the median over the pairs of our algbw by the
# peer's in the same pair. OpenMPI is tuned by binding (none, core) and single copy (CMA on, off); with more ranks than
# cores it yields when idle, and binding to cores is left out. Gloo, always over TCP, is tuned by algorithm.
# --transport tcp disables our shared memory and OpenMPI's.
set -euo pipefail
cd "$(dirname "$0")/../../.."
build=build plot="" ranks=2 pairs=7 transport=shm min=4096 max=16777216 factor=4 seconds=0.1
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2 ;;
    --ranks) ranks=$2 ;;
    --pairs) pairs=$2 ;;
    --transport) transport=$2 ;;
    --min-bytes) min=$2 ;;
    --max-bytes) max=$2 ;;
    --factor) factor=$2 ;;
    --seconds) seconds=$2 ;;
    --plot) plot=$2 ;;
    *) echo "compare.sh: '$1' is no flag; the first lines of this file list them" >&2; exit 2 ;;
    esac
    shift 2
done
penstock=$build/bin/penstock
peers=$build/bin/peers
cmake --build "$build" --target bench_peers >&2
lines=$(mktemp) table=$(mktemp)
trap 'rm -f "$lines" "$table"' EXIT

# note CONTENDER ROUND: turns the JSON lines of one run into "contender round bytes algbw".
note() {
    grep '"bytes":' | while IFS= read -r line; do
        field() { sed -n "s/.*\"$1\":\([0-9.eE+-]*\).*/\1/p" <<<"$line"; }
        echo "$1 $2 $(field bytes) $(field algbw_GBps)"
    done >>"$lines"
}

ours() { # REGISTERED
    "$penstock" bench all-reduce --ranks "$ranks" --min-bytes "$min" --max-bytes "$max" --factor "$factor" \
        --seconds "$seconds" --pairs 1 --no-limit --registered "$1" --over "$transport" --json
}

openmpi() { # WORDS
    # shellcheck disable=SC2086
    timeout 600 mpirun --allow-run-as-root $1 -n "$ranks" "$peers/bench_openmpi" "$min" "$max" "$factor" "$seconds"
}

gloo() { # ALGORITHM
    timeout 600 "$peers/bench_gloo" "$ranks" "$1" "$min" "$max" "$factor" "$seconds"
}

tunings=()
if [ -x "$peers/bench_openmpi" ]; then
    common="--mca btl self,vader"
    [ "$transport" = tcp ] && common="--mca btl self,tcp"
    [ "$ranks" -gt "$(nproc)" ] && common="--oversubscribe $common --mca mpi_yield_when_idle 1"
    for bind in none core; do
        [ "$bind" = core ] && [ "$ranks" -gt "$(nproc)" ] && continue
        for copy in cma none; do
            [ "$transport" = tcp ] && [ "$copy" = none ] && continue
            tunings+=("--bind-to $bind $common --mca btl_vader_single_copy_mechanism $copy")
        done
    done
fi
algorithms=()
[ -x "$peers/bench_gloo" ] && algorithms=(ring bcube halving_doubling)

for ((round = 1; round <= pairs; round++)); do
    echo "pair $round of $pairs" >&2
    ours 1 | note registered "$round"
    for i in "${!tunings[@]}"; do openmpi "${tunings[$i]}" | note "openmpi:$i" "$round"; done
    for algorithm in "${algorithms[@]}"; do gloo "$algorithm" | note "gloo:$algorithm" "$round"; done
    [ "$transport" = shm ] && ours 0 | note foreign "$round"
done

echo "# all_reduce beside OpenMPI and Gloo, $(date -u +%Y-%m-%d)"
echo
echo "float32 SUM, out of place, $ranks ranks on $(nproc) cores of $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $transport; $("$penstock" version | head -1)."
echo "algbw = bytes / time of one call, the mean over ranks, in GB/s (1e9 bytes), as in nccl-tests. Medians of $pairs pairs; ratios with (smallest to largest)."
echo
echo "    tests/bench/peers/compare.sh --ranks $ranks --pairs $pairs --transport $transport --min-bytes $min --max-bytes $max --factor $factor --seconds $seconds"
echo
[ ${#tunings[@]} -gt 0 ] && mpirun --version | sed -n '1s/mpirun (\(.*\)) /\1 /;1s/$/, the best of:/p' && echo
for i in "${!tunings[@]}"; do echo "    $i  mpirun ${tunings[$i]} -n $ranks bench_openmpi $min $max $factor $seconds"; done
[ ${#algorithms[@]} -gt 0 ] && printf '\nGloo %s, TCP on loopback, the best of: %s.\n' "$(dpkg-query -W -f '${Version}' libgloo-dev 2>/dev/null || echo '(unknown version)')" "${algorithms[*]}"
echo
sort -k1,1 -k3,3n -k2,2n "$lines" | awk -v table="$table" -f tests/bench/peers/compare.awk
if [ -n "$plot" ]; then
    gnuplot -e "data='$table'; image='$plot'; title_text='all_reduce of float32, $ranks ranks, $transport'" scripts/plot_coll.gp
fi
