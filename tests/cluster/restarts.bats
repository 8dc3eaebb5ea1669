# restarts.bats - `--max-restarts`: what is started again, how often, and what ends the job.

load ../support/job
load ../support/hosts

setup() { job_setup; }
teardown() { job_teardown; }

# Runs leaver, whose rank 1 exits with 1 at step 20, also when it was started again:  crash NAME RUN_FLAGS...
# -> $code, $took_ms, $tmp/NAME.{out,err}
crash() {
    local name=$1 begun=${EPOCHREALTIME/[.,]/}
    shift
    code=0
    pen run --nproc-per-node 2 --servers 1 "$@" "$programs/leaver" 40 1 20 crash >"$tmp/$name.out" 2>"$tmp/$name.err" || code=$?
    took_ms=$(((${EPOCHREALTIME/[.,]/} - begun) / 1000))
    cat "$tmp/$name.out" "$tmp/$name.err"
    echo "$name: $code after $took_ms ms"
}

# How often the launcher started a worker again, and the job.
was_restarted() { # NAME WORKERS JOBS
    [ "$(grep -c 'worker 1 ended (exit code 1); restarting it$' "$tmp/$1.err")" -eq "$2" ]
    [ "$(grep -c '^penstock: restarting, ' "$tmp/$1.err")" -eq "$3" ]
}

@test "wait: a worker that crashes again after its last restart ends the job at once, and the job does not begin anew" {
    local restarts
    for restarts in 0 1 2; do
        crash "wait$restarts" --on-worker-loss wait --max-restarts $restarts
        [ "$code" -eq 1 ]
        [ "$took_ms" -lt 10000 ]
        was_restarted "wait$restarts" $restarts 0
        grep -qE '^  verdict  worker 1 .* is gone in step 20.*; it is not started again' "$tmp/wait$restarts.err"
        nothing_is_left
    done
}

@test "wait: without --max-restarts a worker is started again three times" {
    crash usual --on-worker-loss wait
    [ "$code" -eq 1 ]
    was_restarted usual 3 0
    nothing_is_left
}

@test "fail: the whole job is restarted --max-restarts times" {
    crash fail --max-restarts 2
    [ "$code" -eq 1 ]
    [ "$took_ms" -lt 20000 ]
    was_restarted fail 0 2
    nothing_is_left
}

@test "wait: two kills of one worker use up one restart, and end the job within a second" {
    local before
    start twice --nproc-per-node 2 --servers 1 --on-worker-loss wait --max-restarts 1 "$programs/stepper" steps=100000 pause_ms=20
    within 10 grep -q 'step 5 ' "$tmp/twice.out"
    kill -9 "$(member worker 1)"
    within 10 grep -q 'worker 1 .* is back after' "$tmp/twice.err"
    kill -9 "$(member worker 1)"
    before=${EPOCHREALTIME/[.,]/}
    code=0
    wait "$launcher" || code=$?
    [ "$code" -eq 137 ]
    [ $(((${EPOCHREALTIME/[.,]/} - before) / 1000)) -lt 4000 ]
    grep -q 'it is not started again' "$tmp/twice.err"
    nothing_is_left
}

@test "wait: a loop with pen_all_reduce() cannot wait for a replacement: the job begins anew, once, with one reason" {
    code=0
    pen run --nproc-per-node 3 --servers 2 --on-worker-loss wait --max-restarts 3 "$programs/leaver" 40 1 12 kill meet \
        >"$tmp/meet.out" 2>"$tmp/meet.err" || code=$?
    cat "$tmp/meet.out" "$tmp/meet.err"
    [ "$code" -eq 0 ]
    [ "$(grep -c '^penstock: restarting, ' "$tmp/meet.err")" -eq 1 ]
    [ "$(grep -c 'restarting it$' "$tmp/meet.err")" -eq 1 ]
    grep -qE 'sum a loss with pen_step_scalar|use pen_step_scalar' "$tmp/meet.err"
    nothing_is_left
}

@test "a program that cannot be run is tried once, whatever --max-restarts says" {
    local flags
    for flags in "" "--servers 1 --on-worker-loss wait"; do
        code=0
        # shellcheck disable=SC2086
        pen run --nproc-per-node 2 $flags --max-restarts 3 ./no_such_program 2>"$tmp/none.err" || code=$?
        [ "$code" -eq 127 ]
        [ "$(grep -c "^\[0\] penstock: cannot run './no_such_program'" "$tmp/none.err")" -eq 1 ]
        ! grep -q 'restarting' "$tmp/none.err" || return 1
    done
    nothing_is_left
}

@test "wait on two machines: a worker of machine 1 that has used up its restarts ends the job on both" {
    can_have_bridge >"$tmp/cannot" || skip "$(cat "$tmp/cannot")"
    hosts_start 2
    begin_on node0 run0 "$penstock" run --nnodes 2 --node-rank 0 --master-addr node0 --servers 1 --on-worker-loss wait \
        --max-restarts 1 "$programs/leaver" 40 1 20 crash
    join_line run0
    begin_on node1 run1 "$penstock" run --nnodes 2 --node-rank 1 --join - --servers 1 --on-worker-loss wait \
        --max-restarts 1 "$programs/leaver" 40 1 20 crash <<<"$line"
    ends run0 1 20
    ends run1 1 5
    grep -q 'it is not started again' "$tmp/run0.err"
    ! grep -q 'restarting, ' "$tmp"/run?.err || return 1
    hosts_stop
}

@test "a failure is told once, the cause first; what recovers is told too" {
    local servers i
    for servers in 0 2; do
        for i in 1 2 3; do
            pen run --nproc-per-node 3 --servers $servers "$programs/leaver" 40 1 12 crash >"$tmp/once.out" 2>"$tmp/once.err" || [ $? -eq 1 ]
            cat "$tmp/once.err"
            [ "$(grep -c 'worker 1 .* is gone' "$tmp/once.err")" -eq 1 ]
            [ "$(sed -n 2p "$tmp/once.err")" = "penstock: worker 1 ended with exit code 1 at step 12" ]
        done
    done
    start back --nproc-per-node 2 --servers 2 --replicas 1 "$programs/stepper" steps=100000 pause_ms=20
    within 10 grep -q 'step 5 ' "$tmp/back.out"
    kill -9 "$(member server 0)"
    within 10 grep -qE '^penstock: server 0 .* is back after [0-9.]+ s: view [0-9]+ with 2 workers and 2 servers' "$tmp/back.err"
    kill -INT "$launcher"
    wait "$launcher" || [ $? -eq 130 ]
    nothing_is_left
}

# The newest step that a rank printed since the job began anew, after line $2 of its output; -1: none.
newest_step() { { echo -1; tail -n "+$(($2 + 1))" "$tmp/$1.out" | sed -n 's/^.*rank [0-9]* step \([0-9]*\) .*/\1/p'; } | sort -n | tail -n 1; }
times_begun_anew() { grep -c '^penstock: restarting, ' "$tmp/$1.err" || :; }

# The job has ended, has begun anew once more, or has made another step:  goes_on NAME FROM_LINE STEP TIMES_BEGUN_ANEW
goes_on() {
    ! kill -0 "$launcher" 2>/dev/null || [ "$(times_begun_anew "$1")" -gt "$4" ] || [ "$(newest_step "$1" "$2")" -gt "$3" ]
}

# Kills random members of a job, some twice; after each kill the job trains on, has ended, or begins anew, within the lease
# and 3 s, and then trains:
# shake NAME RULE RESTARTS KILLS
shake() {
    local name=$1 from=0 before times victim i
    start "$name" --nproc-per-node 3 --servers 2 --replicas 1 --on-worker-loss "$2" --max-restarts "$3" --lease-ms 3000 \
        "$programs/stepper" steps=1000000 pause_ms=5
    within 15 grep -q 'step 5 ' "$tmp/$name.out"
    for ((i = 0; i < $4; i++)); do
        sleep "0.$((RANDOM % 10))"
        victim=$((RANDOM % 5))
        [ "$victim" -lt 3 ] && victim="worker $victim" || victim="server $((victim - 3))"
        # shellcheck disable=SC2086
        victim_pid=$(member $victim) || continue # not back yet
        times=$(times_begun_anew "$name")
        echo "$name: kills $victim in step $(newest_step "$name" $from)"
        kill -9 "$victim_pid" || continue
        before=$(newest_step "$name" $from)
        within 6 goes_on "$name" $from "$before" "$times" || { tail -n 20 "$tmp/$name.err"; return 1; }
        if [ "$(times_begun_anew "$name")" -gt "$times" ]; then
            from=$(wc -l <"$tmp/$name.out")
            within 15 goes_on "$name" "$from" -1 $((times + 1)) || { tail -n 20 "$tmp/$name.err"; return 1; }
        fi
        kill -0 "$launcher" 2>/dev/null || break
    done
    kill -INT "$launcher" 2>/dev/null || :
    wait "$launcher" || :
    nothing_is_left 5
}

# SHAKES=n: as many rounds of every rule and number of restarts; SEED: of the moments and victims.
@test "random kills, also of the same worker: no job stands longer than its lease and 3 s" {
    local rule restarts round
    RANDOM=${SEED:-7}
    for round in $(seq "${SHAKES:-1}"); do
        for rule in wait continue fail; do
            for restarts in 0 1 3 30; do
                [ -n "${SHAKES:-}" ] || [ "$restarts" = 1 ] || [ "$restarts$rule" = 30wait ] || continue
                shake "$rule$restarts-$round" $rule $restarts 5
            done
        done
    done
}
