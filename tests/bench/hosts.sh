#!/usr/bin/env bash
# hosts.sh - all_reduce between hosts (tests/support/hosts.bash) with one worker each, in clear text, beside what the
# network gives and beside Gloo, by turns.
#   tests/bench/hosts.sh rate [BUILD_DIR] [PAIRS] [BYTES] [RATE] [HOSTS]     cables that carry RATE (1gbit) each way
#   tests/bench/hosts.sh delay [BUILD_DIR] [PAIRS] [BYTES] [MS] [HOSTS]      a switch that holds each frame for MS (20)
#   tests/bench/hosts.sh unix [BUILD_DIR] [PAIRS] [BYTES]                    two workers of this host that share no
#                                                                            memory: Unix-domain sockets and TCP
# BYTES may be several words.  Prints one JSON object for each: medians in milliseconds, and ratios as median, smallest and
# largest over the pairs: `of_bound`, 2 (n - 1) / n * BYTES / B by our time, with B of limit_socket on all hosts at once;
# `to_gloo`, the time of Gloo (its best algorithm in that pair) by ours; `to_tcp`, the time over TCP by ours.
set -euo pipefail
BATS_TEST_DIRNAME=$(cd "$(dirname "$0")/../cluster" && pwd)
cd "$BATS_TEST_DIRNAME/../.."
what=${1:?rate, delay or unix}
BUILD=$(realpath "${2:-build}")
export BUILD
pairs=${3:-7} hosts=${6:-4}
case $what in
rate) sizes=${4:-33554432} arg=${5:-1gbit} ;;
delay) sizes=${4:-4096 65536 1048576 16777216} arg=${5:-20} ;;
unix) sizes=${4:-4096 65536 1048576 16777216} arg="" hosts=2 ;;
*) echo "hosts.sh: '$what'; the first lines of this file list what there is" >&2; exit 2 ;;
esac
source tests/support/job.bash
source tests/support/netfault.bash # tool_start
source tests/support/hosts.bash
job_setup
trap job_teardown EXIT

# Calls of one size: as many as some seconds hold, at the least 4.
times() { local n=$((67108864 / $1)); echo $((n < 4 ? 4 : n > 40 ? 40 : n)); }
median() { sed -n 's/.*timed median_ms \([0-9.]*\).*/\1/p' "$1"; }

ours() { # BYTES
    local k program=("$programs/timed" calls "$1" "$(times "$1")")
    local flags=(--nnodes "$hosts" --nproc-per-node 1 --master-addr node0 --encryption clear --deterministic yes)
    for k in $(seq 0 $((hosts - 1))); do
        begin_on "node$k" "run$k" "$penstock" run "${flags[@]}" --node-rank "$k" "${program[@]}" </dev/null
    done
    for k in $(seq 0 $((hosts - 1))); do ends "run$k" 0 120 >&2; done
    median "$tmp/run0.out"
}

gloo() { # BYTES: the best algorithm's time
    local algorithm k folder best=""
    [ -x "$BUILD/bin/peers/bench_gloo" ] || { echo 0; return; }
    for algorithm in ring bcube halving_doubling; do
        folder=$(mktemp -d "$tmp/gloo-XXXXXX")
        for k in $(seq 0 $((hosts - 1))); do
            begin_on "node$k" "gloo$k" "$BUILD/bin/peers/bench_gloo" "$hosts" "$algorithm" "$1" "$1" 2 \
                "$([ "$1" -gt 1048576 ] && echo 2 || echo 0.5)" "$k" "$(host_address "node$k")" "$folder" </dev/null
        done
        for k in $(seq 0 $((hosts - 1))); do ends "gloo$k" 0 120 >&2; done
        best="$best $(sed -n 's/.*time_us":\([0-9.]*\).*/\1/p' "$tmp/gloo0.out")"
    done
    tr ' ' '\n' <<<"$best" | sort -g | awk 'NF { print $1 / 1000; exit }'
}

own_address=$(hostname -I | cut -d" " -f1) # loopback has no TCP in a job
# Two launchers here, as of two containers:  on_one_host BYTES FOLDER FOLDER   where each keeps its sockets
on_one_host() {
    local k folders=("$2" "$3") pids=()
    for k in 0 1; do
        mkdir -p -m 700 "$tmp/${folders[k]}"
        XDG_RUNTIME_DIR=$tmp/${folders[k]} MARK=$mark "$penstock" run --nnodes 2 --nproc-per-node 1 --node-rank "$k" \
            --master-addr "$own_address" --encryption clear --shared-memory no --deterministic yes \
            "$programs/timed" calls "$1" "$((16 * $(times "$1")))" </dev/null >"$tmp/one$k.out" 2>"$tmp/one$k.err" &
        pids+=($!)
    done
    for k in 0 1; do wait "${pids[k]}" || cat "$tmp/one$k.err" >&2; done
    median "$tmp/one0.out"
}

summary='
import json, sys, statistics
what, arg, size, hosts = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rows = [[float(x) for x in line.split()] for line in sys.stdin]
def spread(ratios): return [round(x, 3) for x in (statistics.median(ratios), min(ratios), max(ratios))]
out = {"bench": "hosts", "what": what + (" " + arg if arg else ""), "hosts": hosts, "bytes": size, "pairs": len(rows),
       "ms": round(statistics.median(r[0] for r in rows), 3)}
if what == "rate":
    out["limit_GBps"] = round(statistics.median(r[2] for r in rows), 4)
    out["of_bound"] = spread([2 * (hosts - 1) / hosts * size / (r[2] * 1e6) / r[0] for r in rows])
if what == "unix":
    out["to_tcp"] = spread([r[1] / r[0] for r in rows])
elif all(r[1] > 0 for r in rows):
    out["ms_gloo"] = round(statistics.median(r[1] for r in rows), 3)
    out["to_gloo"] = spread([r[1] / r[0] for r in rows])
print(json.dumps(out), flush=True)'

if [ "$what" != unix ]; then
    hosts_start "$hosts"
    for k in $(seq 0 $((hosts - 1))); do
        case $what in
        rate) on "node$k" tc qdisc add dev eth0 root tbf rate "$arg" burst 128k latency 50ms ;;
        delay) nsenter -t "$bridge_pid" -n ip link set "p$k" nomaster ;;
        esac
    done
fi
if [ "$what" = delay ]; then
    # shellcheck disable=SC2046
    tool_start switch nsenter -t "$bridge_pid" -n "$programs/netswitch" $(seq -f 'p%g' 0 $((hosts - 1)))
    read -r -t 5 -u "$switch_out" _
    tool_say switch rule "*" "*" 0 "$arg" 0
fi
for size in $sizes; do
    for _ in $(seq "$pairs"); do
        case $what in
        rate) echo "$(ours "$size") $(gloo "$size") $(cable_limit "$hosts")" ;;
        delay) echo "$(ours "$size") $(gloo "$size")" ;;
        unix) echo "$(on_one_host "$size" shared shared) $(on_one_host "$size" first second)" ;;
        esac
    done | python3 -c "$summary" "$what" "$arg" "$size" "$hosts"
done
[ "$what" = unix ] || hosts_stop
