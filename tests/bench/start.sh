#!/usr/bin/env bash
# start.sh - the time of a job that trains almost nothing, from its command to its end: two builds, by turns.
#   tests/bench/start.sh BUILD_A BUILD_B [PAIRS]
# Jobs: 1 server and 2 workers; 8 workers, with 1 server and without; 4 workers, with shared memory and over sockets.
# Prints one JSON object for each: medians in milliseconds, and the median, smallest and largest of the ratios B / A.
set -euo pipefail
cd "$(dirname "$0")/../.."
a=$1 b=$2 pairs=${3:-7} unit=ms
source tests/bench/by_turns.bash

took() { # BUILD FLAGS...: milliseconds
    local begun=${EPOCHREALTIME/[.,]/}
    "$1/bin/penstock" run --standalone "${@:2}" "$1/bin/examples/linear" >/dev/null 2>&1 || { echo "a job of $1 failed" >&2; return 1; }
    echo $(((${EPOCHREALTIME/[.,]/} - begun) / 1000))
}

compare "1 server, 2 workers" --nproc-per-node 2 --servers 1
compare "1 server, 8 workers" --nproc-per-node 8 --servers 1
compare "8 workers" --nproc-per-node 8
compare "4 workers, shared memory" --nproc-per-node 4
PENSTOCK_SHARED_MEMORY=no compare "4 workers, sockets" --nproc-per-node 4
