# timeline.bats - penstock run --trace: what all processes of a job did, on one clock.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# Kinds of span that every job with servers has.
with_servers=(step "step end" backward ready send push "server sum" commit apply reply pull receive)

check() { # NAME ARGS...
    local name=$1
    shift
    "$programs/timeline_check" "$tmp/$name.trace" "$@" || { cat "$tmp/$name.err"; return 1; }
}

@test "a job with servers has one timeline: all processes, nested, pushes before commits before the ends of pulls" {
    start ps --trace "$tmp/ps.trace" --servers 2 --nproc-per-node 2 --store "$tmp/store" --snapshot-every 3 \
        "$programs/stepper" steps=8
    wait_for_end 60
    [ "$code" = 0 ]
    grep -qE "^penstock: timeline $tmp/ps.trace: [0-9]+ spans of 5 processes; each clock is within [0-9.e-]+ ms of the scheduler's$" "$tmp/ps.err"
    check ps workers=2 servers=2 shards=2 steps=8 "${with_servers[@]}" snapshot "new epoch"
    [ ! -e "$tmp/ps.trace.parts" ]
    nothing_is_left
}

@test "clocks that are minutes apart are aligned" {
    unshare --time --monotonic 1 --fork true 2>/dev/null || skip "needs the right to make a time namespace"
    cat >"$tmp/ahead" <<'END'
#!/bin/sh
exec unshare --time --monotonic $((500 + 1000 * RANK)) --fork --kill-child "$@"
END
    chmod +x "$tmp/ahead"
    start apart --trace "$tmp/apart.trace" --servers 1 --nproc-per-node 2 "$tmp/ahead" "$programs/stepper" steps=4
    wait_for_end 60
    [ "$code" = 0 ]
    check apart workers=2 servers=1 shards=1 steps=4 ahead=500,1000 push commit pull
}

@test "in an async job each push leads to its own commit" {
    start async --trace "$tmp/async.trace" --servers 2 --nproc-per-node 2 --mode ps-async "$programs/stepper" steps=4
    wait_for_end 60
    [ "$code" = 0 ]
    check async workers=2 servers=2 shards=2 steps=4 "${with_servers[@]}"
}

@test "the work of a killed server is in the timeline, and so is the fail-over" {
    start over --trace "$tmp/over.trace" --servers 2 --replicas 1 --nproc-per-node 2 "$programs/stepper" steps=20 pause_ms=50
    wait_for_step 5
    kill -9 "$(member server 1)"
    wait_for_end 60
    [ "$code" = 0 ]
    check over workers=2 servers=2 shards=2 steps=20 "${with_servers[@]}" fail-over "new epoch"
    nothing_is_left
}

@test "workers without servers have a timeline of their buckets, reductions and updates" {
    local mode
    for mode in allreduce zero2; do
        start $mode --trace "$tmp/$mode.trace" --mode $mode --nproc-per-node 2 "$programs/stepper" steps=4
        wait_for_end 60
        [ "$code" = 0 ]
        check $mode workers=2 step "step end" backward ready "bucket ready" reduce update
    done
}

@test "a process alone writes its part, and penstock trace merge makes a timeline of it" {
    LD_LIBRARY_PATH=$build/lib PENSTOCK_TRACE=$tmp/alone.trace "$programs/stepper" steps=3 >"$tmp/alone.out"
    run pen trace merge "$tmp/alone.trace" "$tmp/alone.trace.parts"
    [ "$status" = 0 ]
    [[ $output == "$tmp/alone.trace: "[0-9]*" spans of 1 process" ]]
    run pen trace merge "$tmp/alone.trace" "$tmp/alone.out"
    [ "$status" = 1 ]
    [ "$output" = "penstock: $tmp/alone.out: it is too short" ]
    run pen trace merge "$tmp/alone.trace"
    [ "$status" = 2 ]
    [[ $output == "penstock: missing arguments; use penstock trace merge OUT PART..."* ]]
    run pen run --standalone --trace "$tmp/no/such/folder" "$programs/stepper"
    [ "$status" = 2 ]
    [[ $output == *"no folder for the timeline: cannot create the folder $tmp/no/such/folder.parts: No such file or directory; "* ]]
}
