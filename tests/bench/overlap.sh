#!/usr/bin/env bash
# overlap.sh - whether communication hides behind computing: lazy steps of 16 layers over hosts (tests/support/hosts.bash)
# with one worker each, whose cables carry RATE. Computing is sleep, because all hosts share this machine's processors.
#   tests/bench/overlap.sh [BUILD_DIR] [PAIRS] [RATE] [HOSTS] [BYTES] [MS]
#     RATE   of each host's cable, for tc (1gbit)      BYTES  of the model (33554432)
#     HOSTS  (4)                                       MS     forward; backward is twice as long (200)
# For ps-bsp with a server on each host, for allreduce, and for allreduce without a decision, by turns: the step alone
# (one worker, no cable), communication alone (no computing), both with a unit for each layer, and both without units.
# Prints one JSON object a line: medians in milliseconds; `over_bound`, the ratio of both to the larger of the two alone, with the smallest and the largest; and
# `to_whole`, that of layers to a program without units.
set -euo pipefail
BATS_TEST_DIRNAME=$(cd "$(dirname "$0")/../cluster" && pwd)
cd "$BATS_TEST_DIRNAME/../.."
export BUILD=${1:-build}
pairs=${2:-7} rate=${3:-1gbit} hosts=${4:-4} bytes=${5:-33554432} ms=${6:-200}
source tests/support/job.bash
source tests/support/hosts.bash
job_setup
trap job_teardown EXIT
hosts_start "$hosts"
for k in $(seq 0 $((hosts - 1))); do
    on "node$k" tc qdisc add dev eth0 root tbf rate "$rate" burst 128k latency 50ms
done

median() { sed -n 's/.*timed median_ms \([0-9.]*\).*/\1/p' "$1"; }

# Milliseconds of a step:  took WHAT MS FLAGS...
took() {
    local k program=("$programs/timed" "$1" "$bytes" 8 "$2") flags=(--nnodes "$hosts" --nproc-per-node 1 "${@:3}")
    begin_on node0 run0 "$penstock" run "${flags[@]}" --node-rank 0 --master-addr node0 "${program[@]}" </dev/null
    join_line run0
    for k in $(seq $((hosts - 1))); do
        begin_on "node$k" "run$k" "$penstock" run "${flags[@]}" --node-rank "$k" --join - "${program[@]}" <<<"$line"
    done
    for k in $(seq 0 $((hosts - 1))); do ends "run$k" 0 120; done
    median "$tmp/run0.out"
}

alone() {
    on node0 "$penstock" run --standalone --nproc-per-node 1 "$programs/timed" layers "$bytes" 8 "$ms" >"$tmp/alone.out" 2>"$tmp/alone.err"
    median "$tmp/alone.out"
}

series() { # FLAGS...
    for _ in $(seq "$pairs"); do
        echo "$(alone) $(took layers 0 "$@") $(took layers "$ms" "$@") $(took whole "$ms" "$@")"
    done | python3 -c '
import json, sys, statistics
rows = [[float(x) for x in line.split()] for line in sys.stdin]
out = {"bench": "overlap", "what": sys.argv[1], "rate": sys.argv[2], "hosts": int(sys.argv[3]), "pairs": len(rows)}
for i, name in enumerate(("alone", "network", "layers", "whole")):
    out["ms_" + name] = round(statistics.median(r[i] for r in rows), 1)
def spread(ratio): return [round(x, 2) for x in (statistics.median(ratio), min(ratio), max(ratio))]
out["over_bound"] = spread([r[2] / max(r[0], r[1]) for r in rows])
out["to_whole"] = spread([r[2] / r[3] for r in rows])
print(json.dumps(out))' "$*" "$rate" "$hosts"
}

series --servers "$hosts" --mode ps-bsp
series --mode allreduce
series --mode allreduce --commit eager
hosts_stop
