# bench_table.bats - `penstock bench table` measures a table by key, checks its values, and prints what it is compared with.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

few=(--rows 5000 --batch 50 --seconds 0.02 --pairs 2)

@test "bench table prints keys a second of pulls and of pushes, and verifies the values" {
    pen bench table "${few[@]}" --json >"$tmp/rows" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    [ "$(wc -l <"$tmp/rows")" = 2 ]
    grep -q '"verb":"pull".*"keys_per_s":[1-9].*"limit_keys_per_s":[1-9].*"ratio":.*"verified":true' "$tmp/rows"
    grep -q '"verb":"push_pull".*"verified":true' "$tmp/rows"
}

@test "bench table measures keys that repeat, several servers and copies, with and without shared memory" {
    local how
    for how in "--any --over shm" "--servers 2 --replicas 1 --limit no" "--any --dim 7 --in-flight 1 --over local"; do
        # shellcheck disable=SC2086
        run pen bench table "${few[@]}" $how
        [ "$status" = 0 ]
        [[ $output == *" M keys/s"*"push + pull, adagrad"*" M keys/s"* ]]
    done
}
