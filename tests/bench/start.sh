#!/usr/bin/env bash
# start.sh - the time of a job that trains almost nothing, from its command to its end: two builds, by turns.
#   tests/bench/start.sh BUILD_A BUILD_B [PAIRS]
# Jobs: 1 server and 2 workers; 8 workers, with 1 server and without; 4 workers, with shared memory and over sockets.
# Prints one JSON object for each: medians in milliseconds, and the median, smallest and largest of the ratios B / A.
set -euo pipefail
cd "$(dirname "$0")/../.."
a=$1 b=$2 pairs=${3:-7}

took() { # BUILD FLAGS...: milliseconds
    local begun=${EPOCHREALTIME/[.,]/}
    "$1/bin/penstock" run --standalone "${@:2}" "$1/bin/examples/linear" >/dev/null 2>&1 || { echo "a job of $1 failed" >&2; return 1; }
    echo $(((${EPOCHREALTIME/[.,]/} - begun) / 1000))
}

compare() { # NAME FLAGS...
    local one other
    for _ in $(seq "$pairs"); do
        one=$(took "$a" "${@:2}")
        other=$(took "$b" "${@:2}")
        echo "$one $other"
    done | python3 -c '
import json, sys, statistics
rows = [tuple(map(float, line.split())) for line in sys.stdin]
ratio = [b / a for a, b in rows]
print(json.dumps({"bench": "start", "job": sys.argv[1], "pairs": len(rows), "a_ms": statistics.median(a for a, _ in rows), "b_ms": statistics.median(b for _, b in rows),
    "ratio": round(statistics.median(ratio), 3), "ratio_min": round(min(ratio), 3), "ratio_max": round(max(ratio), 3)}))' "$1"
}

compare "1 server, 2 workers" --nproc-per-node 2 --servers 1
compare "1 server, 8 workers" --nproc-per-node 8 --servers 1
compare "8 workers" --nproc-per-node 8
compare "4 workers, shared memory" --nproc-per-node 4
PENSTOCK_SHARED_MEMORY=no compare "4 workers, sockets" --nproc-per-node 4
