# handlers.bats - code of the program's own on servers: requests, commands, late answers, snapshots, moves, crashes and hangs.

load ../support/job
load ../support/scale
load ../support/tables

setup() {
    job_setup
    plugin=$programs/handlers.so
    table_flags="--plugin $plugin"
}
teardown() { job_teardown; }

agrees() { # WORKERS SERVERS WORDS...: a handler that adds is sgd with rate -1, in a dictionary
    table one "$1" "$2" "" "${@:3}"
    python3 "$root/tests/support/table_reference.py" "$1" rule="sgd lr=-1" consistency=async "${@:3}" <"$tmp/one.out"
}

@test "a handler gets every request once, of every rank, with any keys and lengths, on any number of servers" {
    agrees 2 1 handler=add
    agrees 3 3 handler=add dim=0 any=1 in_flight=8 rounds=40
    agrees 2 4 handler=add verb=push_pull in_flight=16 rounds=60 place=range
    agrees 2 2 handler=late in_flight=16 rounds=40 place=own
    agrees 4 2 handler=late verb=push_pull in_flight=4
    nothing_is_left
}

@test "a program is its own server: meetings, commands to all parts, refusals, many answers of other threads" {
    local how
    for how in "--server-program $programs/serve" "--plugin $plugin"; do
        # shellcheck disable=SC2086
        run pen run --standalone --nproc-per-node 2 --servers 3 $how "$programs/serve"
        [ "$status" = 0 ] || { echo "$output"; return 1; }
        for rank in 0 1; do
            [[ $output == *"rank $rank met: 2 1 1"* ]]
            [[ $output == *"rank $rank: command 1: 3 servers have 100 keys"* ]]
            [[ $output == *"rank $rank: command 2: 3 servers have 100 keys"* ]]
            [[ $output == *"rank $rank: late: 8000"* ]]
        done
        [[ $output == *"refused push: INVALID_ARGUMENT: handler 'add' on server "*" refused a request to 'sums': an argument is outside its documented range"* ]]
        [[ $output == *"refused command: UNSUPPORTED: server 0 refused command 3:"* ]]
        [[ $output == *"command without an answer: TIMED_OUT: waited 0."*" s for server 0 to answer command 4"* ]]
    done
    nothing_is_left
}

@test "servers go from 2 to 4 to 3: states move whole, unanswered requests come again, and nothing is added twice" {
    local handler words=("optim=sgd lr=1" tensor=1 keys=300 batch=100 any=1 steps=150)
    table calm 2 2 "" handler=add "${words[@]}"
    for handler in add late heavy; do
        start "$handler" --no-prefix --servers 2:2:4 --nproc-per-node 2 --plugin "$plugin" "$programs/table" handler=$handler \
            "${words[@]}" pause_ms=20
        wait_for_step 10
        resize scale --servers 4
        settles server 4
        resize scale --servers 3
        settles server 3
        wait_for_end 60
        [ "$code" = 0 ] || { cat "$tmp/$handler.err"; return 1; }
        same calm "$handler"
    done
    nothing_is_left
}

@test "a snapshot has the states of handlers, and is restored onto other numbers of servers" {
    local servers words=("optim=sgd lr=1" tensor=1 keys=300 batch=100 dim=0 any=1)
    table whole 2 2 "" handler=add "${words[@]}" steps=40
    table half 2 2 "--store $tmp/store --snapshot-every 20" handler=heavy "${words[@]}" steps=20
    cp -r "$tmp/store" "$tmp/heavy"
    for servers in 1 3; do
        rm -rf "$tmp/store"
        table half 2 2 "--store $tmp/store --snapshot-every 20" handler=add "${words[@]}" steps=20
        table "rest$servers" 2 "$servers" "--store $tmp/store --resume" handler=add "${words[@]}" steps=40
    done
    table heavy 2 3 "--store $tmp/heavy --resume" handler=heavy "${words[@]}" steps=40
    same whole rest1 rest3 heavy
    rm -rf "$tmp/store"
    table half 2 2 "--store $tmp/store --snapshot-every 20" handler=add "${words[@]}" steps=20
    run table rest 2 2 "--store $tmp/store --resume" "${words[@]}" steps=40
    [[ $output == *"snapshot 20 has table 'emb' with a handler, and the program without"* ]]
    nothing_is_left
}

@test "a handler that cannot save makes no snapshot, and its parts stay where they are" {
    table tight 1 2 "--store $tmp/store --snapshot-every 5" handler=tight tensor=1 "optim=sgd lr=1" steps=60 pause_ms=5
    grep -q "no snapshot of step 5: server [01] (.*): save() of handler 'tight' failed on part [0-9]* of table 'emb': it has none" "$tmp/tight.err"
    table broken 1 1 "--store $tmp/store2 --snapshot-every 5" handler=broken_save tensor=1 "optim=sgd lr=1" steps=60 pause_ms=5
    grep -q "save() of handler 'broken_save' failed on part 0 of table 'emb': the disk is full, read-only or failing" "$tmp/broken.err"
    start stays --no-prefix --servers 1:1:2 --nproc-per-node 1 --plugin "$plugin" "$programs/table" handler=tight tensor=1 \
        "optim=sgd lr=1" steps=100 pause_ms=20
    wait_for_step 10
    resize scale --servers 2
    wait_for_end 60
    [ "$code" = 0 ] || { cat "$tmp/stays.err"; return 1; }
    grep -q "shard 0 cannot move to server 1: a handler has no save() and load()" "$tmp/stays.err"
    nothing_is_left
}

@test "a crash or a hang in a plugin is a death with a sentence that names the plugin" {
    local cmd
    if grep -q "^PENSTOCK_SANITIZE:STRING=." "$build/CMakeCache.txt"; then skip "the sanitizer takes these signals"; fi
    for cmd in 1 3 4; do
        run pen run --standalone --no-prefix --nproc-per-node 1 --servers 2 --plugin "$plugin" "$programs/table" handler=broken cmd=$cmd
        [ "$status" != 0 ]
        [[ $output == *"crashed ("*") in request() of handler 'broken' of plugin $plugin (part "*" of table 'emb')"* ]] || { echo "$output"; return 1; }
    done
    run pen run --standalone --no-prefix --nproc-per-node 1 --servers 1 --plugin "$plugin" --handler-timeout-ms 300 "$programs/table" \
        handler=broken cmd=2
    [ "$status" != 0 ]
    [[ $output == *"server 0 has been in request() of handler 'broken' of plugin $plugin (part 0 of table 'emb') for "*" s; it must return within handler_timeout_ms (0.3 s), and may answer later"* ]]
    nothing_is_left
}

@test "mistakes get a sentence: no such handler, copies of it, no plugin, a file that is none" {
    run pen run --standalone --no-prefix --servers 1 --plugin "$plugin" "$programs/table" handler=adder
    [[ $output == *"table 'emb' needs the handler 'adder', and server 0 has 'add', 'tight',"* ]]
    run pen run --standalone --no-prefix --servers 1 "$programs/table" handler=add
    [[ $output == *"table 'emb' needs the handler 'add', and server 0 has none; start the job with --plugin X.so, or the server with pen_serve()"* ]]
    run pen run --standalone --no-prefix --servers 2 --replicas 1 --plugin "$plugin" "$programs/table" handler=add
    [[ $output == *"table 'emb' has the handler 'add', whose state cannot be copied to other servers yet; start the job with --replicas 0"* ]]
    run pen run --standalone --no-prefix --servers 1 --plugin none.so "$programs/table" handler=add
    [[ $output == *"cannot load the plugin: ./none.so: cannot open shared object file: No such file or directory"* ]]
    run pen run --standalone --no-prefix --servers 1 --plugin "$build/lib/libpenstock.so" "$programs/table" handler=add
    [[ $output == *"has no function pen_plugin(); penstock.h describes it"* ]]
    nothing_is_left
}
