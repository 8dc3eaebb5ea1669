#!/usr/bin/env bash
# bench.sh - the figures of the README, each with its limit measured in the same run:  scripts/bench.sh BUILD_DIR
# Writes BUILD_DIR/bench/results.jsonl and a table of it to stdout.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
penstock=$build/bin/penstock
out=$build/bench
mkdir -p "$out"
: >"$out/results.jsonl"

echo "machine  $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg)"
echo "version  $("$penstock" version | head -1)   $(date -u +%Y-%m-%d)"
echo

measure() {
    echo "\$ penstock bench $*"
    "$penstock" bench "$@" --json 2>/dev/null | tee -a "$out/results.jsonl" | tr -d '{}"' | tr ',' '\n' |
        grep -E '^ *(algbw_GBps|busbw_GBps|limit_GBps|limit_lanes|write_GBps|stall|stall_min|stall_max|quiet_us_p99|busy_us_p99|snapshots|ratio|ratio_min|ratio_max|ops_per_s|time_us_p50|time_us_p99) *:' | sed 's/^ */    /'
    echo
}
measure push-pull --servers 1 --ranks 1 --bytes 4194304 --keys 16 --over tcp
measure push-pull --servers 1 --ranks 1 --bytes 4096 --keys 1024 --over tcp
measure push-pull --servers 1 --ranks 1 --bytes 4194304 --keys 16 --commit decide
measure push-pull --servers 2 --ranks 2 --bytes 1048576 --keys 16
measure optim --rule adamw --elements 16777216
measure optim --rule adamw --elements 16777216 --threads 2
measure snapshot --steps 200 --dir "$out"
measure all-reduce --ranks 2 --bytes 1048576
measure all-reduce --ranks 2 --bytes 16777216
measure all-reduce --ranks 2 --bytes 16777216 --registered 0
measure all-reduce --ranks 4 --bytes 16777216
measure all-reduce --ranks 2 --bytes 16777216 --over tcp
measure all-to-all --ranks 2 --bytes 16777216
# A plot of all sizes.  For comparison with OpenMPI and Gloo, if installed: tests/bench/peers/compare.sh
"$penstock" bench all-reduce --ranks 2 --plot "$out/all-reduce.png" 2>/dev/null
