# liar.bats - a job that trains while somebody who knows where its memory lies tells it lies about memory, as the same user
# and as another: nothing is read out, nothing ends, nothing grows.
# alone: it measures memory.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# Ports of scheduler and shards of the started job.
ports() {
    { sed 's/.*"address": *"\([^"]*\)".*/\1/' "$tmp/penstock/$launched_job.json"; echo
      status | members_of | grep '"role":"server"' | grep -oE 'tcp://[^"]+'; } | sed 's/.*://' | grep -E '^[0-9]+$' | sort -un
}

# The largest resident set so far, in KiB, and the open descriptors of each victim, one a line.
sizes() {
    local pid
    for pid in $victims; do
        echo "$(sed -n 's/^VmHWM:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$pid/status") $(ls "/proc/$pid/fd" | wc -l)"
    done
}

@test "lies about memory read nothing, end nothing and cost no memory, by this user and another" {
    local words=(steps=120 rows=1000) port corpus=$root/tests/fuzz/corpus # large enough to be lent
    pen run --standalone --servers 2 --nproc-per-node 2 "$programs/stepper" "${words[@]}" >"$tmp/clean.out" 2>"$tmp/clean.err"
    start besieged --servers 2 --nproc-per-node 2 --log-dir "$tmp/log" "$programs/stepper" "${words[@]}" pause_ms=60
    wait_for_step 20
    ports >"$tmp/ports"
    [ "$(wc -l <"$tmp/ports")" = 3 ]
    victims="$(member scheduler) $(member server 0) $(member server 1)"
    sizes >"$tmp/before"
    MARK=$mark "$programs/liar" 4 "$corpus/wire_control/HELLO" "$corpus/wire_data/PUSH" \
        "$(member server 0),$(member worker 0),$(member worker 1)" $(cat "$tmp/ports") >"$tmp/lies" 3>&-
    cat "$tmp/lies"
    sleep 0.5
    sizes >"$tmp/after"
    paste "$tmp/before" "$tmp/after"
    wait_for_end 60
    [ "$code" = 0 ] || { cat "$tmp/besieged.err"; return 1; }
    diff <(sort "$tmp/clean.out") <(sort "$tmp/besieged.out")
    [ "$(wc -l <"$tmp/clean.out")" -ge 120 ]

    [ "$(wc -l <"$tmp/lies")" = "$([ "$(id -u)" = 0 ] && echo 2 || echo 1)" ]
    [ "$(grep -c '"answers": 0}' "$tmp/lies")" = "$(wc -l <"$tmp/lies")" ]
    [ "$(sed -n 's/.*"user": "own".*"messages": \([0-9]*\).*/\1/p' "$tmp/lies")" -ge 1000 ]
    [ "$(sed -n 's/.*"user": "own", "places": \([0-9]*\).*/\1/p' "$tmp/lies")" -ge 3 ]
    paste "$tmp/before" "$tmp/after" | awk '$3 - $1 > 10240 || $4 - $2 > 2 {bad = 1} END {exit bad || NR != 3}'
    for port in scheduler server-0 server-1; do # the job lasts less than a minute: one line for each peer
        [ -z "$(grep -oE 'peer [0-9]+' "$tmp/log/$launched_job/attempt_0/$port.err" | sort | uniq -d)" ]
    done
    nothing_is_left
}

@test "what the status of a job shows says where members listen, and not where their memory lies" {
    start seen --nproc-per-node 2 "$programs/stepper" steps=100000 1:pause_ms=200
    wait_for_step 1
    status >"$tmp/state"
    grep -q 'tcp://' "$tmp/state"
    ! grep -E "node:|cuda:|memfd" "$tmp/state" || false
    kill "$launcher"
    wait_for_end 8
}
