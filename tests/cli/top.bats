# top.bats - `penstock top`, who waits for whom, and logs as JSON lines, of a running job.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

@test "top prints one table after another, with rates from the second on, and no colors without a terminal" {
    start one --servers 2 --nproc-per-node 2 "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 2
    pen top -n 3 --interval 0.3 >"$tmp/top"
    cat "$tmp/top"
    [ "$(grep -cE "^job $job-one   training   mode ps-bsp   step [0-9]+ " "$tmp/top")" = 3 ]
    [ "$(grep -cE "^worker +[01]  $host +active +[0-9]+ " "$tmp/top")" = 6 ]
    [ "$(grep -cE "^server +[01]  $host +active +[0-9]+ " "$tmp/top")" = 6 ]
    grep -E '^worker ' "$tmp/top" | head -n 1 | grep -qE ' active +[0-9]+ +- '
    grep -E '^worker ' "$tmp/top" | tail -n 1 | grep -qE ' active +[0-9]+ +[0-9]+\.[0-9] '
    grep -E '^job ' "$tmp/top" | tail -n 1 | grep -qE ' of 100000   [0-9.]+ steps/s   [0-9.]+ (min|h) left   '
    ! grep -q $'\033' "$tmp/top" || false
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}

@test "top on a terminal redraws the table in place, in color unless NO_COLOR is set, and q ends it" {
    start one --servers 1 --nproc-per-node 1 "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 1
    (
        for _ in $(seq 400); do
            grep -q '^.*job ' "$tmp/screen" 2>/dev/null && break
            sleep 0.05
        done
        echo q
        sleep 0.2
    ) | MARK=$mark timeout 30 script -qec "$penstock top --interval 0.2" "$tmp/screen" >"$tmp/none"
    grep -q $'\033\\[H' "$tmp/screen"
    grep -q $'\033\\[1m' "$tmp/screen"
    NO_COLOR=1 MARK=$mark timeout 30 script -qec "$penstock top -n 1" "$tmp/plain" </dev/null >"$tmp/none"
    ! grep -q $'\033\\[1m' "$tmp/plain" || false
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}

@test "status and top show who waits for whom, and which shards are held up" {
    start slow --servers 2 --nproc-per-node 2 "$programs/stepper" steps=100 1:pause_ms=4000
    for _ in $(seq 200); do
        pen status >"$tmp/table" 2>"$tmp/none" && grep -q '^server 1 with shard' "$tmp/table" && break
        sleep 0.05
    done
    cat "$tmp/table"
    grep -qE "^worker 0 has been in .* of step [0-9]+ for [0-9.]+ s, waiting for worker 1 \(in step [0-9]+, in its own code\)$" "$tmp/table"
    grep -qE "^server 0 with shard [0-9, ]+ has not committed step [0-9]+, waiting for worker 1 \(" "$tmp/table"
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}

# Every line of a file is one JSON object.
is_json_lines() {
    [ -s "$1" ]
    ! grep -vE '^\{"time":"[0-9T:.-]+Z","(level|stream)":"[a-z]+","role":"[a-z]+",("rank":[0-9]+,)?"text":"([^"\\]|\\.)*"\}$' "$1" || return 1
}

@test "with log_format=json all output of a job is one JSON object a line, with role and rank" {
    pen run --standalone --job "$job" --log-format json --servers 1 --nproc-per-node 2 --log-level info \
        bash -c 'echo "say \"it\" $RANK"; printf "\t\xff\n" >&2; exec "$0" steps=3' "$programs/stepper" >"$tmp/out" 2>"$tmp/err"
    cat "$tmp/out" "$tmp/err"
    is_json_lines "$tmp/out"
    is_json_lines "$tmp/err"
    grep -q '"stream":"stdout","role":"worker","rank":1,"text":"say \\"it\\" 1"}$' "$tmp/out"
    grep -q '"stream":"stderr","role":"worker","rank":0,"text":"\\u0009?"}$' "$tmp/err"
    grep -q '"level":"notice","role":"launcher","text":"job ' "$tmp/err"
    grep -q '"level":"info","role":"worker","rank":[01],' "$tmp/err"
    nothing_is_left
}

@test "with log_ranks=first only rank 0 writes messages other than errors" {
    pen run --standalone --job "$job" --log-ranks first --log-level info --nproc-per-node 2 "$programs/stepper" steps=3 >"$tmp/out" 2>"$tmp/err"
    cat "$tmp/err"
    grep -q '^\[0\] penstock: ' "$tmp/err"
    ! grep -q '^\[1\] penstock: ' "$tmp/err" || false
    nothing_is_left
}

@test "the progress bar of an example is for terminals: in a pipe nothing is redrawn" {
    pen run --standalone --job "$job" --nproc-per-node 1 "${fashion[@]}" --steps 20 >"$tmp/out" 2>"$tmp/err"
    [ -s "$tmp/out" ]
    ! grep -q $'\r' "$tmp/out" "$tmp/err" || false
    ! grep -q $'\033' "$tmp/out" "$tmp/err" || false
}
