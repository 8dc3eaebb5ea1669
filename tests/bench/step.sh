#!/usr/bin/env bash
# step.sh - the time of a training step of one tensor, from pen_ready to the end of pen_step_end: two builds, by turns.
#   tests/bench/step.sh BUILD_A BUILD_B [PAIRS]
# 2 and 4 workers of one host, in shared memory and over its sockets, in ddp, zero1 and with a server.
# Prints one JSON object for each: medians in microseconds, and the median, smallest and largest of the ratios B / A.
set -euo pipefail
cd "$(dirname "$0")/../.."
a=$1 b=$2 pairs=${3:-7}

took() { # BUILD BYTES TIMES FLAGS...: microseconds
    local out
    out=$("$1/bin/penstock" run --standalone "${@:4}" "$1/tests/programs/timed" step "$2" "$3" 2>/dev/null) ||
        { echo "a job of $1 failed" >&2; return 1; }
    sed -n 's/.*timed median_ms \([0-9.]*\).*/\1/p' <<<"$out"
}

compare() { # NAME BYTES TIMES FLAGS...
    local one other
    for _ in $(seq "$pairs"); do
        one=$(took "$a" "${@:2}")
        other=$(took "$b" "${@:2}")
        echo "$one $other"
    done | python3 -c '
import json, sys, statistics
rows = [tuple(1000 * float(x) for x in line.split()) for line in sys.stdin]
ratio = [b / a for a, b in rows]
print(json.dumps({"bench": "step", "job": sys.argv[1], "pairs": len(rows), "a_us": round(statistics.median(a for a, _ in rows)), "b_us": round(statistics.median(b for _, b in rows)),
    "ratio": round(statistics.median(ratio), 3), "ratio_min": round(min(ratio), 3), "ratio_max": round(max(ratio), 3)}))' "$1"
}

unset PENSTOCK_SHARED_MEMORY
compare "ddp, 2 workers, 16 KiB" 16384 1000 --nproc-per-node 2
compare "ddp, 2 workers, 8 MiB" 8388608 100 --nproc-per-node 2
compare "ddp, 4 workers, 16 KiB" 16384 1000 --nproc-per-node 4
compare "zero1, 2 workers, 16 KiB" 16384 1000 --nproc-per-node 2 --mode zero1
compare "ps-hier, 2 workers, 1 server, 16 KiB" 16384 1000 --nproc-per-node 2 --servers 1 --mode ps-hier
compare "ps-bsp, 2 workers, 1 server, 16 KiB" 16384 1000 --nproc-per-node 2 --servers 1
export PENSTOCK_SHARED_MEMORY=no
compare "ddp, 2 workers, sockets, 16 KiB" 16384 1000 --nproc-per-node 2
compare "ddp, 2 workers, sockets, 8 MiB" 8388608 100 --nproc-per-node 2
compare "ddp, 4 workers, sockets, 16 KiB" 16384 1000 --nproc-per-node 4
