#!/bin/sh
# soak.sh BUILD SEEDS [FIRST]: runs SEEDS seeds of every lively test and of the swarms, on all cores, and a tenth as many in
# which memory is refused; then jobs of 1,000 workers and 100 servers (compared with the model, and with deaths), and the start
# of 4,096 workers.  Each failure prints the line that replays it.  Exit code: 0 if there was none.
set -eu
build=$1 seeds=${2:-5000} first=${3:-1} cores=$(nproc)
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
run() { # number program
    SIM_SEEDS=$each SIM_FIRST=$(( first + $1 * each )) "$build/tests/$2" "$3" > "$logs/$1" 2>&1 || echo failed > "$logs/$1.failed"
}
status=0
lively=sim_every_lively_swarm_ends_as_its_faults_allow swarm=sim_every_swarm_ends_in_good_order
refused=sim_members_without_memory_fail_with_a_sentence_while_others_die_and_come
tables=sim_tables_keep_every_push_that_was_acknowledged_when_memory_is_refused
for what in sim_lively_test:$lively sim_sim_test:$swarm sim_memory_test:$refused sim_memory_test:$tables; do
    # Each seed of the last two runs 21 times.
    each=$(( (seeds + cores - 1) / cores ))
    case $what in sim_memory_test*) each=$(( (each + 9) / 10 )) ;; esac
    started=$(date +%s) number=0
    while [ "$number" -lt "$cores" ]; do
        run "$number" "${what%%:*}" "${what#*:}" &
        number=$(( number + 1 ))
    done
    wait
    grep -h -A4 -E '^replay:' "$logs"/* || true
    grep -h -E ' runs, | runs ended ' "$logs"/* || true
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
