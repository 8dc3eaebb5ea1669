#!/usr/bin/env bash
# failover.sh - kills or stops processes of a job, which must go on:  tests/bench/failover.sh [TRIALS [CASE...]]
#
# Each trial trains Fashion-MNIST for a few seconds, disturbs it once at a random moment, and prints one line: the case,
# the exit code, whether the parameters are those of an undisturbed run, bit for bit, and the longest step. Then one
# line for each case. Ends with 0 if every trial ended with 0 and with equal parameters.
#   BUILD=DIR  the build (build)      SEED=N  of the moments, printed; equal seeds give equal moments      WORKERS=N  (4)
set -u
BATS_TEST_DIRNAME=$(cd "$(dirname "$0")" && pwd)
. "$BATS_TEST_DIRNAME/../support/job.bash"
job_setup
trap job_teardown EXIT
RANDOM=${SEED:=$$}

trials=${1:-3}
[ $# -gt 0 ] && shift
steps=110 workers=${WORKERS:-4}
example=(--mode ps-bsp --optim "adamw lr=0.002 weight_decay=0.01" --clip 0.5 --steps "$steps" --seed 5)

# ---- disturbances --------------------------------------------------------------------------------
# Each case has the flags of its job, and a function that disturbs the job at the random moment.

server_killed_flags=(--servers 2 --replicas 1)
server_killed() {
    kill -9 "$(member server $((RANDOM % 2)))"
}

server_killed_of_three_flags=(--servers 3 --replicas 1)
server_killed_of_three() {
    kill -9 "$(member server $((RANDOM % 3)))"
}

two_servers_killed_flags=(--servers 3 --replicas 2)
two_servers_killed() {
    local first=$((RANDOM % 3)) pids
    pids="$(member server "$first") $(member server $(((first + 1) % 3)))"
    kill -9 $pids
}

scheduler_killed_flags=(--servers 2 --replicas 1)
scheduler_killed() {
    kill -9 "$(member scheduler)"
}

worker_killed_flags=(--servers 2 --on-worker-loss wait --max-restarts 2)
worker_killed() {
    kill -9 "$(member worker 1)"
}

host_lost_flags=(--servers 2 --replicas 1 --on-worker-loss wait --max-restarts 2)
host_lost() {
    kill -9 $(member server 1) $(member worker 1)
}

# The server survives: 5 s are half the default lease.
server_stopped_flags=(--servers 2 --replicas 1)
server_stopped() {
    local pid
    pid=$(member server 1)
    kill -STOP "$pid"
    sleep 5
    kill -CONT "$pid"
}

nothing_flags=(--servers 2 --replicas 1)
nothing() {
    :
}

cases=(nothing server_killed server_killed_of_three two_servers_killed scheduler_killed worker_killed host_lost
    server_stopped)
[ $# -eq 0 ] || cases=("$@")

# ---- one trial -----------------------------------------------------------------------------------

# The launcher's lines that report a loss: a stop must cause none.
losses() {
    grep -cE 'took over|restarting it|is gone' "$1"
}

trial() {
    local case=$1 number=$2 name=$1-$2 flags=$1_flags[@] moment equal=no pause took began said
    moment=$((10 + RANDOM % (steps - 40)))
    began=${EPOCHREALTIME/[.,]/}
    start "$name" --nproc-per-node "$workers" "${!flags}" "$examples/fashion_mnist" "${example[@]}" --slow-ms 35 --out "$tmp/$name.json"
    code=0
    wait_for_step "$moment" >"$tmp/$name.log" && "$case" >>"$tmp/$name.log" 2>&1
    wait_for_end 240 >>"$tmp/$name.log" || { code=none; kill -9 "$launcher"; }
    took=$(((${EPOCHREALTIME/[.,]/} - began) / 1000))
    pause=$(value "$name" step_max_s 2>/dev/null)
    [ -n "$(crc "$name" 2>/dev/null)" ] && [ "$(crc "$name")" = "$calm" ] && equal=yes
    [ $equal = yes ] || echo "parameters of $name: $(crc "$name" 2>&1)" >>"$tmp/$name.err"
    said=$(losses "$tmp/$name.err")
    case $case in nothing | server_stopped) [ "$said" = 0 ] || equal=lost ;; esac
    printf '%-24s trial %2d   at step %3d   exit %-4s  equal %-3s  longest step %6.0f ms   %5d ms in all   %d lines of losses\n' \
        "$case" "$number" "$moment" "$code" "$equal" "$(awk -v s="${pause:-nan}" 'BEGIN {print s * 1000}')" "$took" "$said"
    if [ "$code" != 0 ] || [ "$equal" != yes ]; then sed 's/^/        /' "$tmp/$name.err" | tail -n 12; fi
    echo "$case $code $equal ${pause:-nan}" >>"$tmp/results"
    for pid in $(marked); do kill -9 "$pid" 2>/dev/null || :; done
}

train calm --servers 2 --nproc-per-node "$workers" -- "${example[@]}" || exit 1
calm=$(crc calm)
echo "seed $SEED, $trials trials of each case; undisturbed parameters $calm, longest step $(value calm step_max_s) s"
: >"$tmp/results"
for case in "${cases[@]}"; do
    for ((number = 1; number <= trials; number++)); do trial "$case" "$number"; done
done
echo
awk '{n[$1]++; if ($2 == 0 && $3 == "yes") good[$1]++; else bad = 1; if ($4 > most[$1]) most[$1] = $4}
    END {for (c in n) printf "%-24s %d of %d well   longest step of all %.0f ms\n", c, good[c], n[c], most[c] * 1000; exit bad}' \
    "$tmp/results"
