# encrypted.bats - encrypted jobs: the same results, which processes are admitted, and where the secret may appear.

load ../support/job

setup() {
    job_setup
    unset PENSTOCK_SECRET_FILE PENSTOCK_ENCRYPTION
    far=$(hostname -I 2>/dev/null | tr ' ' '\n' | grep -m1 -E '^[0-9]+(\.[0-9]+){3}$') || :
}
teardown() { job_teardown; }

# Fails if the text is on a command line or in an environment of this test's processes.
is_nowhere_to_be_seen() {
    local pid
    for pid in $(marked); do
        ! tr '\0' '\n' <"/proc/$pid/cmdline" | grep -qF -- "$1" || { echo "command line of $pid"; return 1; }
        ! tr '\0' '\n' <"/proc/$pid/environ" | grep -qF -- "$1" || { echo "environment of $pid"; return 1; }
    done
}

# The port of the started job's scheduler.
port() {
    sed 's/.*:\([0-9]*\)", "pid.*/\1/' "$tmp/penstock/$launched_job.json"
}

# The lines of the last step, without the rank in front.
last_step() {
    grep -h 'step 39 ' "$@" | sed 's/^\[[0-9]*\] rank [0-9]* //' | sort -u
}

@test "an encrypted job gives the same bits as one in clear text, with servers and without" {
    local servers
    for servers in 0 2; do # local_sockets=no: as between hosts
        pen run --standalone --nproc-per-node 2 --servers $servers "$programs/stepper" steps=40 >"$tmp/clear$servers"
        pen run --standalone --nproc-per-node 2 --servers $servers --encryption on --local-sockets no --shared-memory no \
            "$programs/stepper" steps=40 >"$tmp/on$servers"
        [ "$(last_step "$tmp/on$servers" | wc -l)" = 1 ]
        [ "$(last_step "$tmp/on$servers")" = "$(last_step "$tmp/clear$servers")" ]
    done
    nothing_is_left
    [ -z "$(ls "$tmp"/penstock/*.key 2>/dev/null)" ]
}

@test "what carries the messages changes no bit, encrypted or not" {
    local transport encryption
    pen run --standalone --nproc-per-node 2 --servers 2 "$programs/stepper" steps=40 >"$tmp/auto"
    for transport in zmq tcp; do
        for encryption in clear on; do
            pen run --standalone --nproc-per-node 2 --servers 2 --encryption $encryption --local-sockets no --transport $transport \
                "$programs/stepper" steps=40 >"$tmp/$transport"
            [ "$(last_step "$tmp/$transport")" = "$(last_step "$tmp/auto")" ]
        done
    done
}

@test "status finds a job whatever carries its messages" {
    start plain --servers 1 --nproc-per-node 1 --encryption on --local-sockets no --transport tcp "$programs/stepper" \
        steps=100000 pause_ms=20
    wait_for_step 2
    env -u PENSTOCK_TRANSPORT "$penstock" status --job "$launched_job" | grep -q '^worker'
    kill "$launcher"
    wait_for_end 8
}

@test "a run that ends before its job starts leaves no secret" {
    run pen run --standalone --encryption on --trace "$tmp/nowhere/trace.json" "$programs/stepper" steps=1
    [ "$status" = 2 ]
    [[ $output == *"cannot create the folder "* ]]
    [ -d "$tmp/penstock" ]
    [ -z "$(ls "$tmp"/penstock/*.key 2>/dev/null)" ]
}

@test "run writes its secret to a file of its own user, which is deleted with the job; status finds it" {
    start keep --servers 1 --nproc-per-node 2 --encryption on "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 2
    local key=$(ls "$tmp"/penstock/*.key)
    [ "$(stat -c %a "$key")" = 600 ]
    is_nowhere_to_be_seen "$(cut -c 6-40 "$key")"
    pen status | grep -q '^worker'
    "$penstock" keygen "$tmp/other"
    PENSTOCK_LOCAL_SOCKETS=no run pen status --secret-file "$tmp/other" --master-port "$(port)" --timeout-ms 1500
    [ "$status" = 1 ]
    [[ $output == *"the other end does not know this job's secret; check --secret-file and --encryption" ]]
    kill "$launcher"
    wait_for_end 8
    [ -z "$(ls "$tmp"/penstock/*.key 2>/dev/null)" ]
    nothing_is_left
}

# The key that worker RANK shares with a server, derived from the file of the secret by other code than ours.
shared_key() {
    /usr/bin/python3 - "$1" "$2" <<'END'
import base64, hashlib, sys
secret = base64.urlsafe_b64decode(open(sys.argv[1]).read().strip()[len("pen1:"):])[:32]
server, worker = 1, 2
use, index = 3 + 16 * worker + 256 * server, int(sys.argv[2]) + 1
number = (use << 32 | index).to_bytes(8, "little")
print(hashlib.blake2b(key=secret, salt=number.ljust(16, b"\0"), person=b"penstock".ljust(16, b"\0"), digest_size=32).hexdigest())
END
}

# What `openssl s_client`, as worker 0 with that key, prints of a connection to the server.
s_client() {
    local port=$(pen status --json | grep -o '"role":"server".*' | grep -om1 'tcp://127.0.0.1:[0-9]*' | grep -o '[0-9]*$')
    sleep 1 | timeout 10 openssl s_client -connect "127.0.0.1:$port" -psk "$1" -psk_identity "${3:-penstock 2 1}" "$2" 2>&1
}

@test "openssl s_client with the key of a worker reaches a server, and with any other does not" {
    command -v openssl || skip "the command openssl is not installed"
    start psk --servers 1 --nproc-per-node 1 --encryption on --local-sockets no "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 2
    local key=$(shared_key "$tmp"/penstock/*.key 0) seen
    seen=$(s_client "$key" -tls1_3 | tr '\0' ' ')
    [[ $seen == *"Reused, TLSv1.3, Cipher is TLS_"*_SHA256* ]]
    [[ $seen == *PENSOCK$'\x01'* ]]
    [[ $seen == *"Early data was not sent"* ]]
    [[ $seen != *"Post-Handshake New Session Ticket"* ]]
    seen=$(s_client "$(shared_key "$tmp"/penstock/*.key 1)" -tls1_3 | tr '\0' ' ') # the key of worker 1
    [[ $seen == *"alert illegal parameter"* && $seen != *PENSOCK* ]]
    seen=$(s_client "$key" -tls1_3 "penstock 3 0" | tr '\0' ' ') # a tool has no business with a server
    [[ $seen == *alert* && $seen != *PENSOCK* ]]
    seen=$(s_client "$key" -tls1_2 | tr '\0' ' ')
    [[ $seen == *alert* && $seen != *PENSOCK* ]]
    wait_for_step $(($(status_value step) + 2)) # nobody was disturbed
    kill "$launcher"
    wait_for_end 8
}

@test "two machines off loopback: machine 0 prints the join line, machine 1 uses it and hides it" {
    [ -n "$far" ] || skip "this host has no address but loopback"
    local port=$(free_port) line pids=()
    MARK=$mark "$penstock" run --nnodes 2 --node-rank 0 --master-addr "$far" --master-port "$port" --servers 2 \
        --no-prefix "$programs/stepper" steps=40 pause_ms=30 >"$tmp/node0.out" 2>"$tmp/node0.err" 3>&- &
    pids+=($!)
    for _ in $(seq 100); do
        line=$(sed -n 's/^penstock: on each other machine.*paste this line:  //p' "$tmp/node0.err")
        [ -n "$line" ] && break
        sleep 0.05
    done
    [[ $line == pen1:*@$far:$port ]]
    MARK=$mark "$penstock" run --nnodes 2 --node-rank 1 --join - --no-prefix --servers 2 \
        "$programs/stepper" steps=40 pause_ms=30 >"$tmp/node1.out" 2>"$tmp/node1.err" 3>&- <<<"$line" &
    pids+=($!)
    sleep 1
    is_nowhere_to_be_seen "${line:5:40}"
    for pid in "${pids[@]}"; do wait "$pid" || { cat "$tmp"/node?.err; return 1; }; done
    [ "$(cat "$tmp/node0.out" "$tmp/node1.out" | grep -c 'step 39 ')" = 2 ]
    [ -z "$(ls "$tmp"/penstock/*.key 2>/dev/null)" ]
    nothing_is_left
}

@test "--join takes what machine 0 printed, whole, from stdin or a file of this user; on the command line it is refused" {
    local line="pen1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA@127.0.0.1:$(free_port)" name
    run pen run --nnodes 2 --node-rank 1 --join "$line" true
    [ "$status" = 2 ]
    [ "$output" = "penstock run: --join takes - or a file, not the line itself: other users could read its secret in the process list; use --join -, and paste the line" ]
    pen run --nnodes 2 --master-addr 127.0.0.1 --encryption on --print-config true >/dev/null
    MARK=$mark "$penstock" run --nnodes 2 --master-addr 127.0.0.1 --encryption on "$programs/stepper" steps=10 >"$tmp/node0.out" 2>"$tmp/node0.err" 3>&- &
    local zero=$!
    for _ in $(seq 250); do grep -q 'paste this line' "$tmp/node0.err" && break || sleep 0.02; done
    grep 'give the same command its --node-rank and --join -, and paste this line:  pen1:' "$tmp/node0.err" >"$tmp/line"
    run pen run --nnodes 2 --node-rank 1 --join "$tmp/line" true
    [ "$status" = 2 ]
    [ "$output" = "penstock run: --join: the join line in $tmp/line is open to others (mode 0644): chmod 600 it; make a new one if others may have read it" ]
    chmod 600 "$tmp/line"
    pen run --nnodes 2 --node-rank 1 --join "$tmp/line" "$programs/stepper" steps=10 >"$tmp/node1.out"
    wait "$zero"
    cat "$tmp/node0.out" "$tmp/node1.out" | grep -c 'step 9 ' | is_text 2
    nothing_is_left
}

@test "off loopback without a secret nothing is sent, and the sentence names the remedies" {
    local expected="node-7 is not loopback, so traffic is encrypted, but the job's secret is missing: \`penstock keygen FILE\` makes one; set secret_file=FILE for every process (PENSTOCK_SECRET_FILE), or encryption=clear"
    run env MASTER_ADDR=node-7 MASTER_PORT=1 RANK=1 WORLD_SIZE=2 "$programs/stepper" steps=1
    [ "$output" = "stepper: $expected" ]
    run pen server --master-addr node-7 --master-port 1
    [ "$output" = "penstock: $expected" ]
    run pen run --nnodes 2 --node-rank 1 --master-addr node-7 true
    [ "$output" = "penstock: machine 1 needs the job's secret; use --join - and paste the line from machine 0, or --secret-file FILE on all machines, or --encryption clear on all" ]
    run pen run --nnodes 2 --node-rank 1 --join - true <<<"pen1:nonsense"
    [ "$output" = "penstock run: --join: expected a join line SECRET@HOST:PORT, as machine 0 printed it" ]
    run pen run --nnodes 2 --node-rank 1 --join "$tmp/nowhere" true
    [ "$output" = "penstock run: --join: cannot read the join line in $tmp/nowhere: No such file or directory" ]
}

@test "clear text off loopback works when it is requested by name, and is reported" {
    [ -n "$far" ] || skip "this host has no address but loopback"
    pen run --master-addr "$far" --nproc-per-node 2 --servers 1 --encryption clear "$programs/stepper" steps=3 \
        >"$tmp/out" 2>"$tmp/err"
    grep -c "^penstock: WARNING: traffic over TCP ($far) is neither encrypted nor authenticated (encryption=clear): whoever reaches the job's ports can read it, and control or end the job\$" "$tmp/err" | is_text 1
    [ "$(grep -c 'step 2 ' "$tmp/out")" = 2 ]
}

@test "a process with another secret is refused, is counted, and is told why" {
    "$penstock" keygen "$tmp/ours" && "$penstock" keygen "$tmp/theirs"
    start ours --servers 1 --nproc-per-node 2 --secret-file "$tmp/ours" "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 2
    local err before
    before=$(status_value refused)
    # As on another host: on this one, processes of one user need no secret.
    MARK=$mark PENSTOCK_LOCAL_SOCKETS=no PENSTOCK_SECRET_FILE="$tmp/theirs" PENSTOCK_SCHEDULER=external RANK=2 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 \
        MASTER_PORT=$(port) "$programs/stepper" steps=1 init_timeout_ms=1500 >"$tmp/stranger.out" 2>"$tmp/stranger.err" 3>&- || err=$?
    cat "$tmp/stranger.err"
    [ "$err" -gt 0 ]
    grep -q "what answers there has another secret" "$tmp/stranger.err"
    MARK=$mark PENSTOCK_LOCAL_SOCKETS=no PENSTOCK_ENCRYPTION=clear PENSTOCK_SCHEDULER=external RANK=2 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 \
        MASTER_PORT=$(port) "$programs/stepper" steps=1 init_timeout_ms=4000 >"$tmp/clear.out" 2>"$tmp/clear.err" 3>&- || :
    grep -q "ncrypt" "$tmp/clear.err"
    [ "$(status_value refused)" -gt "$before" ]
    kill -0 "$launcher"
    kill "$launcher"
    wait_for_end 8
    [ "$(grep -c 'refused a connection .*that has not said who it is: ' "$tmp/ours.err")" = 1 ] # at most once a minute
    nothing_is_left
}

@test "four bare shells with a secret file are encrypted, rank 0 hosting the scheduler" {
    local port=$(free_port) rank pids=()
    "$penstock" keygen "$tmp/key"
    for rank in 3 2 1 0; do
        MARK=$mark PENSTOCK_SECRET_FILE="$tmp/key" RANK=$rank WORLD_SIZE=4 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=4 \
            MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$programs/stepper" steps=40 >"$tmp/rank$rank" 2>"$tmp/rank$rank.err" 3>&- &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || { cat "$tmp"/rank?.err; return 1; }; done
    [ "$(last_step "$tmp"/rank[0-3] | sed 's/^rank [0-9]* //' | sort -u | wc -l)" = 1 ]
    nothing_is_left
}

@test "the keys of launchers that were killed are removed by the next one, a joiner's too, and that of one that lives stays" {
    local keys=$tmp/penstock port=$(free_port) line pids=() old young
    # Two launchers on this machine, over loopback: it may have no other network.
    local job_of_two=(run --nnodes 2 --encryption on "$programs/stepper" steps=100000 pause_ms=20)
    MASTER_ADDR=127.0.0.1 MASTER_PORT=$port MARK=$mark "$penstock" "${job_of_two[@]}" 2>"$tmp/node0.err" >"$tmp/node0.out" 3>&- &
    pids+=($!)
    for _ in $(seq 250); do
        line=$(sed -n 's/^penstock: on each other machine.*paste this line:  //p' "$tmp/node0.err")
        [ -n "$line" ] && break || sleep 0.02
    done
    MARK=$mark "$penstock" run --node-rank 1 --join - "${job_of_two[@]:1}" 2>"$tmp/node1.err" >"$tmp/node1.out" 3>&- <<<"$line" &
    pids+=($!)
    for _ in $(seq 500); do grep -q 'step 1 ' "$tmp/node1.out" && break || sleep 0.02; done
    old=$(ls "$keys"/*.key)
    [ "$(wc -l <<<"$old")" = 2 ]
    kill -9 "${pids[@]}"
    wait "${pids[@]}" || :
    start lives --encryption on --servers 1 --nproc-per-node 1 "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 1
    young=$(ls "$keys"/*.key | grep -vxF "$old")
    [ -f "$young" ]
    touch -d '1 minute ago' "$keys"/*.key
    train next --encryption on --nproc-per-node 2 -- --mode ddp --steps 1
    is_text "$young" < <(ls "$keys"/*.key)
    kill "$launcher"
    wait_for_end 8
    [ ! -e "$young" ]
    nothing_is_left 5
}
