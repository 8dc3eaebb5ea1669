# garbage.bats - what strangers send to our ports is counted, logged once, and changes nothing.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# HOST PORT of the scheduler and of every shard of the started job, one a line.
ports() {
    { sed 's/.*"address": *"\([^"]*\)".*/\1/' "$tmp/penstock/$launched_job.json"
      status | members_of | grep '"role":"server"' | grep -oE 'tcp://[^"]+'; } | sed 's,tcp://\(.*\):\([0-9]*\),\1 \2,'
}

@test "noise, HTTP, a frame of 2^60 bytes and half a greeting on every port change nothing and are counted" {
    local flags=(--mode ps-bsp --optim "adamw lr=0.002" --clip 0.5 --steps 150) kind port before after
    train clean --servers 2 --nproc-per-node 2 -- "${flags[@]}"
    start dirty --local-sockets no --encryption clear --servers 2 --nproc-per-node 2 --log-dir "$tmp/log" "${fashion[@]}" "${flags[@]}" --slow-ms 40 \
        --out "$tmp/dirty.json"
    wait_for_step 2
    ports >"$tmp/ports"
    cat "$tmp/ports"
    [ "$(wc -l <"$tmp/ports")" = 3 ]
    for kind in random http huge cut frames random http huge; do
        while read -r port; do
            MARK=$mark "$programs/garbage" $port "$kind" 3>&- &
        done <"$tmp/ports"
        sleep 0.1
    done
    before=$(status_value step)
    wait_for_step $((before + 25)) # a heartbeat carries the servers' counters
    status >"$tmp/state"
    kill -0 "$launcher"
    wait_for_end 40
    [ "$code" = 0 ] || { cat "$tmp/dirty.err"; false; }
    same_crc clean dirty

    cat "$tmp/state"
    [ "$(sed -n 's/^[^[]*"refused":\([0-9]*\).*/\1/p' "$tmp/state")" -ge 4 ]
    members_of <"$tmp/state" | grep '"role":"server"' | while read -r line; do
        [ "$(sed 's/.*"refused":\([0-9]*\).*/\1/' <<<"$line")" -ge 4 ]
    done
    cat "$tmp"/log/*/attempt_0/{scheduler,server-0,server-1}.err
    for port in scheduler server-0 server-1; do # the job lasts less than a minute: one line for each peer
        grep -qE 'peer [0-9]+|who it is' "$tmp/log/$launched_job/attempt_0/$port.err"
        refused_once "$tmp/log/$launched_job/attempt_0/$port.err"
    done
    nothing_is_left
}

@test "noise at the scheduler's port before any member joined does not keep the job from starting" {
    local port
    MARK=$mark "$penstock" scheduler --world-size 1 --servers 0 --local-sockets no --encryption clear 2>"$tmp/scheduler.err" 3>&- &
    for _ in $(seq 100); do
        port=$(sed -n 's/^penstock: scheduler listens at .*:\([0-9]*\)$/\1/p' "$tmp/scheduler.err")
        [ -n "$port" ] && break
        sleep 0.02
    done
    for kind in random http huge cut frames; do
        "$programs/garbage" 127.0.0.1 "$port" "$kind"
    done
    PENSTOCK_LOCAL_SOCKETS=no PENSTOCK_ENCRYPTION=clear pen status --json --master-port "$port" | grep -q '"phase":"joining"'
}

# CPU time of the started job's scheduler, servers and workers in ticks of 10 ms, one number a line.
ticks() {
    local name
    for name in scheduler "server 0" "server 1" "worker 0" "worker 1"; do
        sed 's/.*) //' "/proc/$(member $name)/stat" | awk '{print $12 + $13}'
    done
}

@test "no process spins after guests and strangers have come and gone" {
    local kind port
    start idle --local-sockets no --encryption clear --servers 2 --nproc-per-node 2 "$programs/stepper" steps=100000 1:pause_ms=400
    wait_for_step 1
    ports >"$tmp/ports"
    for kind in http cut; do
        while read -r port; do "$programs/garbage" $port "$kind"; done <"$tmp/ports"
    done
    status >"$tmp/state"
    sleep 1
    paste <(ticks) <(sleep 2; ticks) | tee "$tmp/ticks"
    awk '$2 - $1 > 15 {bad = 1} END {exit bad || NR != 5}' "$tmp/ticks" # idle: 1 or 2; spinning on a busy machine: 50
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}
