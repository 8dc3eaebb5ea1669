# zero.bats - state sharded over the workers: jobs of four processes, step by step the same as with servers.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# Every step of rank 0, with norm, clip factor, culprit and digest:  steps NAME SERVERS MODE WORDS... -> $tmp/NAME.steps
steps() {
    local name=$1 servers=$2 mode=$3
    shift 3
    pen run --standalone --no-prefix --job "$job-$name" --nproc-per-node 4 --servers "$servers" --mode "$mode" \
        "$programs/stepper" "$@" >"$tmp/$name.out" 2>"$tmp/$name.err" ||
        { echo "exit $? of mode $mode:"; cat "$tmp/$name.out" "$tmp/$name.err"; return 1; }
    grep '^rank 0 ' "$tmp/$name.out" >"$tmp/$name.steps"
    [ "$(grep -c '^rank ' "$tmp/$name.out")" = $(($(wc -l <"$tmp/$name.steps") * 4)) ]
}

# Words of the setting, one a line.
words_of_mode() {
    PENSTOCK_MODE=nonsense "$programs/stepper" 2>&1 | sed -n 's/.*choose one of //p' | sed 's/ *(from.*//' | tr -d ' ' | tr ',' '\n'
}

@test "every mode without servers makes the same steps as ps with four workers: clipped, and one that is skipped" {
    local mode words=(clip=0.5 nan=3,1,777 steps=6 reduce_bucket=20000)
    steps ps 2 ps "${words[@]}"
    grep -q 'step 3 SKIPPED_NONFINITE .* bad 0 fc1.weight' "$tmp/ps.steps"
    grep -q 'clip 0\.' "$tmp/ps.steps"
    words_of_mode | grep -E '^(allreduce|zero|hybrid)' >"$tmp/modes"
    [ "$(wc -l <"$tmp/modes")" -ge 6 ]
    while read -r mode; do
        steps "$mode" 0 "$mode" "${words[@]}"
        diff "$tmp/ps.steps" "$tmp/$mode.steps" || { echo "mode $mode differs from ps"; return 1; }
    done <"$tmp/modes"
    nothing_is_left
}

@test "a worker of a sharded job that dies ends the job with a sentence, the same on all others" {
    local code=0
    pen run --standalone --job "$job-dies" --nproc-per-node 3 --servers 0 --mode zero2 \
        "$programs/stepper" steps=50 1:crash_at=3 >"$tmp/dies.out" 2>"$tmp/dies.err" || code=$?
    [ "$code" -ne 0 ]
    grep -qE 'rank 1|worker 1' "$tmp/dies.err" || { cat "$tmp/dies.err"; return 1; }
    nothing_is_left
}

@test "zero3 with parameters that are the program's own says once that it saves nothing of them" {
    local mode
    for mode in zero2 zero3; do
        pen run --standalone --job "$job-$mode" --nproc-per-node 2 --mode "$mode" --persistence-threshold 0 \
            "$programs/stepper" steps=1 >"$tmp/$mode.out" 2>"$tmp/$mode.err" || { cat "$tmp/$mode.err"; return 1; }
    done
    [ "$(grep -c "zero3 saves no memory for .* because the program owns them" "$tmp/zero3.err")" = 1 ]
    ! grep -q "saves no memory" "$tmp/zero2.err" || return 1
}

@test "each mode's count of held bytes matches the kernel's within 5 % and 64 KiB a tensor, and the forecast of 'penstock memory'" {
    local mode n foretold
    for mode in allreduce zero1 zero2 zero3; do
        for n in 2 4; do
            pen run --standalone --no-prefix --job "$job-$mode-$n" --nproc-per-node $n --servers 0 --mode "$mode" \
                "$programs/resident" elements=1000000 reduce_bucket=262144 >"$tmp/held" 2>"$tmp/held.err" ||
                { cat "$tmp/held.err"; return 1; }
            [ "$(grep -c '^rank . counted' "$tmp/held")" = $n ]
            foretold=$(pen memory --json --params 4000000 --world $n --mode "$mode" --precision fp32 |
                sed 's/.*"here":{[^}]*"bytes_per_worker":\([0-9]*\).*/\1/')
            # In the sum over the ranks shared memory counts once.
            awk -v mode="$mode" -v n=$n -v foretold="$foretold" '
                /counted/ {counted += $4; resident += $6}
                END {off = resident > counted ? resident - counted : counted - resident
                     room = counted / 20 + n * 4 * 65536
                     printf "%s, %d workers: %d bytes counted, %d resident, %.0f %% of the room\n", mode, n, counted, resident, 100 * off / room
                     # Sharded modes have three more buckets, each with room for the sum of its owner.
                     more = counted / n - foretold - (mode == "allreduce" ? 0 : 3 * 4 * 262144 * (1 + 1 / n))
                     if (more < 0) more = -more
                     printf "%d bytes a worker foretold without buckets, %.2f %% off\n", foretold, 100 * more / foretold
                     exit !(counted > 0 && off <= room && foretold > 0 && more <= foretold / 100)}' "$tmp/held"
        done
    done
    nothing_is_left
}
