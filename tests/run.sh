#!/usr/bin/env bash
# run.sh - runs the tests of a build and counts them:  tests/run.sh BUILD_DIR check|all|sanitize|gpu|fleet|python|only [FILE...]
#   check     what is quick: everything in one process, and the rules of the house
#   all       that, the command line, and real jobs of many processes
#   gpu       what needs an NVIDIA GPU; part of `all` where there is one
#   fleet     containers, Kubernetes, Slurm, Prometheus, a browser, packages: what needs packages-fleet.txt
#   sanitize  for builds with a sanitizer: everything in one process, jobs without large programs, with the address
#             sanitizer also the library in Python, and fuzzers for 10 s each
#   python    PyTorch: what needs packages-python.txt
#   only      the named files, one after the other: bats files, Python tests, or programs of BUILD_DIR/tests
# Every test speaks TAP (cmocka, bats, tests/python/tap.py, the fuzz driver), so one counter serves all.  The last line is
# `N passed, N failed` and, when a test could not run, `, N skipped (names)`.
#   REQUIRE_ALL=1  skips count as failures
#   UNSTEADY=FILE  a file of tests that fails runs again, alone, twice.  If it passes both times it counts as passed, and
#                  is printed as UNSTEADY and added to FILE, which several runs share.  A fourth name in FILE counts as a
#                  failure (tests/unsteady.md).
set -u
cd "$(dirname "$0")/.."
build=$(realpath "${1:-build}")
kind=${2:-all}
log=$build/test-log
jobs=$(nproc)
rm -rf "$log"
mkdir -p "$log"
export CMOCKA_MESSAGE_OUTPUT=TAP BUILD="$build" TMPDIR="$log/tmp"
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
export LSAN_OPTIONS="suppressions=$PWD/tests/support/lsan.supp:print_suppressions=0"
export TSAN_OPTIONS="suppressions=$PWD/tests/support/tsan.supp:second_deadlock_stack=1:allocator_may_return_null=1"
mkdir -p "$TMPDIR"

# Runs one test program under a time limit; its TAP goes to a file, its exit code to another, and to a third how long it
# took, and how much of a processor, in seconds:  cat build/test-log/*.s | sort -nk2
run_one() {
    local name=$1 limit=$2 TIMEFORMAT="%1R %1U %1S $1"
    shift 2
    { time timeout --kill-after=10 "$limit" "$@" >"$log/$name.tap" 2>"$log/$name.err" </dev/null; } 2>"$log/$name.s"
    echo $? >"$log/$name.rc"
}
export -f run_one
export log

list=$log/list
: >"$list"
limit=180
[ "$kind" != sanitize ] || limit=480 # a sanitizer makes some ten times as slow
for program in "$build"/tests/*; do
    [[ $kind != @(gpu|fleet|python|only) ]] || break
    [ -x "$program" ] && [ -f "$program" ] && echo "$(basename "$program") $limit $program" >>"$list"
done
case $kind in
check) files=$(ls tests/hygiene/*.bats) ;;
all) files=$(ls tests/hygiene/*.bats tests/cli/*.bats tests/cluster/*.bats tests/gpu/*.bats tests/python/*_test.py | grep -v -e /gpu.bats -e /torch_) ;;
python) files=$(ls tests/python/*.bats tests/python/torch_*_test.py) ;;
gpu) files=$(echo tests/gpu/{gpu,tensors,tensor_updates,train}.bats) ;;
sanitize) files="tests/cluster/nonfinite.bats tests/cluster/shells.bats $(echo tests/gpu/{tensors,tensor_updates}.bats)" ;;
fleet) files=$(ls tests/fleet/*.bats) ;;
only) files=${*:3} ;;
esac
has_address=$([ "$kind" != sanitize ] || grep '^PENSTOCK_SANITIZE.*=address' "$build/CMakeCache.txt")
if [ -n "$has_address" ]; then
    export EVERY=${EVERY:-21} # of the allocations that fail in memory.bats
    files="$files tests/cluster/memory.bats $(echo tests/python/{memory,collectives,training,life}_test.py)"
fi
[ "$kind" != gpu ] || export ON_GPU=1 # not on the played driver
if [ "$kind" = all ] && [ -e /dev/nvidiactl ]; then files="$files tests/gpu/gpu.bats"; fi
label_of() { local name=${1##*/}; echo "$(basename "$(dirname "$1")")_${name%.*}"; }
line_of() { # FILE: its line of the list
    case $1 in
    *.bats) echo "$(label_of "$1") $([ "$kind" = fleet ] && echo 1800 || echo 600) bats --formatter tap $1" ;;
    *.py) echo "$(label_of "$1") 600 $1" ;;
    *) echo "$(basename "$1") $limit $1" ;;
    esac
}

# What measures no time may run beside others.  Files that do measure time say "# alone: why", and run one after the other:
# with a sanitizer after the rest, else beside it, for it is nice, so that they find a processor whenever they want one.
if [[ $kind = @(all|sanitize|python) ]]; then
    # shellcheck disable=SC2086
    beside=$(grep -L '^# alone:' $files)
    # shellcheck disable=SC2086
    files=$(grep -l '^# alone:' $files)
    for file in $beside; do line_of "$file"; done >>"$list"
    # Jobs of many processes wait for each other much of the time; PyTorch's first load a library, for longer than they run.
    [ "$kind" = python ] || jobs=$((jobs + 2))
fi

# Random tries are few in `all`; the address sanitizer, which finds more by each, has the others.
export TRIES=${TRIES:-$([ "$kind" = all ] || [ "$kind$has_address" = sanitize ] && echo 1 || echo 3)}
fuzz() { # NAME TARGETS
    echo "$1 300 env FUZZ_SEED=${FUZZ_SEED:-1} FUZZ_TARGETS=$2 tests/fuzz/run.sh $build/$1 ${FUZZ_SECONDS:-10}"
}
if [ -n "$has_address" ]; then
    fuzz fuzz_wire wire_data,wire_control,wire_peer
    fuzz fuzz_files config,secret,local,store,http
    fuzz fuzz_memory lend,node
    fuzz fuzz_foreign socket,tls,safetensors,documents,rows,handler
fi >>"$list"

# The longest first, so that nothing long is left over at the end when all else is done.
longest="python_torch_optimizer_test python_torch_backend_test python_torch_types_test cluster_hostile cli_docs
    conformance_coll_test cluster_memory cluster_training sim_lively_test gpu_driver gpu_tensor_updates
    conformance_coll_fault_test hygiene_house gpu_tensors cluster_modes cluster_elastic gpu_train cluster_gpt2
    gpu_overlap gpu_first_run cluster_handlers cluster_local cluster_restarts cluster_liar sim_mutation_test
    cluster_snapshot cluster_reach cluster_encrypted cli_snapshot cli_output cluster_click cluster_hosts
    gpu_faults cluster_hosts_docs cli_run cluster_units cluster_tables cli_sentences sim_sim_test"
[ "$kind" != sanitize ] || longest="gpu_tensors sim_lively_test gpu_tensor_updates unit_shard_offload_test
    unit_sharded_test unit_mesh_test unit_node_test fuzz_foreign sim_mutation_test unit_worker_strategy_test
    conformance_coll_test unit_tls_test cluster_shells fuzz_files sim_sim_test fuzz_wire fuzz_memory
    conformance_coll_fault_test unit_scheduler_siege_test unit_reduce_test cluster_memory sim_memory_test
    python_training_test conformance_store_crash_test unit_schedule_test"
{
    for name in $longest; do grep "^$name " "$list"; done
    grep -vE "^($(echo $longest | tr ' ' '|')) " "$list"
} >"$list.sorted"
mv "$list.sorted" "$list"
nice -n "$([ "$kind" = all ] && echo 10 || echo 0)" xargs -r -a "$list" -P "$jobs" -L 1 bash -c 'run_one "$@"' _ &
[ "$kind" = all ] || wait

for file in $files; do line_of "$file"; done >"$list.alone"
xargs -r -a "$list.alone" -L 1 bash -c 'run_one "$@"' _
wait
cat "$list.alone" >>"$list"

# What a file of tests said: sets ok, skips, n_skips and bad.
judge() { # name
    ok=$(grep -cE '^ok ' "$log/$1.tap")
    # bats says "ok 3 name # skip why", cmocka "not ok 3 # SKIP name"
    skips=$(grep -E '^(not )?ok .*# *(skip|SKIP)' "$log/$1.tap" | sed -E 's/^(not )?ok [0-9]+ *-? *//; s/^# SKIP //; s/ *# *skip.*//')
    n_skips=$(printf '%s' "$skips" | grep -c .)
    bad=$(grep -E '^not ok ' "$log/$1.tap" | grep -cv '# SKIP')
    ok=$((ok + $(grep -cE '^not ok .*# SKIP' "$log/$1.tap")))
    rc=$(cat "$log/$1.rc")
    if [ "$rc" != 0 ] && [ "$bad" = 0 ]; then bad=1; fi # crashed, timed out, or leaked
    if [ "$rc" = 0 ] && [ "$ok" = 0 ] && [ "$bad" = 0 ]; then bad=1; fi # said nothing
}

show_failure() { # name
    { grep -A12 '^not ok' "$log/$1.tap" || tail -n 5 "$log/$1.tap"; tail -n 25 "$log/$1.err"; } | head -60 | sed 's/^/        /'
}

# Runs a file that failed again, alone, twice; true: it passed both times, and ok, skips, n_skips are of the last.
# More than UNSTEADY_MAX fail the run anyway, so no more are tried.
UNSTEADY_MAX=3
reruns=0
passes_alone() { # name
    local limit command
    [ -n "${UNSTEADY:-}" ] && [ "$reruns" -le "$UNSTEADY_MAX" ] || return 1
    reruns=$((reruns + 1))
    read -r _ limit command < <(grep -m1 "^$1 " "$list")
    mkdir -p "$log/first"
    mv "$log/$1".{tap,err,rc,s} "$log/first/"
    for _ in 1 2; do
        # shellcheck disable=SC2086
        run_one "$1" "$limit" $command
        judge "$1"
        if [ "$bad" -gt 0 ]; then
            mv "$log/first/$1".* "$log/"
            judge "$1"
            return 1
        fi
    done
    echo "$1" >>"$UNSTEADY"
}

passed=0
failed=0
skipped=""
while read -r name _; do
    judge "$name"
    if [ "$bad" -gt 0 ]; then
        first="exit $rc after $(cut -d' ' -f1 "$log/$name.s") s"
        if passes_alone "$name"; then
            echo "UNSTEADY  $name ($first; then alone it passed twice; all of it: ${log#"$PWD"/}/first/$name.tap, .err)"
            log=$log/first show_failure "$name"
            if [ "$(grep -c . "$UNSTEADY")" -gt "$UNSTEADY_MAX" ]; then
                echo "FAILED  $name (more than $UNSTEADY_MAX files were not steady: $(paste -sd' ' "$UNSTEADY"))"
                bad=1
            fi
        else
            echo "FAILED  $name ($first; all of it: ${log#"$PWD"/}/$name.tap, .err)"
            show_failure "$name"
        fi
    fi
    passed=$((passed + ok - n_skips))
    failed=$((failed + bad))
    [ "$n_skips" -gt 0 ] && skipped="$skipped$skips"$'\n'
done <"$list"

n_skipped=$(printf '%s' "$skipped" | grep -c .)
if [ "$n_skipped" -gt 0 ] && [ "${REQUIRE_ALL:-}" = 1 ]; then
    failed=$((failed + n_skipped))
fi
if [ "$n_skipped" -gt 0 ]; then
    echo "$passed passed, $failed failed, $n_skipped skipped ($(printf '%s' "$skipped" | paste -sd, | sed 's/,/, /g'))"
else
    echo "$passed passed, $failed failed"
fi
[ "$failed" = 0 ]
