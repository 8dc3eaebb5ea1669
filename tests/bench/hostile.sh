#!/usr/bin/env bash
# hostile.sh - the cost of strangers at every port of a training job: steps a second without and with them, by turns.
#   tests/bench/hostile.sh BUILD_DIR [PAIRS [SECONDS [PER_SECOND]]] [-- FLAGS OF penstock run]
# 7 pairs of 4 s + 4 s and 100 attempts a second on each port by default.  Fashion-MNIST with 2 servers and 2 workers.
# The strangers (tests/cluster/programs/hostile.c) run at the lowest priority: the benchmark measures the work they
# cause in the job. Prints one line a pair, then one line of JSON with the median, smallest and largest ratio.
set -eu
cd "$(dirname "$0")/../.."
build=$(realpath "${1:?usage: tests/bench/hostile.sh BUILD_DIR [PAIRS [SECONDS [PER_SECOND]]] [-- FLAGS]}")
shift
numbers=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do numbers+=("$1"); shift; done
[ $# -eq 0 ] || shift
pairs=${numbers[0]:-7} seconds=${numbers[1]:-4} per_second=${numbers[2]:-100}
tmp=$(mktemp -d) launcher=
trap '[ -z "$launcher" ] || kill "$launcher" 2>/dev/null || :; wait; rm -rf "$tmp"' EXIT
export XDG_RUNTIME_DIR=$tmp LD_LIBRARY_PATH=$build/lib

"$build/bin/penstock" run --standalone --job hostile --servers 2 --nproc-per-node 2 "$@" "$build/bin/examples/fashion_mnist" \
    --epochs 10000 >"$tmp/out" 2>"$tmp/err" &
launcher=$!
state() { "$build/bin/penstock" status --json --timeout-ms 5000; }
step() { state | sed -n 's/^[^[]*"step":\(-\{0,1\}[0-9]*\).*/\1/p'; }
for _ in $(seq 100); do
    [ "$(step 2>/dev/null || echo 0)" -gt 200 ] 2>/dev/null && break
    kill -0 "$launcher" || { cat "$tmp/err"; exit 1; }
    sleep 0.2
done
ports=$({ sed 's/.*"address": *"\([^"]*\)".*/\1/' "$tmp/penstock/hostile.json"; echo; state | grep -oE 'tcp://[^"]+'; } |
    sed 's/.*://' | grep -E '^[0-9]+$' | sort -un)
echo "ports: $(echo $ports)   $per_second attempts a second on each"

rate() { # COMMAND...: steps a second while it runs
    local from_step to_step from to
    from_step=$(step) from=$EPOCHREALTIME
    "$@" >>"$tmp/attempts"
    to_step=$(step) to=$EPOCHREALTIME
    echo "$from $to $from_step $to_step" | awk '{printf "%.1f\n", ($4 - $3) / ($2 - $1)}'
}

for pair in $(seq "$pairs"); do
    quiet=$(rate sleep "$seconds")
    besieged=$(rate nice -n 19 "$build/tests/programs/hostile" "$seconds" "$per_second" $ports)
    echo "$quiet $besieged" | awk -v pair="$pair" '{printf "pair %d   %8.1f steps/s alone   %8.1f besieged   ratio %.3f\n", pair, $1, $2, $2 / $1}'
    echo "$quiet $besieged" >>"$tmp/rates"
done
refused=$(state | sed -n 's/^[^[]*"refused":\([0-9]*\).*/\1/p')
kill "$launcher"
wait "$launcher" || :
launcher=
attempts=$(grep -o '"attempts": [0-9]*' "$tmp/attempts" | awk '{n += $2} END {print n}')
awk '{print $2 / $1, $1}' "$tmp/rates" | sort -g | awk -v attempts="$attempts" -v refused="$refused" -v s="$((pairs * seconds))" '
    {ratio[NR] = $1; alone[NR] = $2}
    END {printf "{\"bench\": \"hostile\", \"pairs\": %d, \"ratio_p50\": %.3f, \"ratio_min\": %.3f, \"ratio_max\": %.3f, \"attempts_per_s\": %.0f, \"refused_by_scheduler\": %d}\n",
        NR, ratio[int((NR + 1) / 2)], ratio[1], ratio[NR], attempts / s, refused}'
