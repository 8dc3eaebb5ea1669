# stuck.bats - finding the rank that has not entered: `penstock status --stuck`, SIGUSR1; and --on-worker-loss.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# A job of three in which rank 1 does not make call 6.
start_stuck() {
    start stuck --nproc-per-node 3 --on-worker-loss continue "$programs/survivor" 40 1 1 hang 5
    port=
    for _ in $(seq 300); do
        port=$(sed -n 's/.*"address": "tcp:[^"]*:\([0-9]*\)".*/\1/p' "$tmp/penstock/$launched_job.json" 2>/dev/null || :)
        [ -n "$port" ] && pen status --stuck --master-port "$port" >"$tmp/stuck" 2>/dev/null &&
            grep -q 'has not entered all_reduce (call 6); the other ranks entered it' "$tmp/stuck" && return
        sleep 0.05
    done
    cat "$tmp/stuck" "$tmp"/*.err
    return 1
}

@test "status --stuck names the rank that has not entered, and what it does instead" {
    start_stuck
    cat "$tmp/stuck"
    grep -q '^  rank 1 has not entered all_reduce (call 6); the other ranks entered it' "$tmp/stuck"
    grep -q '^ *1 .* 5  all_reduce  *OK .* after pen_.*<- has not entered$' "$tmp/stuck"
    [ "$(grep -c ' 6  all_reduce  *RUNNING ' "$tmp/stuck")" -eq 2 ]
    pen status --stuck --json --master-port "$port" >"$tmp/json"
    grep -q '"missing":\[1\]' "$tmp/json"
    grep -q '"without_record":\[\]' "$tmp/json"
}

@test "SIGUSR1 to the launcher prints the same" {
    start_stuck
    kill -USR1 "$launcher"
    for _ in $(seq 100); do
        grep -q 'has not entered all_reduce (call 6); the other ranks entered it' "$tmp/stuck.err" && break
        sleep 0.05
    done
    grep -q '^group ' "$tmp/stuck.err"
    kill -0 "$launcher"
}

@test "status --stuck does not wait for a stopped process" {
    start_stuck
    kill -STOP "$(member worker 2)"
    pen status --stuck --timeout-ms 500 --master-port "$port" >"$tmp/stuck"
    cat "$tmp/stuck"
    grep -q "^rank 2 ($host) has not answered; it was last seen" "$tmp/stuck"
}

@test "on-worker-loss: impossible settings are refused before anything starts" {
    run pen run --on-worker-loss wait true
    [ "$status" -eq 2 ]
    is_text "penstock: --on-worker-loss wait needs servers, which keep the state of a dead worker, but got no --servers; use continue or fail" <<<"$output"
    run pen run --on-worker-loss ignore true
    [ "$status" -eq 2 ]
    run pen run --mode allreduce --servers 1 true
    [ "$status" -eq 2 ]
    is_text "penstock: --servers 1 and --mode allreduce contradict each other" <<<"$output"
}
