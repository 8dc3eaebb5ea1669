# hostile.bats - a job trains while strangers attack every port: noise, wrong keys, floods, half-open connections,
# endless messages. tests/bench/hostile.sh measures what that costs; here it must change nothing.

load ../support/job

setup() {
    job_setup
    unset PENSTOCK_SECRET_FILE PENSTOCK_ENCRYPTION
}
teardown() { job_teardown; }

# Ports of scheduler, shards and workers of the started job.
ports() {
    { sed 's/.*"address": *"\([^"]*\)".*/\1/' "$tmp/penstock/$launched_job.json"; echo
      status | grep -oE 'tcp://[^"]+'; } | sed 's/.*://' | grep -E '^[0-9]+$' | sort -un
}

# The largest resident set of any process of this test so far, in MiB.
most_resident() {
    local pid
    for pid in $(marked); do sed -n 's/^VmHWM:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$pid/status"; done |
        sort -n | tail -1 | awk '{print int($1 / 1024)}'
}

# besieged NAME FLAGS...: trains like the clean run while strangers attack for 6 s.
besieged() {
    local name=$1
    shift
    start "$name" --servers 2 --nproc-per-node 2 --log-dir "$tmp/log" "$@" "${fashion[@]}" "${flags[@]}" --slow-ms 60 \
        --out "$tmp/$name.json"
    wait_for_step 2
    ports >"$tmp/ports"
    [ "$(wc -l <"$tmp/ports")" -ge 5 ] || { cat "$tmp/ports"; return 1; }
    MARK=$mark "$programs/hostile" 6 200 $(cat "$tmp/ports") >"$tmp/$name.hostile" 3>&-
    cat "$tmp/$name.hostile"
    most_resident >"$tmp/$name.mib"
    echo "# $name: $(cat "$tmp/$name.hostile") largest process $(cat "$tmp/$name.mib") MiB" >&3
    sleep 1.2 # a heartbeat carries the servers' counters
    status >"$tmp/$name.state"
    wait_for_end 60
    [ "$code" = 0 ] || { cat "$tmp/$name.err"; return 1; }
    same_crc clean "$name"
    nothing_is_left
}

# At most one log line for each peer, server and job; every server and the scheduler counted.
is_counted() {
    local port
    [ "$(sed -n 's/^[^[]*"refused":\([0-9]*\).*/\1/p' "$tmp/$1.state")" -ge 20 ]
    members_of <"$tmp/$1.state" | grep '"role":"server"' | while read -r line; do
        [ "$(sed 's/.*"refused":\([0-9]*\).*/\1/' <<<"$line")" -ge 20 ]
    done
    for port in scheduler server-0 server-1; do
        refused_once "$tmp/log/$launched_job/attempt_0/$port.err"
    done
}

@test "strangers at every port change no bit, exhaust nothing and are counted, in clear text and encrypted" {
    local flags=(--mode ps-bsp --optim "adamw lr=0.002" --clip 0.5 --steps 170)
    train clean --servers 2 --nproc-per-node 2 -- "${flags[@]}"
    besieged clear
    is_counted clear
    [ "$(cat "$tmp/clear.mib")" -lt 700 ] # each port was sent about 800 MiB as one message
    besieged encrypted --encryption on
    is_counted encrypted
    [ "$(cat "$tmp/encrypted.mib")" -lt 400 ] # no stranger gets far enough to use memory
    grep -qE 'refused .*: a connection (without a key of this job|that ended without a message)' \
        "$tmp/log/$launched_job/attempt_0/server-0.err"
}
