# tables.bats - tables by key in real jobs: against a dictionary, on any number of servers, through kills and restores.

load ../support/job
load ../support/scale
load ../support/tables

setup() { job_setup; }
teardown() { job_teardown; }

# Everything that the dictionary knows, and the same bits on 1 to 4 servers.
agrees() { # WORKERS WORDS...
    local servers
    for servers in 1 2 4; do table "s$servers" "$1" "$servers" "" "${@:2}"; done
    same s1 s2 s4
    python3 "$root/tests/support/table_reference.py" "$1" "${@:2}" <"$tmp/s2.out"
}

@test "bsp: every rule, type, length and placement gives what a dictionary gives, and equal bits on 1 to 4 servers" {
    agrees 1 rule="adagrad lr=0.1"
    agrees 2 dim=0 any=1
    agrees 2 dim=0 rule="rowwise_adagrad lr=0.1"
    agrees 3 dim=33 type=f16 place=range any=1
    agrees 4 type=bf16 verb=push_pull place=own
    agrees 2 rule="adam lr=0.1" dim=0 verb=push_pull
    agrees 3 rule="ftrl lr=0.1 l1=0.1 initial_accumulator=0.1" dim=1 any=1
    agrees 2 keys=3000 batch=2000 any=1 # enough for one part to sort many keys, also those that differ in all bytes
    agrees 2 keys=3000 batch=2000 any=1 place=range
    nothing_is_left
}

@test "bsp: rules without a dictionary of their own give equal bits on 1 to 4 servers" {
    local rule i=0
    for rule in "sgd lr=0.1 momentum=0.9 nesterov=yes" "adamw lr=0.1" "rmsprop lr=0.1" adadelta adamax lion lamb sum; do
        table "a$i" 2 1 "" rule="$rule" init="normal std=0.1" dim=0
        table "b$i" 2 3 "" rule="$rule" init="normal std=0.1" dim=0
        same "a$i" "b$i"
        i=$((i + 1))
    done
    nothing_is_left
}

@test "async and ssp apply every push once, also when many are in flight" {
    local how
    for how in async "ssp s=1" "ssp s=0"; do
        table one 1 1 "" consistency="$how" in_flight=8 rounds=40
        table three 3 2 "" consistency="$how" in_flight=8 rounds=40 any=1
        table pulling 2 3 "" consistency="$how" in_flight=1 rounds=40 verb=push_pull
        python3 "$root/tests/support/table_reference.py" 1 consistency=async rounds=40 <"$tmp/one.out"
        python3 "$root/tests/support/table_reference.py" 3 consistency=async rounds=40 any=1 <"$tmp/three.out"
        python3 "$root/tests/support/table_reference.py" 2 consistency=async rounds=40 <"$tmp/pulling.out"
    done
    nothing_is_left
}

@test "first values are a function of seed, table and key, whoever asks and whenever" {
    table uniform 2 3 "" init="uniform a=-0.1 b=0.1" rounds=1 batch=1 keys=2 rule="sgd lr=0"
    table later 1 1 "" init="uniform a=-0.1 b=0.1" rounds=9 batch=3 keys=2 rule="sgd lr=0"
    table seed 1 1 "" init="uniform a=-0.1 b=0.1" rounds=1 batch=1 keys=2 rule="sgd lr=0" seed=1
    same uniform later
    [ "$(digests seed)" != "$(digests later)" ]
    grep -q '^key 0 -\?0.0' "$tmp/uniform.out"
    nothing_is_left
}

@test "a server that is killed in the middle loses nothing: its copy has the same bits, and fills it again" {
    local victim words=("optim=sgd lr=1" tensor=1 rule="adam lr=0.1" keys=300 batch=100 steps=60)
    table calm 2 2 "" "${words[@]}"
    for victim in 0 1; do
        start "hurt$victim" --no-prefix --servers 2 --nproc-per-node 2 --replicas 1 "$programs/table" "${words[@]}" pause_ms=20
        wait_for_step 15
        kill -9 "$(member server "$victim")"
        wait_for_end 60
        [ "$code" = 0 ] || { cat "$tmp/hurt$victim.err"; return 1; }
        same calm "hurt$victim"
    done
    nothing_is_left
}

@test "servers go from 2 to 4 to 3 while a job trains: parts move whole, and no bit changes" {
    local words=("optim=sgd lr=1" tensor=1 rule="adam lr=0.1" keys=300 batch=100 dim=0 any=1 steps=150)
    table calm 2 2 "" "${words[@]}"
    start moved --no-prefix --servers 2:2:4 --nproc-per-node 2 "$programs/table" "${words[@]}" pause_ms=20
    wait_for_step 10
    resize scale --servers 4
    settles server 4
    resize scale --servers 3
    settles server 3
    wait_for_end 60
    [ "$code" = 0 ] || { cat "$tmp/moved.err"; return 1; }
    same calm moved
    nothing_is_left
}

@test "a worker that comes later pushes rows as the others do, where no rule counts their pushes" {
    start late --no-prefix --servers 2 --nproc-per-node 2:2:3 "$programs/table" "optim=sgd lr=1" tensor=1 steps=150 \
        pause_ms=20 consistency=async
    wait_for_step 10
    resize scale --workers 3
    settles worker 3
    wait_for_end 60
    [ "$code" = 0 ] || { cat "$tmp/late.err"; return 1; }
    same late
    [ "$(grep -c digest "$tmp/late.out")" = 3 ]
    run pen run --standalone --no-prefix --servers 1 --nproc-per-node 1:1:2 "$programs/table" rounds=1
    [[ $output == *"'emb': sync=bsp counts the pushes of all workers, and workers may come later (--nproc-per-node MIN:MAX); give it params with sync=async"* ]]
    run pen run --standalone --no-prefix --servers 1 --on-worker-loss wait --max-restarts 1 "$programs/table" rounds=1 consistency="ssp s=2"
    [[ $output == *"'emb': sync=ssp s=2 counts the pushes of all workers, and workers may come later (on_worker_loss=wait)"* ]]
    nothing_is_left
}

@test "a job goes on without a worker that is killed, and its rows agree" {
    start hurt --no-prefix --servers 2 --nproc-per-node 3 --on-worker-loss continue "$programs/table" "optim=sgd lr=1" tensor=1 \
        steps=80 pause_ms=20 rule="adagrad lr=0.1"
    wait_for_step 10
    kill -9 "$(member worker 1)"
    wait_for_end 60
    grep -c digest "$tmp/hurt.out"
    [ "$(grep -c digest "$tmp/hurt.out")" = 2 ] || { cat "$tmp/hurt.err"; return 1; }
    same hurt
    nothing_is_left
}

@test "a snapshot has the rows, and is restored onto other numbers of servers" {
    local words=("optim=sgd lr=1" tensor=1 rule="adam lr=0.1" keys=300 batch=100 dim=0 any=1) servers
    table whole 2 2 "" "${words[@]}" steps=40
    table half 2 2 "--store $tmp/store --snapshot-every 20" "${words[@]}" steps=20
    pen snapshot verify --store "$tmp/store" | grep -q 'step 20 is intact'
    for servers in 1 3; do
        cp -r "$tmp/store" "$tmp/store$servers"
        table "rest$servers" 2 "$servers" "--store $tmp/store$servers --resume" "${words[@]}" steps=40
    done
    same whole rest1 rest3
    pen export --store "$tmp/store" --out "$tmp/all.safetensors" # tensors only
    ! grep -qa emb "$tmp/all.safetensors" || return 1
    nothing_is_left
}

@test "a snapshot of a table with another dim, rule or number of parts is refused with a sentence" {
    table whole 1 2 "--store $tmp/store --snapshot-every 5" tensor=1 "optim=sgd lr=1" steps=5
    again() { pen run --standalone --no-prefix --servers 2 --store "$tmp/store" --resume "$programs/table" tensor=1 \
        "optim=sgd lr=1" steps=10 "$@"; }
    run again dim=4
    [ "$status" != 0 ]
    [[ $output == *"snapshot 5 has table 'emb' with dim 5, and the program has it with dim 4; 0 is a length for each key"* ]]
    run again rule="adagrad lr=0.5"
    [ "$status" != 0 ]
    [[ $output == *"keeps the state of 'sgd lr=0.5' for 'emb', and the job trains it with 'adagrad lr=0.5'"* ]]
    run again table_parts=8
    [ "$status" != 0 ]
    [[ $output == *"'emb' has 16 parts (table_parts) there and 8 here"* ]]
    again rule="sgd lr=0.25"
    nothing_is_left
}

@test "mistakes get a sentence: no servers, keys out of order, ranks that register different tables" {
    run pen run --standalone --no-prefix "$programs/table" rounds=1
    [[ $output == *"'emb': tables are on servers, and this job has none; start it with \`penstock run --servers 1\`"* ]]
    run pen run --standalone --no-prefix --servers 1 "$programs/table" rounds=1 mistake=order
    [[ $output == *"'emb': keys[1] is 3 after 3; sort them, each once, or make the table with PEN_KEYS_ANY"* ]]
    run pen run --standalone --no-prefix --servers 1 "$programs/table" rounds=1 mistake=room
    [[ $output == *"'emb': out has room for 4 elements, 10 will come"* ]]
    run pen run --standalone --no-prefix --servers 1 "$programs/table" rounds=1 mistake=name
    [[ $output == *"'emb' is registered twice"* ]]
    run pen run --standalone --no-prefix --servers 1 "$programs/table" rounds=1 tensor=1 optim="rowwise_adagrad lr=1"
    [[ $output == *"'w': rowwise_adagrad is a rule of tables by key (pen_table_new) only; use adagrad"* ]]
    run pen run --standalone --no-prefix --servers 1 --nproc-per-node 2 "$programs/table" rounds=1 mistake=rank
    [[ $output == *"'emb' is f32[16,"*"all ranks must register the same"* ]]
    nothing_is_left
}
