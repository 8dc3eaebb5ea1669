#!/usr/bin/env bash
# order.sh - the cost of the order of sums over 2 hosts of 2 workers (tests/support/hosts.bash): `deterministic` yes, node
# and no by turns. all_reduce is 16 MiB of float32; a step is ps-bsp with 2 servers and one tensor of 16 MiB.
#   tests/bench/order.sh [BUILD_DIR] [PAIRS] [RATE]     RATE: of each host's cable, for tc (1gbit); none: that of the bridge
# Prints one JSON object a line: the medians of the ratios of times to those of yes, the smallest and the largest.
set -euo pipefail
BATS_TEST_DIRNAME=$(cd "$(dirname "$0")/../cluster" && pwd)
cd "$BATS_TEST_DIRNAME/../.."
export BUILD=${1:-build}
pairs=${2:-7}
rate=${3:-none}
source tests/support/job.bash
source tests/support/hosts.bash
job_setup
trap job_teardown EXIT
hosts_start 2
if [ "$rate" != none ]; then
    for k in 0 1; do
        on "node$k" tc qdisc add dev eth0 root tbf rate "$rate" burst 128k latency 50ms
    done
fi

# Milliseconds of one job:  took ORDER WHAT FLAGS...
took() {
    local flags=(--nnodes 2 --nproc-per-node 2 --deterministic "$1" "${@:3}") program=("$programs/timed" "$2" 16777216 10)
    begin_on node0 run0 "$penstock" run "${flags[@]}" --node-rank 0 --master-addr node0 "${program[@]}" </dev/null
    join_line run0
    begin_on node1 run1 "$penstock" run "${flags[@]}" --node-rank 1 --join - "${program[@]}" <<<"$line"
    ends run0 0 120
    ends run1 0 120
    sed -n 's/.*timed median_ms \([0-9.]*\).*/\1/p' "$tmp/run0.out"
}

series() { # WHAT FLAGS...
    local order
    for _ in $(seq "$pairs"); do
        for order in yes node no; do echo "$order $(took "$order" "$@")"; done
    done | python3 -c '
import json, sys, statistics
times = {"yes": [], "node": [], "no": []}
for line in sys.stdin:
    order, ms = line.split()
    times[order].append(float(ms))
out = {"bench": "order", "what": sys.argv[1], "rate": sys.argv[2], "pairs": len(times["yes"])}
for order in times: out["ms_" + order] = round(statistics.median(times[order]), 1)
for order in ("node", "no"):
    ratio = [a / b for a, b in zip(times[order], times["yes"])]
    out["ratio_" + order] = [round(x, 2) for x in (statistics.median(ratio), min(ratio), max(ratio))]
print(json.dumps(out))' "$*" "$rate"
}

series all_reduce
series step --servers 2 --mode ps-bsp
hosts_stop
