# run_end.bats - the launcher: how soon it ends with its programs, or after a signal, and that no process is left.
# alone: it measures how soon a launcher ends.

load ../support/job
load ../support/launch

setup() { job_setup; }
teardown() { job_teardown; }

# ---- with its programs ---------------------------------------------------------------------------------------

@test "a program that never calls Penstock runs with servers, and they end with it" {
    ends_with 0 alien --nproc-per-node 2 --servers 2 sh -c 'sleep 0.5'
    echo "$took_ms ms, 500 of them asleep"
    [ "$took_ms" -lt 1500 ]
    [ "$(wc -l <"$tmp/alien.err")" = 1 ]
    ends_with 0 short --nproc-per-node 2 --servers 2 true
    echo "$took_ms ms"
    [ "$took_ms" -lt 1500 ]
    [ "$(wc -l <"$tmp/short.err")" = 1 ]
    nothing_is_left
}

@test "a job in which only some programs join ends at once and says which one did not" {
    ends_with 1 some --log-dir "$tmp/logs" --nproc-per-node 2 --servers 1 sh -c '[ $RANK = 1 ] || exec '"$programs/stepper"
    [ "$took_ms" -lt 3000 ]
    said_by "$tmp/logs" | is_text "[0] stepper: worker 1 exited with code 0 before it joined"
    report some | grep -qxF "  verdict  worker 1 exited with code 0 before it joined"
    nothing_is_left
}

# Worker 0 dies; each other one exits some time after it heard of that:  deaths NAME WORKERS SECONDS-OF-EACH
deaths() {
    start "$1" --grace 60 --nproc-per-node "$2" sh -c 'trap "" TERM
        [ $RANK != 0 ] || exec '"$programs/stepper"' crash_at=3
        '"$programs/stepper"'
        sleep $('"$3"')'
}

@test "the verdict comes ahead of the report if processes stay, and in the report if one after another ends" {
    deaths stay 2 'echo 3'
    within 2 grep -q '^penstock: worker 0 .* is gone' "$tmp/stay.err"
    kill -0 "$launcher"
    wait_for_end 10
    [ "$(grep -c 'worker 0 .* is gone' "$tmp/stay.err")" = 1 ]
    deaths follow 5 'echo 0.$((RANK * 2))'
    wait_for_end 10
    cat "$tmp/follow.err"
    report follow | grep -q '^  verdict  worker 0 .* is gone'
    [ "$(grep -c 'worker 0 .* is gone' "$tmp/follow.err")" = 1 ]
    nothing_is_left
}

# ---- with a signal -------------------------------------------------------------------------------------------

# A job in the middle of its training; a worker has a child that ignores signals.
busy() {
    start busy --grace 1 --servers 2 --nproc-per-node 2 sh -c '
        [ $RANK = 0 ] && exec '"$programs/stepper"' steps=100000 pause_ms=10
        '"$programs/stepper"' steps=100000 pause_ms=10 &
        trap "" TERM
        sleep 1000 &
        touch '"$tmp"'/up
        wait
        wait'
    wait_for_files up
    wait_for_step 5
    [ "$(marked | wc -l)" -ge 8 ]
}

@test "SIGINT, SIGTERM and SIGHUP leave no process, not even a grandchild that ignores SIGTERM" {
    local name
    for name in INT TERM HUP; do
        busy
        kill -"$name" "$launcher"
        wait_for_end 5
        echo "$name: $took_ms ms, 1000 of them the grace"
        [ "$code" = $((128 + $(kill -l "$name"))) ]
        tail -n 1 "$tmp/busy.err" | is_text "penstock: interrupted by SIG$name; nothing kept (no --store)"
        [ "$took_ms" -lt 2500 ]
        nothing_is_left 0
        rm "$tmp/up"
    done
}

@test "SIGKILL leaves no process either" {
    busy
    kill -KILL "$launcher"
    wait_for_end 5
    [ "$code" = 137 ]
    nothing_is_left 1
}

@test "a second Ctrl-C does not wait for the grace" {
    start stubborn --grace 60 sh -c 'trap "" TERM; sleep 1000 & touch '"$tmp"'/up; wait; sleep 1000'
    wait_for_files up
    kill -INT "$launcher"
    sleep 0.5
    kill -0 "$launcher"
    kill -INT "$launcher"
    wait_for_end 2
    [ "$code" = 130 ]
    nothing_is_left 0
}

@test "a stopped worker is ended too" {
    start stopped --grace 60 sh -c 'touch '"$tmp"'/up; kill -STOP $$; sleep 1000'
    wait_for_files up
    kill -TERM "$launcher"
    wait_for_end 5
    [ "$code" = 143 ]
    nothing_is_left 0
}

@test "machine 1 that finds no machine 0 can be interrupted" {
    MARK=$mark "$penstock" run --nnodes 2 --node-rank 1 --master-port "$(free_port)" touch "$tmp/up" 2>"$tmp/lonely.err" 3>&- &
    launcher=$!
    for _ in $(seq 500); do grep -q 'waiting for machine 0' "$tmp/lonely.err" && break || sleep 0.02; done
    kill -INT "$launcher"
    wait_for_end 5
    [ "$code" = 130 ]
    [ ! -e "$tmp/up" ]
    nothing_is_left 0
}
