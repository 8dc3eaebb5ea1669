# hostile.bats - a job trains while strangers attack every port: noise, wrong keys, floods, half-open connections,
# endless messages, and names that belong to others. tests/bench/hostile.sh measures what that costs; here it must
# change nothing. local_sockets=no is set where strangers must reach a door in clear text at all; transport=zmq where
# they reflect and replay the handshake that they know.

load ../support/job
load ../support/hosts

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

@test "strangers at every port change no bit, exhaust nothing and are counted: on one host, in clear text over TCP, encrypted" {
    local flags=(--mode ps-bsp --optim "adamw lr=0.002" --clip 0.5 --steps 170)
    train clean --servers 2 --nproc-per-node 2 -- "${flags[@]}"
    besieged local
    [ "$(sed -n 's/.*"attempts": \([0-9]*\).*/\1/p' "$tmp/local.hostile")" = "$(sed -n 's/.*"unreached": \([0-9]*\).*/\1/p' "$tmp/local.hostile")" ]
    [ "$(sed -n 's/^[^[]*"refused":\([0-9]*\).*/\1/p' "$tmp/local.state")" = 0 ]
    besieged clear --local-sockets no --encryption clear
    is_counted clear
    [ "$(cat "$tmp/clear.mib")" -lt 700 ] # each port was sent about 800 MiB as one message
    besieged encrypted --encryption on
    is_counted encrypted
    [ "$(cat "$tmp/encrypted.mib")" -lt 400 ] # no stranger gets far enough to use memory
    grep -qE 'refused .*: a connection (without a key of this job|that ended without a message)|refused .*: the other end speaks ZeroMQ, this side does not' \
        "$tmp/log/$launched_job/attempt_0/server-0.err"
}

# The resident sets of these processes in KiB, one a line.
resident() {
    local pid
    for pid in "$@"; do sed -n 's/^VmHWM:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$pid/status"; done
}

# As another user, if this one is root.
as_somebody() {
    if [ "$(id -u)" = 0 ]; then setpriv --reuid 54321 --regid 54321 --clear-groups "$@"; else "$@"; fi
}

# A stepper job NAME with FLAGS is besieged by `imposter N RECORD HOST:PORT...`, run by PREFIX...; then it is as without.
withstands() { # NAME N RECORD HOST PREFIX...
    local name=$1 log at=() victims before=() port begun
    for port in $(ports); do at+=("$4:$port"); done
    [ "${#at[@]}" -ge 4 ]
    victims="$(member scheduler) $(member server 0) $(member worker 0) $(member worker 1)"
    # shellcheck disable=SC2086
    mapfile -t before < <(resident $victims)
    begun=$(status_value step)
    "${@:5}" "$tmp/theirs/imposter" "$2" "$3" "${at[@]}" >"$tmp/$name.imposter"
    cat "$tmp/$name.imposter"
    grep -q '"messages": 0}' "$tmp/$name.imposter"
    # shellcheck disable=SC2086
    paste <(printf '%s\n' "${before[@]}") <(resident $victims) | awk '{print $1, $2} $2 - $1 > 10240 {bad = 1} END {exit bad || NR != 4}'
    [ "$(status_value step)" -gt $((begun + 5)) ] # members and tools still come in
    for log in "$tmp/log/$launched_job"/attempt_0/*.err; do refused_once "$log"; done
    wait_for_end 120
    [ "$code" = 0 ] || { cat "$tmp/$name.err"; return 1; }
    diff <(sort "$tmp/clean.out") <(sort "$tmp/$name.out")
}

take_programs() { # where another user can read them
    mkdir -m 755 "$tmp/theirs"
    chmod 755 "$tmp"
    cp "$programs/imposter" "$tmp/theirs/"
    chmod 755 "$tmp/theirs/imposter"
}

@test "who claims the name of another peer, reflects a handshake or replays one, is not let in, and ends nobody" {
    local n=${IMPOSTERS:-1000} words=(steps=700 pause_ms=40) at relay
    take_programs
    pen run --standalone --servers 1 --nproc-per-node 2 "$programs/stepper" steps=700 >"$tmp/clean.out" 2>"$tmp/clean.err"
    start encrypted --transport zmq --encryption on --servers 1 --nproc-per-node 2 --log-dir "$tmp/log" "$programs/stepper" "${words[@]}"
    wait_for_step 5
    at=$(free_port) # a dialler with the secret, recorded on its way
    MARK=$mark "$programs/imposter" relay "$at" "127.0.0.1:$(sed 's/.*"address": *"[^"]*:\([0-9]*\)".*/\1/' "$tmp/penstock/$launched_job.json")" \
        "$tmp/record" 3>&- &
    relay=$!
    for _ in 1 2 3 4 5; do
        PENSTOCK_LOCAL_SOCKETS=no PENSTOCK_TRANSPORT=zmq "$penstock" status --master-port "$at" --secret-file "$(ls "$tmp"/penstock/*.key)" && break
        sleep 0.1
    done | grep -q encrypted
    kill "$relay"
    [ "$(stat -c %s "$tmp/record")" -gt 400 ]
    chmod 644 "$tmp/record"
    withstands encrypted "$n" "$tmp/record" 127.0.0.1 as_somebody
    grep -q "\"connections\": $((n * 8 * 4)), \"impossible\": 0," "$tmp/encrypted.imposter"
}

@test "the same strangers on another host of the network change nothing either" {
    local n=$((${IMPOSTERS:-1000} / 4)) at=() port pids before
    can_have_bridge || skip "no hosts"
    take_programs
    hosts_start 2
    pen run --standalone --servers 1 --nproc-per-node 2 "$programs/stepper" steps=300 >"$tmp/clean.out" 2>"$tmp/clean.err"
    begin_on node0 run0 "$penstock" run --master-addr node0 --servers 1 --nproc-per-node 2 --log-dir "$tmp/log" --job far \
        "$programs/stepper" steps=300 pause_ms=40
    for _ in $(seq 500); do grep -q 'step 5 ' "$tmp/run0.out" && break || sleep 0.02; done
    for port in $(on node0 "$penstock" status --json | grep -oE 'tcp://[^"]+' | sed 's/.*://' | sort -un); do
        at+=("$(host_address node0):$port")
    done
    [ "${#at[@]}" -ge 3 ] || { on node0 "$penstock" status --json; return 1; }
    pids=$(on node0 pgrep -f 'penstock (scheduler|server)')
    # shellcheck disable=SC2086
    before=$(on node0 grep -h VmHWM $(printf '/proc/%s/status ' $pids))
    on node1 "$([ "$(id -u)" = 0 ] && echo setpriv || echo env)" $([ "$(id -u)" != 0 ] || echo --reuid 54321 --regid 54321 --clear-groups) \
        "$tmp/theirs/imposter" "$n" - "${at[@]}" >"$tmp/imposter"
    cat "$tmp/imposter"
    grep -q "\"connections\": $((n * 7 * ${#at[@]})), \"impossible\": 0, \"messages\": 0}" "$tmp/imposter"
    # shellcheck disable=SC2086
    paste <(echo "$before") <(on node0 grep -h VmHWM $(printf '/proc/%s/status ' $pids)) |
        awk '{print $2, $5} $5 - $2 > 10240 {bad = 1} END {exit bad || NR != 2}'
    for port in "$tmp/log/far/attempt_0"/*.err; do refused_once "$port"; done
    ends run0 0 120
    diff <(sort "$tmp/clean.out") <(sort "$tmp/run0.out")
    hosts_stop
}
