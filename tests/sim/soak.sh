#!/bin/sh
# soak.sh BUILD SEEDS [FIRST]: runs SEEDS seeds of every lively test and of the swarms, on all cores; then jobs of 1,000
# workers and 100 servers (compared with the model, and with deaths), and the start of 4,096 workers.
# Each failure prints the line that replays it.  Exit code: 0 if there was none.
set -eu
build=$1 seeds=${2:-5000} first=${3:-1} cores=$(nproc)
each=$(( (seeds + cores - 1) / cores ))
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
run() { # number program
    SIM_SEEDS=$each SIM_FIRST=$(( first + $1 * each )) "$build/tests/$2" "$3" > "$logs/$1" 2>&1 || echo failed > "$logs/$1.failed"
}
status=0
for what in sim_lively_test:sim_every_lively_swarm_ends_as_its_faults_allow sim_sim_test:sim_every_swarm_ends_in_good_order; do
    started=$(date +%s) number=0
    while [ "$number" -lt "$cores" ]; do
        run "$number" "${what%%:*}" "${what#*:}" &
        number=$(( number + 1 ))
    done
    wait
    grep -h -A4 -E '^replay:' "$logs"/* || true
    grep -h -E ' runs, ' "$logs"/* || true
    if ls "$logs"/*.failed > /dev/null 2>&1; then status=1; fi
    rm -f "$logs"/*
    echo "soak    ${what#*:}   seeds from $first, $each per core on $cores cores   $(( $(date +%s) - started )) s"
done
many() { # WORKERS SERVERS [TEST]
    started=$(date +%s)
    SIM_WORKERS=$1 SIM_SERVERS=$2 SIM_SEEDS=1 "$build/tests/sim_many_test" ${3:+"$3"} > "$logs/many" 2>&1 || status=1
    if [ $# -eq 2 ] && ! scripts/scale.py --compare < "$logs/many" > "$logs/model"; then
        grep differs "$logs/model" || true
        status=1
    fi
    grep -h -A4 -E '^replay:' "$logs/many" || true
    grep -h -E '^(start of|sim_many.* runs, )' "$logs/many" || true
    echo "soak    $1 workers, $2 servers   $(( $(date +%s) - started )) s"
}
many 1000 100
many 4096 0 sim_a_start_of_ten_times_as_many_takes_at_most_three_times_as_long
exit $status
