# scale.bats - the sentences of `penstock scale` and `penstock drain`.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# The exit code and the sentence:  says 2 "SENTENCE" WORDS...
says() {
    local code=0
    pen "${@:3}" >"$tmp/out" 2>"$tmp/err" || code=$?
    cat "$tmp/out" "$tmp/err"
    [ "$code" = "$1" ]
    cat "$tmp/out" "$tmp/err" | grep -qF "$2"
}

@test "impossible requests are a usage error" {
    says 2 "penstock: specify --workers N or --servers M" scale
    says 2 "penstock: unexpected argument '3'" scale --servers 2 3
    says 2 "penstock: missing server rank, for example: penstock drain 1   (see penstock status)" drain
    says 2 "penstock: missing server rank, for example: penstock drain 1   (see penstock status)" drain one
    says 2 "penstock: unexpected argument '2'" drain 1 2
}

@test "a job that cannot be resized says why, and continues to train" {
    start fixed --servers 1 --nproc-per-node 1 "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 2
    says 1 "penstock: the job has a fixed number of workers; start it with --nproc-per-node MIN:MAX" scale --workers 2
    says 1 "penstock: --servers must be between 1 and 1, got 2; start the job with --servers MIN:MAX for more" scale --servers 2
    says 1 "penstock: server 0 is the only one; start another first (penstock scale --servers 2)" drain 0
    says 1 "penstock: the job has no server 4" drain 4
    says 0 "the job's target is 1 worker and 1 server" scale --servers 1
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}

@test "a job without servers says that it needs servers" {
    start alone --nproc-per-node 2 "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 2
    says 1 "penstock: the job has no servers, so its number of workers is fixed" scale --workers 1
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}

@test "status shows the shards of each server, and none for a drained one" {
    start moving --servers 2 --nproc-per-node 1 "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 2
    pen status >"$tmp/table"
    cat "$tmp/table"
    [ "$(grep -cE '^server [01] serves [0-9]+ shards?$' "$tmp/table")" = 2 ]
    says 0 "server 1 is empty and ends" drain 1
    pen status >"$tmp/table"
    cat "$tmp/table"
    [ "$(grep -cE '^server 0 serves [0-9]+ shards?$' "$tmp/table")" = 1 ]
    ! grep -qE '^server 1 serves [1-9]' "$tmp/table" || return 1
    status | grep -qF '"copies":[{"shard":0,"server":0,"place":0,"role":"primary"}'
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}
