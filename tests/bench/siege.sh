#!/usr/bin/env bash
# siege.sh - the cost of a siege by strangers to a job: steps a second, memory, descriptors, lines in the log.
#   tests/bench/siege.sh BUILD_DIR [PAIRS [SECONDS [SIEGE...]]]
# 7 pairs of 2 s by default. Fashion-MNIST with one server and two workers; one job for each siege, on all its ports:
#   idle-32, idle-64    32 or 64 silent connections                      drip   64 that send a byte now and then
#   rush-64, rush-1024  64 or 1024 that shake hands, again and again     token  stranger.c with a wrong token
#   http                64 that drip into the HTTP port
# A pair has three phases: at rest, besieged, and beside a process that uses as much CPU as the strangers just did. The
# ratio to the first is the total cost of the siege; the ratio to the third is the cost of refusing.
# Prints one line of JSON a siege: both ratios (median, smallest, largest); the strangers' CPU in cores; for each victim
# the growth of its largest resident memory in MiB and of its descriptors, during and after; the most lines a minute
# that one process logged about refusals.
set -u
cd "$(dirname "$0")/../.."
build=$(realpath "${1:?usage: tests/bench/siege.sh BUILD_DIR [PAIRS [SECONDS [SIEGE...]]]}")
pairs=${2:-7} seconds=${3:-2}
sieges=("${@:4}")
[ ${#sieges[@]} -gt 0 ] || sieges=(idle-32 idle-64 drip rush-64 rush-1024 token http)
BATS_TEST_DIRNAME=$PWD/tests/cluster BUILD=$build
. tests/support/job.bash
job_setup
unset PENSTOCK_SECRET_FILE PENSTOCK_ENCRYPTION
trap 'kill "$launcher" 2>/dev/null; wait; job_teardown' EXIT
launcher=
"$penstock" keygen "$tmp/theirs" 2>/dev/null

begin() {
    start "$1" --servers 1 --nproc-per-node 2 --log-dir "$tmp/log" "${fashion[@]}" --epochs 10000
    begun_s=$EPOCHSECONDS
    wait_for_step 200
    victims=(scheduler "$(member scheduler)" server "$(member server 0)" worker "$(member worker 0)")
    http=$(sed -n 's|.*"http": *"http://[^"]*:\([0-9]*\)".*|\1|p' "$tmp/penstock/$launched_job.json")
    ports=$({ sed 's/.*"address": *"\([^"]*\)".*/\1/' "$tmp/penstock/$launched_job.json"; echo
              status | grep -oE 'tcp://[^"]+'; } | sed 's/.*://' | grep -E '^[0-9]+$' | sort -un)
}

wrong_token() {
    local port until=$((${EPOCHREALTIME/[.,]/} + seconds * 1000000))
    for port in $ports; do
        while [ "${EPOCHREALTIME/[.,]/}" -lt "$until" ]; do "$programs/stranger" end "$port" "$tmp/theirs"; done &
    done
    wait
}

# The siege itself, for one phase.
besiege() {
    case $1 in
    idle-*) "$programs/idlers" silent "${1#idle-}" "$seconds" $ports ;;
    drip) "$programs/idlers" drip 64 "$seconds" $ports ;;
    rush-*) "$programs/idlers" rush "${1#rush-}" "$seconds" $ports ;;
    http) "$programs/idlers" drip 64 "$seconds" "$http" ;;
    token) (wrong_token) ;;
    esac >/dev/null
}

# Uses as much core time as the strangers: in short bursts, and at their priority.
burn() { # CORES
    local ran began=${EPOCHREALTIME/[.,]/} now fifo
    exec {fifo}<> <(:)
    for ((now = began; now < began + seconds * 1000000; now = ${EPOCHREALTIME/[.,]/})); do
        read -r ran _ <"/proc/$BASHPID/schedstat"
        [ "$(((now - began) * $1))" -gt "$((ran))" ] || read -r -t 0.002 -u "$fifo"
    done
}

# Writes the CPU seconds of user and system to $tmp/cpu.
timed() {
    local TIMEFORMAT='%U %S'
    { time "$@" 2>/dev/null; } 2>"$tmp/cpu"
}

# Steps a second while the command runs:  rate COMMAND...   -> $rate
rate() {
    local from_step to_step from to
    from_step=$(status_value step) from=$EPOCHREALTIME
    "$@"
    to_step=$(status_value step) to=$EPOCHREALTIME
    rate=$(awk -v a="$from_step" -v b="$to_step" -v s="$from" -v e="$to" 'BEGIN {print (b - a) / (e - s)}')
}

# Prints the peak resident memory in KiB and the descriptors of each victim, one a line.
sizes() {
    local i
    for ((i = 0; i < ${#victims[@]}; i += 2)); do
        echo "${victims[i]} $(sed -n 's/^VmHWM:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/${victims[i + 1]}/status") $(ls "/proc/${victims[i + 1]}/fd" | wc -l)"
    done
}

# Builtins only: it runs beside the siege and must not add load.
watch() {
    local i files fifo
    exec {fifo}<> <(:)
    while :; do
        for ((i = 0; i < ${#victims[@]}; i += 2)); do
            files=("/proc/${victims[i + 1]}/fd/"*)
            echo "${victims[i]} - ${#files[@]}"
        done
        read -r -t 0.1 -u "$fifo"
    done >>"$tmp/meanwhile"
}

measured() { # SIEGE
    local pair quiet besieged beside cpu watcher
    begin "$1"
    : >"$tmp/rates" >"$tmp/meanwhile"
    for ((pair = 0; pair <= pairs; pair++)); do # the first only warms up: memory also grows at first without strangers
        [ "$pair" = 1 ] && sizes >"$tmp/before"
        rate sleep "$seconds"
        quiet=$rate
        if [ "$pair" = 0 ]; then continue; fi
        watch & watcher=$!
        rate timed besiege "$1"
        besieged=$rate
        kill "$watcher"
        wait "$watcher" 2>/dev/null
        cpu=$(awk -v s="$seconds" '{c = ($1 + $2) / s; print c < 0.001 ? 0.001 : c}' "$tmp/cpu")
        rate nice -n 10 bash -c "$(declare -f burn); seconds=$seconds; burn $(awk -v c="$cpu" 'BEGIN {print int(c * 1000)}')"
        beside=$rate
        echo "$quiet $besieged $beside $cpu" >>"$tmp/rates"
    done
    sleep 0.5
    sizes >"$tmp/after"
    kill "$launcher"
    wait "$launcher"
    report "$1"
}

median_of() { # EXPRESSION of awk on a line of $tmp/rates
    awk "{print $1}" "$tmp/rates" | sort -g |
        awk '{v[NR] = $1} END {printf "[%.3f, %.3f, %.3f]", v[int((NR + 1) / 2)], v[1], v[NR]}'
}

report() {
    local minutes lines
    minutes=$(((EPOCHSECONDS - begun_s + 59) / 60))
    lines=$(grep -c refused "$tmp/log/$launched_job"/attempt_0/*.err | sed 's/.*://' | sort -n | tail -1)
    printf '{"siege": "%s", "pairs": %d, "to_rest": %s, "to_neighbour": %s, "cores": %s, ' "$1" "$pairs" \
        "$(median_of '$2 / $1')" "$(median_of '$2 / $3')" "$(median_of '$4')"
    cat "$tmp/meanwhile" <(echo -) "$tmp/before" <(echo -) "$tmp/after" | awk '
        $1 == "-" {part++; next}
        part == 0 && $3 > most[$1] {most[$1] = $3}
        part == 1 {mib[$1] = $2; fds[$1] = $3}
        part == 2 {printf "\"%s\": {\"mib\": %.1f, \"fds_during\": %d, \"fds_after\": %d}, ", $1, ($2 - mib[$1]) / 1024, most[$1] - fds[$1], $3 - fds[$1]}'
    printf '"lines": %d, "minutes": %d}\n' "$lines" "$minutes"
}

for siege in "${sieges[@]}"; do measured "$siege"; done
