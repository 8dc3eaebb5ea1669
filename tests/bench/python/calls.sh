#!/usr/bin/env bash
# calls.sh - what a call costs from Python beside C, in turn:  tests/bench/python/calls.sh [BUILD_DIR] [PAIRS]
set -euo pipefail
cd "$(dirname "$0")/../../.."
build=$(realpath "${1:-build}")
pairs=${2:-7}
. "$build/env"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cc -O2 -std=gnu11 -o "$tmp/calls" tests/bench/python/calls.c $(pkg-config --cflags --libs penstock)

# Median, smallest and largest.
spread() { sort -n "$1" | awk '{v[NR] = $1} END {printf "%.1f (%.1f to %.1f)", v[int((NR + 1) / 2)], v[1], v[NR]}'; }

compare() { # NAME BYTES CALLS FLAGS...
    local name=$1 bytes=$2 calls=$3
    shift 3
    rm -f "$tmp"/us.*
    for ((i = 0; i < pairs; i++)); do
        penstock run --no-prefix "$@" "$tmp/calls" "$bytes" "$calls" 2>/dev/null >>"$tmp/us.c"
        penstock run --no-prefix "$@" /usr/bin/python3 tests/bench/python/calls.py "$bytes" "$calls" 2>/dev/null >>"$tmp/us.python"
        paste <(tail -n1 "$tmp/us.c") <(tail -n1 "$tmp/us.python") | awk '{print $2 - $1}' >>"$tmp/us.more"
    done
    echo "$name of $bytes bytes, us   C $(spread "$tmp/us.c")   Python $(spread "$tmp/us.python")   more $(spread "$tmp/us.more")"
}

compare push_pull 4096 2000 --servers 1 --mode ps-async
compare push_pull 67108864 20 --servers 1 --mode ps-async
compare all_reduce 4096 4000 --nproc-per-node 2
compare all_reduce 67108864 20 --nproc-per-node 2
