# nccl.bats - jobs whose collectives on devices go through NCCL, on the fake driver and the fake NCCL of driver/: what it
# carries, what happens where it does not start, and a death in the middle of a call.

load ../support/job
load ../support/units

unit_words=(steps=3 rows=40 clip=60 persistence_threshold=1000)

setup() {
    job_setup
    [ -e "$build/tests/gpu/driver/libnccl.so.2" ] || skip "built without CUDA"
    export LD_LIBRARY_PATH=$build/tests/gpu/driver:$build/lib
    export CUDA_ON_HOST_DEVICES=3 NCCL_ON_HOST_LOG=$tmp/calls
    touch "$tmp/calls"
}
teardown() { job_teardown; }

# A collective of 3 workers on devices, as a benchmark that verifies its result:  collective KIND BYTES [SETTING...]
collective() {
    env "${@:3}" "$penstock" bench "$1" --ranks 3 --bytes "$2" --device cuda --seconds 0.02 --pairs 1 --json >"$tmp/out" 2>"$tmp/err" ||
        { cat "$tmp/err"; return 1; }
    grep -q '"verified":true' "$tmp/out"
}

carried() { grep -c "^$1 $2 " "$tmp/calls" || :; } # KIND ELEMENTS

@test "a rule of coll_algorithm sends the sizes that it names to NCCL, small ones too, and no others" {
    local rule="PENSTOCK_COLL_ALGORITHM=all_reduce memory=device bytes=0-4k : nccl ; all_reduce memory=device : kernels"
    collective all-reduce 4096 PENSTOCK_DETERMINISTIC=no "$rule"
    [ "$(carried all_reduce 1024)" -ge 3 ]
    collective all-reduce 12m PENSTOCK_DETERMINISTIC=no "$rule"
    [ "$(carried all_reduce 3145728)" = 0 ]
    # sums of floats have the order of ranks by default; copies have none
    : >"$tmp/calls"
    collective all-reduce 4096 "$rule"
    [ "$(carried all_reduce 1024)" = 0 ]
    collective all-gather 30000 "PENSTOCK_COLL_ALGORITHM=all_gather memory=device : nccl"
    [ "$(carried all_gather 10000)" -ge 3 ]
}

@test "device_backend=nccl carries large calls of every kind that it has, and trains: all ranks have the same values" {
    local kind
    export PENSTOCK_DEVICE_BACKEND=nccl PENSTOCK_DETERMINISTIC=no
    for kind in all-reduce reduce broadcast all-gather reduce-scatter; do
        collective $kind $([ $kind = all-gather ] && echo 13m || echo 5m) # more than 4 MiB of each
        [ "$(grep -c "^${kind//-/_} " "$tmp/calls")" -ge 3 ]
    done
    units ddp -- mode=allreduce own=1 device=cuda
    units zero2 -- mode=zero2 device=cuda
    for kind in ddp zero2; do
        grep -q "^rank 0 " "$tmp/$kind.out"
        diff <(sed -n 's/^rank 0 //p' "$tmp/$kind.out") <(sed -n 's/^rank 1 //p' "$tmp/$kind.out")
    done
    nothing_is_left
}

@test "PEN_CAP_NCCL says that NCCL is installed and that settings let it carry calls" {
    local row
    for row in "0 deterministic=yes" "2 deterministic=no" "0 deterministic=no device_backend=stream" "2 device_backend=nccl"; do
        pen run --standalone --no-prefix --nproc-per-node 2 --device cuda $(sed 's/[^ ]* *//; s/^/ /; s/ / --/g; s/_/-/g; s/=/ /g' <<<"$row") \
            "$programs/on_device" follow >"$tmp/follow"
        cat "$tmp/follow"
        [ "$(grep -c '^caps 1$' "$tmp/follow")" = 2 ]
        [ "$(grep -c '^caps nccl$' "$tmp/follow")" = "${row%% *}" ]
    done
}

@test "where NCCL does not start on one rank, all ranks say so and use Penstock's kernels" {
    NCCL_ON_HOST_FAILS=1 PENSTOCK_LOG_LEVEL=info collective all-reduce 12m PENSTOCK_DETERMINISTIC=no \
        "PENSTOCK_COLL_ALGORITHM=all_reduce memory=device : nccl"
    cat "$tmp/err"
    [ "$(grep -c 'rank [0-2]: NCCL does not start on rank 1; the calls of 3 ranks on devices use' "$tmp/err")" = 3 ]
    grep -q 'rank 1: NCCL does not start: NCCL: a link between devices: unhandled system error' "$tmp/err"
    ! grep -v "^abort " "$tmp/calls" || return 1
}

@test "bench tune measures device memory by kernels and by NCCL, and prints rules that jobs accept" {
    local rules
    rules=$(pen bench tune --ranks 3 --device cuda --only all-reduce --rounds 1 --min-bytes 4k --max-bytes 16k --seconds 0.005 2>"$tmp/err")
    cat "$tmp/err"
    echo "$rules"
    [ "$(grep -cE '^all-reduce +device (kernels|nccl) +[0-9.]+ +[0-9.]+$' "$tmp/err")" = 2 ]
    [ -s "$tmp/calls" ]
    [ -z "$rules" ] || [[ $rules == "all_reduce memory=device bytes="* ]]
    collective all-reduce 4096 "PENSTOCK_COLL_ALGORITHM=$rules"
    pen bench tune --ranks 3 --device cuda --only broadcast --rounds 1 --min-bytes 4k --max-bytes 4k --seconds 0.005 2>"$tmp/err"
    [ "$(grep -c '^broadcast .*device nccl ' "$tmp/err")" = 1 ]
    code=0
    CUDA_ON_HOST_DEVICES=2 pen bench tune --ranks 3 --device cuda 2>"$tmp/err" || code=$?
    [ "$code" = 1 ]
    grep -qx "penstock: --device cuda: 3 ranks on 2 devices share one, which NCCL refuses" "$tmp/err"
}

# Rank 1 stops, so that the others wait in a kernel of NCCL, or for its call; then it dies.
@test "a worker that dies inside a call of NCCL: the others abort it, and have one sentence in time" {
    local before who
    export PENSTOCK_DEVICE=cuda PENSTOCK_DEVICE_BACKEND=nccl PENSTOCK_DETERMINISTIC=no
    start death --log-dir "$tmp/logs" --nproc-per-node 3 "$penstock" bench coll-rank all-reduce --ranks 3 --bytes 6m --device cuda --seconds 60 --pairs 1
    for _ in $(seq 1000); do
        [ "$(carried all_reduce 1572864)" -ge 30 ] && break
        sleep 0.02
    done
    kill -STOP "$(member worker 1)"
    for _ in $(seq 1000); do
        before=$(carried all_reduce 1572864)
        sleep 0.1
        [ "$before" = "$(carried all_reduce 1572864)" ] && break
    done
    kill -9 "$(member worker 1)"
    wait_for_end 10
    for who in 0 2; do said_by "$tmp/logs" | sed -n "s/^\[$who\] penstock: //p" | tail -n 1; done >"$tmp/said"
    cat "$tmp/death.err"
    [ "$(wc -l <"$tmp/said")" = 2 ]
    [ "$(sort -u "$tmp/said" | wc -l)" = 1 ]
    diff <(grep -E '^(abort|finalize) ' "$tmp/calls" | sort) <(printf 'abort rank %d of 3\n' 0 2)
    grep -q '^worker 1 (.*) is gone before its first step, in pen_all_reduce; last seen ' "$tmp/said"
    nothing_is_left
}

# The hosts wait for no call: when it dies, its peers' streams wait for it.
@test "a worker that dies while the others train in stream order with NCCL: nothing of a device waits for it" {
    export PENSTOCK_DETERMINISTIC=no PENSTOCK_COLL_ALGORITHM="all_reduce memory=device : nccl"
    start ahead --nproc-per-node 3 "$programs/units" "${unit_words[@]/steps=3/steps=1000000}" mode=allreduce own=1 ahead=1 device=cuda
    for _ in $(seq 1000); do
        [ "$(grep -c '^all_reduce ' "$tmp/calls")" -ge 90 ] && break
        sleep 0.02
    done
    kill_asleep worker 1
    wait_for_end 10
    cat "$tmp/ahead.err"
    ! grep '^finalize ' "$tmp/calls" || return 1 # which waits for all members; a process may end before it aborts
    nothing_is_left
}
