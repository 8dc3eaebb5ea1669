# status.bats - what `penstock status` prints about a running job.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

@test "the table and the JSON name the job, its step and every member" {
    local role
    start one --servers 2 --nproc-per-node 2 "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 2
    pen status >"$tmp/table"
    cat "$tmp/table"
    head -n 1 "$tmp/table" | grep -qE "^job $job-one   training   mode ps-bsp   step [0-9]+ of 100000(   [0-9.]+ steps/s   [0-9.]+ (s|min|h) left)?   view 1   up [0-9]+ s   snapshot none   refused frames 0   this user on this host$"
    sed -n 2p "$tmp/table" | grep -qxE 'page http://127\.0\.0\.1:[0-9]+/'
    head -n 1 "$tmp/one.err" | grep -qF "   $(sed -n '2s/page //p' "$tmp/table")"
    for role in worker server; do
        [ "$(grep -cE "^$role +[01]  $host +[0-9]+  active +[0-9]+ +[0-9.]+ s +[0-9.]+( [kMG]?B)? +[0-9.]+( [kMG]?B)?  " "$tmp/table")" = 2 ]
    done
    ! grep -qE '^(launcher|observer) ' "$tmp/table" || return 1
    pen status --all | grep -qE '^launcher '
    status >"$tmp/json"
    [ "$(wc -l <"$tmp/json")" = 1 ]
    grep -q "^{\"job\":\"$job-one\",\"phase\":\"training\",\"mode\":\"ps-bsp\",\"step\":" "$tmp/json"
    [ "$(members_of <"$tmp/json" | grep -cE '"role":"(worker|server)"')" = 4 ]
    [ "$(members_of <"$tmp/json" | grep '"role":"server"' | grep -cE '"addresses":\["tcp://127\.0\.0\.1:[0-9]+"')" = 2 ]
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}

@test "status shows who waits for whom, and after warn_ms waiting members log it themselves" {
    start slow --servers 1 --nproc-per-node 2 --warn-ms 300 "$programs/stepper" steps=100 1:pause_ms=3000
    for _ in $(seq 100); do
        pen status >"$tmp/table" 2>"$tmp/none" && grep -q '^waiting ' "$tmp/table" && grep -q 'rank 1' "$tmp/slow.err" && break
        sleep 0.05
    done
    cat "$tmp/table" "$tmp/slow.err"
    grep -qE "^waiting  waiting [0-9.]+ s for rank 1 in all_gather 'pen_digest' \(call [0-9]+\)\." "$tmp/table"
    grep -qE "^\[0\] penstock: waiting [0-9.]+ s for rank 1 " "$tmp/slow.err"
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}

@test "--pid is the process of one member, unaffected by lines on copies; a member without one here is a sentence" {
    local role rank
    start pid --servers 2 --replicas 1 --nproc-per-node 2 "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 2
    pen status | grep -q '^server 0 serves 1 shard' # a script that reads columns takes this 1 for a process
    for role in server worker; do
        for rank in 0 1; do
            [ "$(pen status --pid $role $rank)" = "$(member $role $rank)" ]
            status | grep -q "{\"role\":\"$role\",\"rank\":$rank,\"host\":\"$host\",\"pid\":$(member $role $rank),"
        done
    done
    [ "$(pen status --pid worker 1 --job "$launched_job" --timeout-ms 4000)" = "$(member worker 1)" ]
    [ "$(pen status --pid=worker 0 --all)" = "$(member worker 0)" ]
    [ "$(pen status --pid scheduler)" = "$(member scheduler)" ]
    run pen status --pid server 2
    [ "$status" = 1 ]
    [ "$output" = "penstock: job '$launched_job' has no server 2; it has 2" ]
    for role in "server" "observer 0" "server x" "server -1"; do
        # shellcheck disable=SC2086
        run pen status --pid $role
        [ "$status" = 2 ]
        [[ $output == "penstock: --pid needs worker RANK, server RANK or scheduler, "* ]]
    done
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}

@test "--pid of a member on another host, or on another host of the same name, is a sentence and not a number" {
    unshare -mup --fork true 2>/dev/null || skip "namespaces are not allowed here"
    start there --servers 1 --nproc-per-node 1 "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 2
    run unshare -u bash -c "hostname elsewhere; '$penstock' status --pid server 0"
    [ "$status" = 1 ]
    [ "$output" = "penstock: server 0 is process $(member server 0) on host $host, but this host is elsewhere; run the command there" ]
    port=$(sed -n 's/.*"address": "tcp:[^"]*:\([0-9]*\)".*/\1/p' "$tmp/penstock/$launched_job.json")
    # in a container: same name, other processes; the launcher in the job's note is not visible, so the port is given
    run unshare -mp --fork --mount-proc "$penstock" status --master-port "$port" --pid server 0
    [ "$status" = 1 ]
    [[ $output == "penstock: server 0 is process "*" on a host named $host, but no process with that id here is connected to the scheduler; "* ]]
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}
