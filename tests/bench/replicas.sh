#!/usr/bin/env bash
# replicas.sh - the cost of a copy of the model on another server: steps with --replicas 1 and without, by turns.
#   tests/bench/replicas.sh [BUILD_DIR] [PAIRS]
# Prints one JSON object: the median of the ratios of step times (with / without), the smallest and the largest.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build}
pairs=${2:-7}
flags=(--servers 2 --ranks 2 --commit decide --over tcp --limit=no --pairs 3 --json)
one() { "$build/bin/penstock" bench push-pull "${flags[@]}" --replicas "$1" 2>/dev/null; }
for _ in $(seq "$pairs"); do
    printf '%s\n%s\n' "$(one 0)" "$(one 1)"
done | python3 -c '
import json, sys, statistics
rows = [json.loads(line) for line in sys.stdin]
without, copied = rows[0::2], rows[1::2]
ratio = [a["algbw_GBps"] / b["algbw_GBps"] for a, b in zip(without, copied)]
print(json.dumps({"bench": "replicas", "pairs": len(ratio), "bytes": rows[0]["bytes"] * rows[0]["keys"], "ranks": rows[0]["ranks"],
    "servers": rows[0]["servers"], "ratio": round(statistics.median(ratio), 3), "ratio_min": round(min(ratio), 3), "ratio_max": round(max(ratio), 3),
    "algbw_GBps_without": round(statistics.median(r["algbw_GBps"] for r in without), 3),
    "algbw_GBps_with": round(statistics.median(r["algbw_GBps"] for r in copied), 3)}))'
