# memory.bats - a process that gets no memory for one of its allocations: the job ends with a sentence that says so, or
# goes on; nothing crashes and nothing waits for ever.  EVERY=1 fails each allocation in turn, the default each seventh.

load ../support/job

setup() {
    job_setup
    # A build with AddressSanitizer has the faults linked in.
    preload=$build/tests/support/libmemfault.so
    ! grep -q '^PENSTOCK_SANITIZE:.*address' "$build/CMakeCache.txt" || preload=
}
teardown() { job_teardown; }

# Runs the job of FLAGS with linear, or with $program: its process ROLE (a worker: rank 1) gets no memory at allocation AT.
run_without() { # ROLE AT FLAGS
    local role=$1 at=$2
    shift 2
    rm -f "$tmp/note"
    # shellcheck disable=SC2086
    env MARK="$mark" LD_PRELOAD="$preload" MEMFAULT_NOTE="$tmp/note" MEMFAULT_AT="$at" \
        MEMFAULT_IN="$role" $([ "$role" != worker ] || echo MEMFAULT_RANK=1) PENSTOCK_RETRY_MS=300 \
        timeout 30 "$penstock" run --standalone --nproc-per-node 2 "$@" ${program:-$examples/linear} >"$tmp/out" 2>&1
}

# Nothing crashed, nothing waited for ever, and a sanitizer found nothing.
is_orderly() { # EXIT_STATUS
    [ "$1" -lt 124 ] && ! grep -qE 'killed by SIG(SEGV|ABRT|BUS|FPE|ILL|KILL)|(Address|Leak)Sanitizer|runtime error:' "$tmp/out"
}

# The same for every EVERY-th allocation of that process.
each_fails() { # ROLE FLAGS
    local at n rc
    run_without "$1" 0 "${@:2}"
    n=$(sed -n 's/ allocations$//p' "$tmp/note" | sort -n | tail -1) # of several servers: the most
    echo "$1 ${*:2}: $n allocations"
    [ "$n" -ge 15 ] || return 1
    for ((at = 1 + RANDOM % ${EVERY:-7}; at <= n; at += ${EVERY:-7})); do
        rc=0
        run_without "$1" "$at" "${@:2}" || rc=$?
        is_orderly "$rc" && { [ "$rc" = 0 ] || grep -q memory "$tmp/out"; } && continue
        echo "allocation $at: exit $rc; $(cat "$tmp/note")"
        cat "$tmp/out"
        return 1
    done
}

@test "a worker without memory for one allocation, with a server" {
    each_fails worker --servers 1
}

@test "a worker without memory for one allocation, without servers" {
    each_fails worker
}

@test "a worker without memory for one allocation, without servers, over sockets" {
    each_fails worker --shared-memory no
}

@test "a worker without memory for one allocation, encrypted, with a sharded state" {
    # Workers of one host would meet in shared memory, as in the tests above; these go the way of two hosts, where a job
    # encrypts by itself.
    export PENSTOCK_SHARED_MEMORY=no PENSTOCK_LOCAL_SOCKETS=no EVERY=$((${EVERY:-7} * 3)) # of 630 allocations
    each_fails worker --mode zero2 --encryption on
}

@test "a worker without memory for one allocation, whose node adds up before servers do" {
    each_fails worker --mode ps-hier --servers 1
}

@test "a worker without memory for one allocation, whose state is on a device" {
    [ -e "$build/tests/gpu/driver/libcuda.so.1" ] || skip "built without CUDA"
    export LD_LIBRARY_PATH=$build/tests/gpu/driver:$build/lib CUDA_ON_HOST_DEVICES=2 EVERY=$((${EVERY:-7} * 3)) # of 640
    each_fails worker --device cuda --servers 1
    each_fails worker --device cuda --mode zero2
}

@test "a server without memory for one allocation, whose tables have rules, or handlers of the program's" {
    local program="$programs/table dim=2 keys=50 batch=10 rounds=6"
    export EVERY=$((${EVERY:-7} * 3)) # of 730
    each_fails server --servers 2
    program+=" handler=add"
    each_fails server --servers 2 --plugin "$programs/handlers.so"
}

@test "a server without memory for one allocation, beside one that has copies of its shards" {
    each_fails server --servers 2 --replicas 1
}

@test "a server without memory for one allocation, while it writes snapshots" {
    each_fails server --servers 1 --store "$tmp/store" --fresh --snapshot-every 5
}

@test "a scheduler without memory for one allocation" {
    each_fails scheduler --servers 1
}

@test "a launcher without memory for one allocation" {
    each_fails run --servers 1
}

@test "a worker, a server and a scheduler that get no more memory at all" {
    local role at
    export PENSTOCK_INIT_TIMEOUT_MS=6000 MEMFAULT_MANY=1000000
    for role in worker server scheduler; do
        for at in 5 40 75 110; do
            local rc=0
            run_without "$role" "$at" --servers 1 || rc=$?
            is_orderly "$rc" || { echo "$role from $at: exit $rc"; cat "$tmp/note" "$tmp/out"; return 1; }
        done
    done
}
