# http.bats - what the processes of a job serve over HTTP.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# The answer of HOST:PORT to GET PATH, with optional header lines:  ask 127.0.0.1:80 /status ["Authorization: ..."]
ask() {
    local line
    exec 7<>"/dev/tcp/${1%:*}/${1##*:}"
    printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n' "$2" >&7
    for line in "${@:3}"; do printf '%s\r\n' "$line" >&7; done
    printf '\r\n' >&7
    timeout 20 cat <&7
    exec 7>&-
}

# The HTTP address of the started job's scheduler.
shown_at() {
    sed -n 's/.*"http": "http:\/\/\([^"]*\)".*/\1/p' "$tmp/penstock/$launched_job.json"
}

@test "the scheduler serves status and metrics on loopback by default; members do not" {
    start one --servers 1 --nproc-per-node 1 "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 2
    at=$(shown_at)
    ask "$at" /healthz | grep -q '^HTTP/1.1 200 '
    ask "$at" /status | tail -n 1 | grep -q "^{\"job\":\"$job-one\",\"phase\":\"training\","
    ask "$at" /metrics >"$tmp/metrics"
    tr -d '\r' <"$tmp/metrics" | grep -q '^Content-Type: text/plain; version=0.0.4; charset=utf-8$'
    grep -q '^penstock_job_members{role="worker",state="active"} 1$' "$tmp/metrics"
    [ "$(ask "$at" /targets | tail -n 1 | grep -o '"targets"' | wc -l)" = 1 ]
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}

@test "--http: servers and workers serve them too, readers need the token off loopback, and targets names all" {
    local target token=0123456789abcdef
    (umask 077 && echo "$token" >"$tmp/token")
    start two --http "0.0.0.0:$(free_port)" --http-token-file "$tmp/token" --servers 1 --nproc-per-node 2 \
        "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 2
    at=127.0.0.1:$(shown_at | sed 's/.*://')
    ask "$at" /readyz | grep -q '^HTTP/1.1 200 '
    ask "$at" /metrics | grep -q '^HTTP/1.1 401 '
    for _ in $(seq 100); do # heartbeats carry the ports
        ask "$at" "/targets?token=$token" | tail -n 1 >"$tmp/targets"
        [ "$(grep -o '"targets"' "$tmp/targets" | wc -l)" = 4 ] && break
        sleep 0.05
    done
    for role in server worker; do
        target=$(sed 's/}},/}}\n/g' "$tmp/targets" | sed -n "s/.*:\([0-9]*\)\"\].*\"$role\".*/\1/p" | head -n 1)
        ask "127.0.0.1:$target" /readyz | grep -q '^HTTP/1.1 200 '
        ask "127.0.0.1:$target" /metrics | grep -q '^HTTP/1.1 401 '
        ask "127.0.0.1:$target" /metrics "Authorization: Bearer $token" >"$tmp/$role"
        grep -qE "^penstock_steps_total\{role=\"$role\",rank=\"[01]\"\} [1-9]" "$tmp/$role"
    done
    grep -qE '^penstock_push_seconds_count\{role="server",rank="0"\} [1-9]' "$tmp/server"
    grep -qE '^penstock_step_seconds_count\{role="worker",rank="[01]"\} [1-9]' "$tmp/worker"
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}
