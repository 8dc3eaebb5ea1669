# elastic.bats - servers and workers join and leave while a job trains; no other process is restarted.

load ../support/job
load ../support/scale

example=(--mode ps-bsp --optim "adamw lr=0.002 weight_decay=0.01" --clip 0.5 --seed 5 --steps 400)

# The result of two workers in a job of fixed size; the number of servers changes no bit of it.
setup_file() ( # a subshell: a job exports the paths of its files
    job_setup
    train still --servers 2 --nproc-per-node 2 -- "${example[@]}"
    cp "$tmp/still.json" "$BATS_FILE_TMPDIR"
    job_teardown
)

setup() { job_setup; }
teardown() { job_teardown; }

# Starts Fashion-MNIST and returns when it trains:  begin NAME RUN_FLAGS... -- EXAMPLE_FLAGS...
begin() {
    local name=$1 flags
    take_flags "${@:2}"
    shift $((${#flags[@]} + 2))
    start "$name" "${flags[@]}" "${fashion[@]}" "$@" --out "$tmp/$name.json" --loss-log "$tmp/$name.loss"
    wait_for_step 20
}

ends_well() {
    wait_for_end 60
    [ "$code" = 0 ] || { echo "exit $code"; cat "$tmp/$1.err"; return 1; }
}

@test "servers go from 2 to 4 to 3 while a job trains, and the parameters are always those of two servers" {
    cp "$BATS_FILE_TMPDIR/still.json" "$tmp"
    begin moved --servers 2:2:4 --nproc-per-node 2 -- "${example[@]}"
    resize scale --servers 4
    settles server 4
    resize scale --servers 3
    settles server 3
    ends_well moved
    same_crc still moved
}

@test "drain empties a server without an error, and the parameters stay" {
    cp "$BATS_FILE_TMPDIR/still.json" "$tmp"
    begin drained --servers 2:3:3 --nproc-per-node 2 -- "${example[@]}"
    resize drain 1
    settles server 2
    ends_well drained
    same_crc still drained
}

# Two loss curves of $3 steps differ by at most $4 in their means of 50 steps.
same_curve() {
    paste "$tmp/$1.loss" "$tmp/$2.loss" | awk -v want="$3" -v bound="$4" '
        $1 != $3 { print "step " $1 " beside " $3; bad = 1 }
        { a += $2; b += $4; n++ }
        n % 50 == 0 { d = (a - b) / 50; if (d < 0) d = -d; if (d > most) { most = d; at = $1 } a = b = 0 }
        END { print n " steps, largest difference of means " most " before step " at ", " 100 * most / bound " % of what is allowed"
              exit bad || n != want || most > bound }' >"$tmp/compared" ||
        { cat "$tmp/compared"; return 1; }
    sed 's/^/# /' "$tmp/compared" >&3
}

@test "workers go from 4 to 2 to 5 with the same global batch while a job trains, and the loss is always that of 4" {
    train still --servers 2 --nproc-per-node 2:4:5 -- "${example[@]}" --batch-global
    begin grown --servers 2 --nproc-per-node 2:4:5 -- "${example[@]}" --batch-global
    resize scale --workers 2
    settles worker 2
    resize scale --workers 5
    settles worker 5
    ends_well grown
    [ "$(value grown steps)" = 400 ]
    same_curve still grown 400 0.1
}

@test "a job of a fixed size reports that it cannot be scaled, and continues" {
    begin fixed --servers 1 --nproc-per-node 1 -- "${example[@]}" --steps 200 --slow-ms 5
    ! resize scale --servers 2 2>"$tmp/said" || return 1
    is_text "penstock: --servers must be between 1 and 1, got 2; start the job with --servers MIN:MAX for more" <"$tmp/said"
    ends_well fixed
}
