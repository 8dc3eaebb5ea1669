# slots.bats - the state of update rules is read and set between steps, wherever a mode keeps it: what is set back trains
# the same again, bit for bit.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

slots() { # NAME LAUNCHER_FLAGS... -- SETTINGS...
    local name=$1 flags=()
    shift
    while [ "$1" != -- ]; do flags+=("$1"); shift; done
    shift
    pen run --standalone --no-prefix "${flags[@]}" "$programs/slots" "$@" >"$tmp/$name.out" 2>"$tmp/$name.err" ||
        { echo "$name"; tail -n 12 "$tmp/$name.err"; return 1; }
    grep '^same ' "$tmp/$name.out" >"$tmp/$name.same"
}

@test "a state that was read and set back trains the same bits again, in every mode" {
    local name
    slots ddp --nproc-per-node 2 -- mode=ddp
    slots zero1 --nproc-per-node 2 -- mode=zero1
    slots zero2 --nproc-per-node 2 -- mode=zero2
    slots zero3 --nproc-per-node 2 -- mode=zero3
    slots servers --nproc-per-node 2 --servers 3 -- mode=ps-bsp
    slots nodes --nproc-per-node 2 --servers 2 -- mode=ps-hier
    slots units --nproc-per-node 2 --servers 2 -- mode=zero3
    slots copies --nproc-per-node 2 --servers 2 --replicas 1 -- mode=ps-bsp
    slots files --nproc-per-node 2 --servers 1 --offload-optimizer nvme --offload-param nvme --offload-path "$tmp" -- mode=ps-bsp
    for name in "$tmp"/*.same; do cmp "$tmp/ddp.same" "$name"; done
    slots eager --nproc-per-node 2 --servers 2 -- commit=eager
    slots four --nproc-per-node 4 --servers 1 -- mode=ps-bsp "schedule=WarmupCosineLR warmup_num_steps=3 total_num_steps=20"
    slots four-zero --nproc-per-node 4 -- mode=zero3 "schedule=WarmupCosineLR warmup_num_steps=3 total_num_steps=20"
    cmp "$tmp/four.same" "$tmp/four-zero.same"
    slots alone --nproc-per-node 1 -- mode=ddp
    nothing_is_left
}

@test "a state that was set survives the server that has it" {
    local pid
    WAIT_FOR=$tmp/go start hurt --no-prefix --nproc-per-node 2 --servers 2 --replicas 1 "$programs/slots" mode=ps-bsp
    for _ in $(seq 300); do ! grep -qx set "$tmp/hurt.out" || break; sleep 0.1; done
    kill -9 "$(member server 0)"
    touch "$tmp/go"
    wait_for_end 60
    [ "$code" = 0 ] || { cat "$tmp/hurt.err"; return 1; }
    slots calm --nproc-per-node 2 -- mode=ddp
    grep '^same ' "$tmp/hurt.out" | cmp - "$tmp/calm.same"
    nothing_is_left 5
}

@test "a worker that is replaced loads its checkpoint again, and the job keeps its newer state" {
    export STEPS=100
    start hurt --no-prefix --nproc-per-node 2 --servers 1 --on-worker-loss wait --max-restarts 1 "$programs/slots" mode=ps-bsp
    wait_for_step 10
    kill -9 "$(member worker 1)"
    wait_for_end 60
    [ "$code" = 0 ] || { cat "$tmp/hurt.err"; return 1; }
    slots calm --nproc-per-node 2 --servers 1 -- mode=ps-bsp
    grep '^same ' "$tmp/hurt.out" | cmp - "$tmp/calm.same"
    nothing_is_left 5
}
