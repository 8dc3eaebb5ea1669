# admission.bats - gradients that a server refuses, and which ranks are told.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

@test "admission=finite ends a bsp job with one sentence on all ranks, naming rank, tensor and step" {
    local sentence="the gradient of 'embed' from worker 1 for step 2 is not finite; admission accepts finite ones only"
    start bsp --log-dir "$tmp/logs" --servers 2 --nproc-per-node 2 --admission finite "$programs/stepper" steps=5 1:nan=2,0,5
    wait_for_end 30
    [ "$code" != 0 ]
    said_by "$tmp/logs" >"$tmp/said"
    grep -q "^\[0\] stepper: $sentence$" "$tmp/said"
    grep -q "^\[1\] stepper: $sentence$" "$tmp/said"
    [ "$(grep -cF "$sentence" "$tmp/bsp.err")" = 1 ]
    [ "$(grep -c 'step 1 ' "$tmp/bsp.out")" = 2 ]
    [ "$(grep -c 'step 2 ' "$tmp/bsp.out")" = 0 ]
    nothing_is_left
}

@test "in an async job only the rank that pushed the gradient is told" {
    start async --servers 1 --nproc-per-node 2 --mode ps-async --admission norm:1e9 "$programs/stepper" steps=5 1:nan=2,0,5
    wait_for_end 30
    grep -q "^\[1\] stepper: server 0 ($host) refused 'embed': the gradient of 'embed' from worker 1 for step 2 is not finite" "$tmp/async.err"
    ! grep -q '^\[0\] stepper: .*is not finite' "$tmp/async.err" || return 1
    nothing_is_left
}

@test "a bound above every gradient changes no bit; a bound below all of them names the first" {
    pen run --standalone --servers 2 --nproc-per-node 2 --no-prefix "$programs/stepper" steps=5 | sort >"$tmp/off"
    pen run --standalone --servers 2 --nproc-per-node 2 --no-prefix --admission norm:1e9 "$programs/stepper" steps=5 | sort >"$tmp/wide"
    cmp "$tmp/off" "$tmp/wide"
    start narrow --log-dir "$tmp/logs" --servers 2 --nproc-per-node 2 --admission norm:1e-9 "$programs/stepper" steps=5
    wait_for_end 30
    grep -qE "^\[0\] stepper: a piece of the gradient of '[a-z0-9.]+' from worker [01] for step 0 has norm [0-9.e+-]+; admission accepts norms up to 1e-09$" < <(said_by "$tmp/logs")
}

@test "an invalid setting is refused by the server, and the launcher shows why" {
    run pen server --admission sometimes
    [ "$status" = 1 ]
    [ "$output" = "penstock: admission is 'sometimes'; expected off, finite or norm:BOUND" ]
}
