#!/usr/bin/env bash
# encrypted.sh - what encryption costs: the same in clear text, over TLS 1.3, and over ZeroMQ with CURVE, by turns.
#   tests/bench/encrypted.sh hosts [BUILD_DIR] [PAIRS] [BYTES] [RATE] [HOSTS]  all_reduce between hosts (tests/support/hosts.bash)
#                                                                     with one worker each, whose cables carry RATE (1gbit)
#   tests/bench/encrypted.sh steps [BUILD_DIR] [PAIRS] [BYTES] [RATE] [HOSTS]  there, a step of ps-bsp, a server on each host
#   tests/bench/encrypted.sh loopback [BUILD_DIR] [PAIRS] [BYTES]              all_reduce of two workers over TCP on loopback
#   tests/bench/encrypted.sh push-pull [BUILD_DIR] [PAIRS] [BYTES:KEYS]        there, `penstock bench push-pull`
# BYTES may be several words.  Prints one JSON object for each: medians (milliseconds; push-pull: GB/s), and ratios as
# median, smallest and largest over the pairs: `tls_to_clear` and `tls_to_curve`, speeds; `of_bound`, 2 (n - 1) / n * BYTES / B
# by the time of each of the three, with B of limit_socket on all hosts at once.
set -euo pipefail
BATS_TEST_DIRNAME=$(cd "$(dirname "$0")/../cluster" && pwd)
cd "$BATS_TEST_DIRNAME/../.."
what=${1:?hosts, steps, loopback or push-pull}
BUILD=$(realpath "${2:-build}")
export BUILD
pairs=${3:-7} rate=${5:-1gbit} hosts=${6:-4}
case $what in
hosts) sizes=${4:-4096 1048576 4194304 16777216 33554432 67108864} ;;
steps) sizes=${4:-33554432} ;;
loopback) sizes=${4:-4096 65536 1048576 4194304 16777216 67108864} ;;
push-pull) sizes=${4:-4194304:16 4096:1024} ;;
*) echo "encrypted.sh: '$what'; the first lines of this file list what there is" >&2; exit 2 ;;
esac
source tests/support/job.bash
source tests/support/hosts.bash
job_setup
trap job_teardown EXIT

flags_of() { # clear, tls, curve
    case $1 in
    clear) echo --encryption clear ;;
    tls) echo --encryption on ;;
    curve) echo --encryption on --transport zmq ;;
    esac
}

# Calls of one size: as many as some seconds hold, at the least 4.
times() { local n=$((134217728 / $1)); echo $((n < 4 ? 4 : n > 400 ? 400 : n)); }

median() { sed -n 's/.*timed median_ms \([0-9.]*\).*/\1/p' "$1"; }

between_hosts() { # calls|step BYTES FLAGS...
    local k program=("$programs/timed" "$1" "$2" "$(times "$2")") flags=(--nnodes "$hosts" --nproc-per-node 1 "${@:3}")
    begin_on node0 run0 "$penstock" run "${flags[@]}" --node-rank 0 --master-addr node0 "${program[@]}" </dev/null
    case "${flags[*]}" in
    *clear*) line=node0 ;;
    *) join_line run0 ;;
    esac
    for k in $(seq $((hosts - 1))); do
        if [ "$line" = node0 ]; then
            begin_on "node$k" "run$k" "$penstock" run "${flags[@]}" --node-rank "$k" --master-addr node0 "${program[@]}" </dev/null
        else
            begin_on "node$k" "run$k" "$penstock" run "${flags[@]}" --node-rank "$k" --join - "${program[@]}" <<<"$line"
        fi
    done
    for k in $(seq 0 $((hosts - 1))); do ends "run$k" 0 120 >&2; done
    median "$tmp/run0.out"
}

on_loopback() { # BYTES FLAGS...
    "$penstock" run --standalone --nproc-per-node 2 --local-sockets no --shared-memory no "${@:2}" \
        "$programs/timed" calls "$1" "$((2 * $(times "$1")))" 2>"$tmp/loopback.err" >"$tmp/loopback.out" ||
        cat "$tmp/loopback.err" >&2
    median "$tmp/loopback.out"
}

push_pull() { # BYTES:KEYS tcp|tls|curve
    "$penstock" bench push-pull --over "$2" --bytes "${1%:*}" --keys "${1#*:}" --pairs 1 --limit no --json 2>/dev/null |
        sed 's/.*"algbw_GBps":\([0-9.]*\).*/\1/'
}

summary='
import json, sys, statistics
what, size, hosts, rate = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
rows = [[float(x) for x in line.split()] for line in sys.stdin]
names = ("clear", "tls", "curve")
def spread(ratios): return [round(x, 3) for x in (statistics.median(ratios), min(ratios), max(ratios))]
power = -1 if what == "push-pull" else 1  # of times, or of speeds
out = {"bench": "encrypted", "what": what, "bytes": size, "pairs": len(rows)}
out["GBps" if power < 0 else "ms"] = {name: round(statistics.median(r[i] for r in rows), 3) for i, name in enumerate(names)}
out["tls_to_clear"] = spread([(r[0] / r[1]) ** power for r in rows])
out["tls_to_curve"] = spread([(r[2] / r[1]) ** power for r in rows])
if len(rows[0]) > 3:
    bytes_out = 2 * (hosts - 1) / hosts * int(size)
    out.update(hosts=hosts, rate=rate, limit_GBps=round(statistics.median(r[3] for r in rows), 4))
    out["of_bound"] = {name: spread([bytes_out / (r[3] * 1e6) / r[i] for r in rows]) for i, name in enumerate(names)}
print(json.dumps(out), flush=True)'

case $what in hosts | steps)
    hosts_start "$hosts"
    for k in $(seq 0 $((hosts - 1))); do
        on "node$k" tc qdisc add dev eth0 root tbf rate "$rate" burst "$([ "$rate" = 1gbit ] && echo 128k || echo 1m)" latency 50ms
    done ;;
esac
for size in $sizes; do
    for _ in $(seq "$pairs"); do
        for way in clear tls curve; do
            # shellcheck disable=SC2046
            case $what in
            hosts) between_hosts calls "$size" $(flags_of $way) --deterministic yes ;;
            steps) between_hosts step "$size" $(flags_of $way) --servers "$hosts" --mode ps-bsp ;;
            loopback) on_loopback "$size" $(flags_of $way) ;;
            push-pull) push_pull "$size" "${way/clear/tcp}" ;;
            esac
        done
        case $what in hosts | steps) cable_limit "$hosts" ;; esac
    done | paste -d' ' $([[ $what != hosts && $what != steps ]] || echo -) - - - | python3 -c "$summary" "$what" "$size" "$hosts" "$rate"
done
case $what in hosts | steps) hosts_stop ;; esac
