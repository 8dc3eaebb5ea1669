# shells.bats - jobs without a launcher, and jobs of two launchers.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

example=(--mode ps-bsp --optim "adamw lr=0.002" --clip 0.5 --steps 40)

# A member started by hand:  shell NAME COMMAND...   -> $tmp/NAME.{out,err}
shell() {
    MARK=$mark "${@:2}" >"$tmp/$1.out" 2>"$tmp/$1.err" 3>&- &
}

# A worker as a person starts it in a shell:  bare RANK WORLD PORT SERVERS PROGRAM...
bare() {
    shell "worker-$1" env RANK="$1" WORLD_SIZE="$2" LOCAL_RANK="$1" LOCAL_WORLD_SIZE="$2" MASTER_ADDR=127.0.0.1 \
        MASTER_PORT="$3" PENSTOCK_SERVERS="$4" "${@:5}"
}

@test "four bare shells train together: rank 0 hosts the scheduler, the server was started by hand" {
    local port rank
    port=$(free_port)
    shell server "$penstock" server --master-addr 127.0.0.1 --master-port "$port"
    for rank in 3 2 1 0; do
        bare "$rank" 4 "$port" 1 "${fashion[@]}" "${example[@]}" --out "$tmp/bare.json"
    done
    all_end_well
    train launched --servers 1 --nproc-per-node 4 -- "${example[@]}"
    same_crc bare launched
}

@test "the scheduler may also be started by hand, at a port that the system chooses" {
    local port rank
    shell scheduler "$penstock" scheduler --world-size 2 --servers 2
    for _ in $(seq 100); do
        port=$(sed -n 's/^penstock: scheduler listens at .*:\([0-9]*\)$/\1/p' "$tmp/scheduler.err")
        [ -n "$port" ] && break
        sleep 0.02
    done
    shell server-a "$penstock" server --master-addr 127.0.0.1 --master-port "$port"
    shell server-b "$penstock" server --master-addr 127.0.0.1 --master-port "$port"
    for rank in 0 1; do
        bare "$rank" 2 "$port" 2 env PENSTOCK_SCHEDULER=external "$programs/stepper"
    done
    all_end_well
    [ "$(cat "$tmp"/worker-?.out | sed 's/^rank [01] //' | sort | uniq -c | awk '$1 == 2' | wc -l)" = 5 ]
}

@test "two launchers of one worker each train the same as one launcher of two" {
    local port i
    port=$(free_port)
    for i in 1 0; do
        shell "node-$i" taskset -c 0 "$penstock" run --nnodes 2 --node-rank "$i" --master-port "$port" --servers 2 \
            --nproc-per-node 1 --job "$job" "${fashion[@]}" "${example[@]}" --out "$tmp/two.json"
        sleep 0.2 # machine 1 starts first, and waits
    done
    all_end_well
    taskset -c 0 "$penstock" run --standalone --servers 2 --nproc-per-node 2 "${fashion[@]}" "${example[@]}" \
        --out "$tmp/one.json" >"$tmp/one.out" 2>&1 3>&-
    same_crc two one
}

@test "a death on one machine ends both launchers, each with a failure" {
    local port i codes=()
    port=$(free_port)
    for i in 0 1; do
        shell "node-$i" "$penstock" run --nnodes 2 --node-rank "$i" --master-port "$port" --servers 2 --nproc-per-node 1 \
            --job "$job" "$programs/stepper" steps=100000 pause_ms=20 1:exit_at=60,42
    done
    for pid in $(jobs -p); do
        code=0
        wait "$pid" || code=$?
        codes+=("$code")
    done
    cat "$tmp"/node-?.err
    [ "${codes[*]}" = "1 42" ]
    grep -qE "^(penstock: |  verdict  )worker 1 \($host\) is gone" "$tmp/node-0.err"
    nothing_is_left
}
