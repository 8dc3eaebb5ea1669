#!/usr/bin/env bash
# step.sh - the time of a training step of one tensor, from pen_ready to the end of pen_step_end: two builds, by turns.
#   tests/bench/step.sh BUILD_A BUILD_B [PAIRS]
# 2 and 4 workers of one host, in ddp, zero1 and with a server: with the defaults, then ddp without shared memory, which
# is the way that workers of several hosts take.
# Prints one JSON object for each: medians in microseconds, and the median, smallest and largest of the ratios B / A.
set -euo pipefail
cd "$(dirname "$0")/../.."
a=$1 b=$2 pairs=${3:-7} unit=us
source tests/bench/by_turns.bash

took() { # BUILD BYTES TIMES FLAGS...: microseconds
    local out
    out=$("$1/bin/penstock" run --standalone "${@:4}" "$1/tests/programs/timed" step "$2" "$3" 2>/dev/null) ||
        { echo "a job of $1 failed" >&2; return 1; }
    sed -n 's/.*timed median_ms \([0-9.]*\).*/\1/p' <<<"$out" | awk '{ print 1000 * $1 }'
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
