# job.bash - shared by the bats files of cluster/ and cli/: starts jobs, queries them, and leaves nothing behind.
#
# Every process a test starts carries MARK in its environment, so that leftovers are found, also grandchildren.
# Jobs write the notes by which `penstock status` finds them into a folder of this test.
! declare -F bats_debug_trap >/dev/null || load ../support/bats # benchmarks source this file too

job_setup() {
    root=${BATS_TEST_DIRNAME%/*/*}
    build=${BUILD:-$root/build}
    [[ $build == /* ]] || build=$PWD/$build
    penstock=$build/bin/penstock
    examples=$build/bin/examples
    programs=$build/tests/programs
    fashion=("$examples/fashion_mnist" --data "$build/tests/fashion-mnist")
    tmp=$(mktemp -d "${BATS_TMPDIR:-/tmp}/pen-XXXXXX")
    job=${tmp##*/}
    mark=$job-$$
    host=$HOSTNAME
    export XDG_RUNTIME_DIR=$tmp TMPDIR=$tmp LD_LIBRARY_PATH=$build/lib
    unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT LOCAL_RANK LOCAL_WORLD_SIZE OMP_NUM_THREADS
    unpack_data
}

# Fashion-MNIST, unpacked once: every worker would unpack it again, which takes almost as long as training.
unpack_data() {
    local packed new from=/usr/share/datasets/fashion-mnist
    [ ! -d "$build/tests/fashion-mnist" ] && [ -d "$from" ] || return 0
    new=$(mktemp -d "$build/tests/fashion-mnist-XXXXXX")
    for packed in "$from"/*.gz; do gunzip -c "$packed" >"$new/$(basename "$packed" .gz)"; done
    mv -T "$new" "$build/tests/fashion-mnist" 2>/dev/null || rm -r "$new" # another test file was faster
}

# Call it last in teardown(): it ends the leftovers of a failed test.
job_teardown() {
    local pid
    for pid in $(marked); do kill -9 "$pid" 2>/dev/null || :; done
    rm -rf "$tmp"
}

# Process ids that carry the mark of this test.
marked() {
    grep -lzsx "MARK=$mark" /proc/[0-9]*/environ | cut -d/ -f3
}

# No two lines about refusals name the same member: one a minute for each member, and one for all strangers.
refused_once() { # LOG
    [ -z "$(grep -oE 'frame of peer [0-9]+|that has not said who it is' "$1" | sort | uniq -d)" ]
}

# Describes these processes: number, state, command.
show() {
    local pid
    for pid in "$@"; do
        echo "$pid $(sed -n 's/^State:[[:space:]]*//p' "/proc/$pid/status") $(tr '\0' ' ' <"/proc/$pid/cmdline")"
    done
}

# Checks that no process of this test runs after at most $1 seconds (2).
nothing_is_left() {
    local end=$((${EPOCHREALTIME/[.,]/} + ${1:-2} * 1000000))
    while [ -n "$(marked)" ]; do
        if [ "${EPOCHREALTIME/[.,]/}" -gt "$end" ]; then
            echo "left behind:"
            show $(marked)
            return 1
        fi
        sleep 0.02
    done
}

# Sleeps, as sleep(1), but takes no process for less than a second, which is what polls sleep.
exec {never}<> <(:) # nothing is ever there to read
sleep() {
    if [[ $1 == 0.* ]]; then read -rt "$1" -u "$never" || :; else command sleep "$@"; fi
}

# Repeats the command until it succeeds; fails after $1 seconds:  within 10 grep -q step "$tmp/run.out"
within() {
    local end=$((${EPOCHREALTIME/[.,]/} + $1 * 1000000))
    until "${@:2}"; do
        [ "${EPOCHREALTIME/[.,]/}" -lt "$end" ] || { echo "not within $1 s: ${*:2}"; return 1; }
        sleep 0.02
    done
}

# Waits for all processes that the test began; fails if one of them failed or left anything.
all_end_well() {
    local pid
    for pid in $(jobs -p); do
        wait "$pid" || { echo "exit $? of process $pid"; tail -n 5 "$tmp"/*.err; return 1; }
    done
    nothing_is_left
}

# Runs the command and gives its exit code; at most $LIMIT seconds (60).
pen() {
    MARK=$mark timeout --foreground -k 5 "${LIMIT:-60}" "$penstock" "$@" 3>&-
}

# What the workers of jobs with --log-dir $1 printed to stderr, as the launcher would show it.  Its own output has a verdict
# only once, and leaves out lines that repeat it.
said_by() {
    local file rank
    for file in "$1"/*/attempt_*/worker-*.err; do
        rank=${file##*/worker-}
        sed "s/^/[${rank%.err}] /" "$file"
    done
}

# Puts the words before `--` into the caller's array $flags.
take_flags() {
    flags=()
    while [ "$1" != -- ]; do
        flags+=("$1")
        shift
    done
}

# Trains Fashion-MNIST to its end:  train NAME LAUNCHER_FLAGS... -- EXAMPLE_FLAGS...   -> $tmp/NAME.{json,loss,err}
train() {
    local name=$1 flags
    take_flags "${@:2}"
    shift $((${#flags[@]} + 2))
    pen run --standalone --job "$job-$name" "${flags[@]}" "${fashion[@]}" "$@" \
        --out "$tmp/$name.json" --loss-log "$tmp/$name.loss" >"$tmp/$name.out" 2>"$tmp/$name.err" ||
        { echo "exit $? of job $name:"; cat "$tmp/$name.out" "$tmp/$name.err"; return 1; }
}

# One value of a result:  value NAME KEY
value() {
    sed -n "s/.*\"$2\": *\"\{0,1\}\([^,\"}]*\).*/\1/p" "$tmp/$1.json"
}

crc() {
    value "$1" params_crc32c
}

# Checks that all results have equal parameters.
same_crc() {
    local name first=$1
    [ -n "$(crc "$first")" ] || { echo "$first has no crc"; return 1; }
    for name in "$@"; do
        [ "$(crc "$name")" = "$(crc "$first")" ] || { echo "$first $(crc "$first"), $name $(crc "$name")"; return 1; }
    done
}

# Starts a job and does not wait:  start NAME ARGS_OF_RUN...   -> $launcher, $tmp/NAME.{out,err}
start() {
    local name=$1
    shift
    MARK=$mark "$penstock" run --standalone --job "$job-$name" "$@" >"$tmp/$name.out" 2>"$tmp/$name.err" 3>&- &
    launcher=$!
    launched_job=$job-$name
}

# Process id of a member of the started job:  member scheduler | member server 1 | member worker 0
member() {
    local pid
    for pid in $(grep -lsE "^PPid:[[:space:]]+$launcher\$" /proc/[0-9]*/status | cut -d/ -f3); do
        case $1 in
        scheduler) grep -qzsx scheduler "/proc/$pid/cmdline" || continue ;;
        server) tr '\0' ' ' <"/proc/$pid/cmdline" | grep -qs " server .*--rank $2 " || continue ;;
        worker) grep -qzsx "RANK=$2" "/proc/$pid/environ" || continue ;;
        esac
        echo "$pid"
        return
    done
    return 1
}

# A member stops, so that the others wait for it; then it dies:  kill_asleep worker 1
kill_asleep() {
    local pid
    pid=$(member "$@")
    kill -STOP "$pid"
    sleep 0.3
    kill -9 "$pid"
}

# The state of the started job on one line; fails while there is none.
status() {
    local port
    port=$(sed -n 's/.*"address": "tcp:[^"]*:\([0-9]*\)".*/\1/p' "$tmp/penstock/$launched_job.json" 2>/dev/null)
    [ -n "$port" ] && pen status --json --timeout-ms 2000 --master-port "$port" 2>/dev/null
}

# A number of the whole job:  status_value step
status_value() {
    status | sed -n "s/^[^[]*\"$1\":\(-\{0,1\}[0-9]*\).*/\1/p"
}

# Members of a status line on standard input, one on a line.
members_of() {
    sed 's/{"role"/\n{"role"/g' | grep '^{"role"'
}

# Waits until the started job is in step $1, or until $launcher has ended.
wait_for_step() {
    local step
    for _ in $(seq 300); do
        step=$(status_value step)
        [ "${step:--1}" -ge "$1" ] && return
        kill -0 "$launcher" 2>/dev/null || { echo "the job ended"; cat "$tmp"/*.err; return 1; }
        sleep 0.1
    done
    echo "the job did not come to step $1"
    cat "$tmp"/*.err
    return 1
}

# Waits for the started job, at most $1 seconds; -> $code, $took_ms
wait_for_end() {
    local begun=${EPOCHREALTIME/[.,]/}
    code=0
    while kill -0 "$launcher" 2>/dev/null; do
        took_ms=$(((${EPOCHREALTIME/[.,]/} - begun) / 1000))
        [ "$took_ms" -lt $(($1 * 1000)) ] || { echo "the job still runs after $1 s"; cat "$tmp"/*.err; return 1; }
        sleep 0.02
    done
    wait "$launcher" || code=$?
}

# Fails and prints both if the text on standard input is not exactly $1.
is_text() {
    local got
    got=$(cat)
    [ "$got" = "$1" ] || { printf 'wanted:\n%s\ngot:\n%s\n' "$1" "$got"; return 1; }
}

# A port that was free a moment ago, below those that the kernel hands out.
free_port() {
    local port
    while port=$((20000 + RANDOM % 12000)) && grep -qi ":$(printf %04X "$port") " /proc/net/tcp /proc/net/tcp6; do :; done
    echo "$port"
}
