# scalars.bats - numbers that are summed with a step: the same on all ranks, in every mode, whichever member dies.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# Runs scalars:  sum NAME RANKS RUN_FLAGS... -- ARGUMENTS...   -> $code, $tmp/NAME.{out,err}
sum() {
    local name=$1 ranks=$2 flags
    take_flags "${@:3}"
    shift $((${#flags[@]} + 3))
    code=0
    pen run --nproc-per-node "$ranks" "${flags[@]}" "$programs/scalars" "$@" >"$tmp/$name.out" 2>"$tmp/$name.err" || code=$?
    [ "$code" -eq 0 ] || cat "$tmp/$name.err" "$tmp/$name.out"
}

# The lines of one rank without its number:  lines NAME RANK
lines() { sed -n "s/^.*rank $2 step/step/p" "$tmp/$1.out"; }

# All ranks printed the same, and it is what three ranks without servers printed:  same NAME RANKS
same() {
    [ "$code" -eq 0 ]
    [ "$(lines "$1" 0 | wc -l)" -eq 10 ]
    for ((r = 0; r < $2; r++)); do diff <(lines ddp 0) <(lines "$1" $r); done
}

@test "a step's scalars are the same bits on all ranks in every mode that has common steps" {
    sum ddp 3 -- 10
    same ddp 3
    grep -q 'rank 0 step 4 of 3: loss 4.59999999999999[0-9]* 1.5333.* odd 1$' "$tmp/ddp.out"
    grep -q 'rank 0 step 5 of 3: loss .* odd none$' "$tmp/ddp.out"
    sum bsp 3 --servers 2 -- 10
    same bsp 3
    sum eager 3 --servers 2 --commit eager -- 10
    same eager 3
    sum zero1 3 --mode zero1 -- 10
    same zero1 3
    sum zero2 3 --mode zero2 --accum 2 -- 10
    same zero2 3
    sum accum 3 --servers 1 --accum 3 -- 10
    same accum 3
    sum zero2s 3 --servers 2 --mode zero2 --replicas 1 -- 10
    same zero2s 3
    sum hier 3 --servers 2 --mode ps-hier -- 10
    same hier 3
    nothing_is_left
}

@test "alone a step's scalars are those of the one rank; a number that no rank gave is not found" {
    "$programs/scalars" 4 >"$tmp/alone.out"
    cat "$tmp/alone.out"
    [ "$(grep -c '^rank 0 step [0-3] of 1: loss .* odd none$' "$tmp/alone.out")" -eq 4 ]
}

@test "in ps-ssp and ps-async a step's scalars cover the newest number of each rank" {
    sum ssp 2 --servers 2 --mode ps-ssp --sync "ssp s=1" -- 10
    [ "$code" -eq 0 ]
    [ "$(grep -c 'of 2: loss' "$tmp/ssp.out")" -eq 20 ]
    sum async 2 --servers 1 --mode ps-async -- 10
    [ "$code" -eq 0 ]
    [ "$(grep -c 'of 2: loss' "$tmp/async.out")" -eq 20 ]
    nothing_is_left
}

# The survivors print the same lines, and at least this many of the last ones have 2 ranks:  goes_on_without NAME LEAST
goes_on_without() {
    [ "$code" -eq 0 ]
    [ "$(lines "$1" 0 | wc -l)" -eq 10 ]
    diff <(lines "$1" 0) <(lines "$1" 2)
    [ "$(lines "$1" 0 | grep -c 'of 2: loss')" -ge "$2" ]
}

# A worker that dies in step 5 once its gradients have left is missed in step 6 at the latest.  Survivors may have begun
# that step by then, and see the change in the next one.
@test "a worker is killed before or after it gave its number: the survivors continue with equal sums" {
    local when least
    for when in before after; do
        least=$([ "$when" = before ] && echo 4 || echo 3)
        sum "ddp-$when" 3 --on-worker-loss continue -- 10 1 5 "$when"
        goes_on_without "ddp-$when" "$least"
        sum "bsp-$when" 3 --servers 2 --on-worker-loss continue -- 10 1 5 "$when"
        goes_on_without "bsp-$when" "$least"
    done
    nothing_is_left
}

@test "a server is killed in the middle of training: its copies have the scalars too" {
    sum still 2 --servers 2 -- 400
    start moved --servers 2 --replicas 1 --nproc-per-node 2 "$programs/scalars" 400
    wait_for_step 30
    kill -9 "$(status | members_of | sed -n 's/.*"role":"server","rank":1,.*"pid":\([0-9]*\).*/\1/p')"
    wait_for_end 60
    [ "$code" -eq 0 ] || { cat "$tmp/moved.err"; return 1; }
    [ "$(lines still 0 | wc -l)" -eq 400 ]
    diff <(lines still 0) <(lines moved 0)
    diff <(lines still 0) <(lines moved 1)
    nothing_is_left
}
