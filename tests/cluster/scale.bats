# scale.bats - many workers on few cores, started with the defaults.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# The last line of linear with FLAGS.
last_of() { pen run --standalone "$@" linear 2>"$tmp/err" | tail -1; }

@test "96 workers on a few cores, more than share memory, train as they do over sockets, and as 96 do with servers" {
    local shared sockets servers
    shared=$(last_of --nproc-per-node 96)
    [[ "$shared" == *"step 19"* ]] || { cat "$tmp/err"; return 1; }
    sockets=$(last_of --nproc-per-node 96 --shared-memory no)
    servers=$(last_of --nproc-per-node 96 --servers 2)
    echo "$shared | $sockets | $servers"
    [ "$shared" = "$sockets" ]
    [ "$shared" = "$servers" ]
}

@test "128 workers of two sets that share memory add in two levels, if any order will do" {
    local out
    out=$(last_of --nproc-per-node 128 --deterministic no --log-level info)
    [[ "$out" == *"step 19"* ]] || { cat "$tmp/err"; return 1; }
    grep -q 'of 128: path hier' "$tmp/err"
}

@test "of 96 workers one makes another call: all get the sentence that names it" {
    local out
    out=$(pen run --standalone --nproc-per-node 96 "$programs/mistake" size 2>&1)
    echo "$out" | tail -5
    [ "$(echo "$out" | grep -c 'differs: rank 1 has 9 f64 SUM .loss., rank [02] has 8 f64')" = 96 ] # from a neighbour of it
    [ "$(echo "$out" | grep -o 'rank 1 has .*' | sort -u | wc -l)" = 1 ]
}

# All ranks print the sum of "loss" in their order; in even steps only odd ranks give another number.
@test "70 workers add their numbers in rank order, also when some give other numbers than the rest" {
    pen run --standalone --nproc-per-node 70 "$programs/scalars" 4 >"$tmp/out" 2>"$tmp/err" || { tail "$tmp/err"; return 1; }
    [ "$(grep -c 'step [0-3] of 70: loss' "$tmp/out")" = 280 ]
    [ "$(grep -o 'step .*' "$tmp/out" | sort -u | wc -l)" = 4 ]
}

@test "of 70 workers one has another loss scale: all get the sentence that names it" {
    local out
    out=$(pen run --standalone --nproc-per-node 70 "$programs/stepper" steps=2 33:loss_scale=2 2>&1 || true)
    echo "$out" | tail -5
    [ "$(echo "$out" | grep -c '^\[.*\] stepper: the loss scale is 1 on rank 0 and 2 on rank 33; all ranks must')" = 70 ]
}

@test "what the simulator's members send is what the model of docs/design/scale.md says" {
    "$build/tests/sim_many_test" sim_what_a_job_sends_is_what_the_model_says 2>"$tmp/err" | scripts/scale.py --compare
}
