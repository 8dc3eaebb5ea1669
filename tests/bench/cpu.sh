#!/usr/bin/env bash
# cpu.sh - processor time of push and pull: user and system seconds of all processes of the job, for each GB pushed or
# pulled.  A short and a long run are subtracted, so that starting and ending do not count.  Checksums are on, and the
# benchmark's own comparison of values is off.
#   tests/bench/cpu.sh [BUILD_DIR] [PAIRS] [BYTES:KEYS] [OVER]     16 tensors of 4 MiB, over tcp; OVER as of `penstock bench`
# Prints one JSON object: medians, and the smallest and the largest.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build} pairs=${2:-7} size=${3:-4194304:16} over=${4:-tcp}
penstock=$build/bin/penstock

# "CPU_SECONDS BYTES" of a run of so many seconds
run() {
    local TIMEFORMAT="%U %S" out
    out=$({ time "$penstock" bench push-pull --over "$over" --bytes "${size%:*}" --keys "${size#*:}" --pairs 1 --seconds "$1" \
        --verify no --limit no --json 2>/dev/null; } 2>&1)
    python3 -c '
import json, sys
row, times = sys.argv[1].splitlines()
one = json.loads(row)
print(sum(map(float, times.split())), 2 * one["bytes"] * one["keys"] * one["iterations"] / 1e9, one["algbw_GBps"])' "$out"
}

for _ in $(seq "$pairs"); do echo "$(run 0.5) $(run 3)"; done | python3 -c '
import json, sys, statistics
rows = [[float(x) for x in line.split()] for line in sys.stdin]
def spread(values): return [round(x, 3) for x in (statistics.median(values), min(values), max(values))]
print(json.dumps({"bench": "cpu", "size": sys.argv[1], "over": sys.argv[2], "pairs": len(rows),
                  "cpu_s_per_GB": spread([(r[3] - r[0]) / (r[4] - r[1]) for r in rows]), "GBps": spread([r[5] for r in rows])}))' \
    "$size" "$over"
