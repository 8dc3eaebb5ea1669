# leave.bats - a rank leaves in the middle of a step, in whatever way: all others learn of it as fast as of a death.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# Runs leaver on three ranks and measures:  go NAME RUN_FLAGS... -- ARGUMENTS...   -> $code, $took_ms, $tmp/NAME.{out,err}
go() {
    local name=$1 flags begun=${EPOCHREALTIME/[.,]/}
    take_flags "${@:2}"
    shift $((${#flags[@]} + 2))
    code=0
    pen run --nproc-per-node 3 "${flags[@]}" "$programs/leaver" "$@" >"$tmp/$name.out" 2>"$tmp/$name.err" || code=$?
    took_ms=$(((${EPOCHREALTIME/[.,]/} - begun) / 1000))
    cat "$tmp/$name.out" "$tmp/$name.err"
    echo "$name: $code after $took_ms ms"
}

# Long before the 600 s that a step may take.
soon() { [ "$took_ms" -lt 20000 ]; }

@test "a rank that calls pen_finalize() or exit(0) in the middle of a step is a loss: with fail all are told which step" {
    local servers how
    for servers in 0 2; do
        for how in finalize exit; do
            go "$how$servers" --servers $servers -- 40 1 12 $how
            [ "$code" -ne 0 ]
            soon
            grep -q 'worker 1 ([^)]*) left in the middle of step 1[12]' "$tmp/$how$servers.err"
        done
    done
    grep -q 'left in the middle of step 12' "$tmp/finalize0.err"
    grep -q "left in the middle of step 12: it has not pushed 'line' for step 12" "$tmp/finalize2.err"
    nothing_is_left
}

@test "with continue the others go on without it, and the job ends with 0 where it did" {
    local servers
    for servers in 0 2; do
        go "go-$servers" --servers $servers --on-worker-loss continue -- 40 1 12 exit
        [ "$code" -eq 0 ]
        soon
        [ "$(grep -c ': 40 steps, loss 2 among 2$' "$tmp/go-$servers.out")" -eq 2 ]
    done
    nothing_is_left
}

@test "with continue the one that is left of two goes on, and is one in the sentence" {
    go one --nproc-per-node 2 --on-worker-loss continue -- 20 1 6 kill
    [ "$code" -eq 0 ]
    grep -qE '1 worker is left; step [67] ' "$tmp/one.err"
    grep -q ': 20 steps, loss 1 among 1$' "$tmp/one.out"
    nothing_is_left
}

@test "a rank that leaves before pen_commit() ends keeps nobody waiting in it" {
    go early --servers 1 -- 40 1 0 early
    [ "$code" -ne 0 ]
    soon
    grep -q 'worker 1 ([^)]*) left before pen_commit() returned' "$tmp/early.err"
    nothing_is_left
}

@test "wait: who sits in a collective with a worker that died is told at once, which one, where, and what to do instead" {
    go meets --log-dir "$tmp/logs" --servers 2 --on-worker-loss wait --max-restarts 1 -- 40 1 12 kill meet
    said_by "$tmp/logs" >"$tmp/said"
    cat "$tmp/said"
    [ "$(grep -cE '^\[[02]\] (worker 1 .* is gone in step [0-9]+, .*; training waits for a replacement, a collective cannot; sum a loss with|collectives need fixed members, .*; use) pen_step_scalar' "$tmp/said")" -eq 2 ]
    [ "$code" -eq 0 ] # all were restarted
    soon
    nothing_is_left
}

@test "wait: a loop that sums its loss with the step continues with a replacement of the dead rank" {
    go sums --servers 2 --on-worker-loss wait --max-restarts 1 -- 40 1 12 kill
    [ "$code" -eq 0 ]
    [ "$(grep -c 'loss 3 among 3$' "$tmp/sums.out")" -eq 3 ]
    nothing_is_left
}

@test "two that wait for each other, in a collective and in a step, are told so within a lease" {
    go cross --servers 1 --lease-ms 2000 -- 40 1 12 cross
    [ "$code" -ne 0 ]
    grep -q "worker 1 ([^)]*) waits in all_reduce .* for worker [02] ([^)]*), which waits in pen_step_end of step 12 for the other's 'line': neither can go on" "$tmp/cross.err"
    soon
    nothing_is_left
}
