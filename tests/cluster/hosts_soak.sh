#!/usr/bin/env bash
# hosts_soak.sh - runs the suite of hosts repeatedly under load:  tests/cluster/hosts_soak.sh BUILD_DIR ROUNDS [BUSY]
# BUSY processes (default: one per core) compute beside it all the time. Prints a line for each round, and the failures;
# ends with 1 if anything failed.
set -u
cd "$(dirname "$0")/../.."
export BUILD
BUILD=$(realpath "${1:-build}")
rounds=${2:-20}
files=$(ls tests/cluster/hosts*.bats tests/cluster/reach.bats tests/cluster/sharing.bats)
log=$BUILD/hosts-soak
rm -rf "$log"
mkdir -p "$log"

busy=()
for _ in $(seq "${3:-$(nproc)}"); do
    while :; do :; done &
    busy+=("$!")
done
trap 'kill "${busy[@]}"' EXIT

bad=0
for ((round = 1; round <= rounds; round++)); do
    started=$SECONDS
    # shellcheck disable=SC2086
    bats --formatter tap $files >"$log/$round.tap" 2>"$log/$round.err" </dev/null
    code=$?
    echo "round $round: $(grep -c '^ok' "$log/$round.tap") passed, $(grep -c '^not ok' "$log/$round.tap") failed," \
        "$((SECONDS - started)) s, load $(cut -d' ' -f1 /proc/loadavg)"
    [ "$code" = 0 ] && continue
    bad=$((bad + 1))
    grep -A30 '^not ok' "$log/$round.tap"
done
echo "$bad of $rounds rounds failed; each is in $log"
[ "$bad" = 0 ]
