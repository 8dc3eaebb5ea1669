# header.bats - penstock.h keeps its word: each of its functions, flags and types does what it says in some job, or
# docs/limits.md says why not.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

part() { # NAME LAUNCHER_FLAGS...
    (cd "$tmp" && pen run --standalone --no-prefix --nproc-per-node 2 "${@:2}" --store "$tmp/store-$1" "$programs/header" "$1" \
        "optim=sgd lr=0.1" >"$tmp/$1.out" 2>"$tmp/$1.err") || { cat "$tmp/$1.out" "$tmp/$1.err"; return 1; }
}

@test "every function of the header answers OK in some job, and none UNSUPPORTED, but for what docs/limits.md lists" {
    local name
    part servers --servers 2
    part workers
    (cd "$tmp" && PENSTOCK_OPTIM="sgd lr=0.1" "$programs/header" spawn >"$tmp/spawn.out" 2>"$tmp/spawn.err")
    run pen run --standalone --no-prefix --nproc-per-node 2 "$programs/header" abort
    [ "$status" != 0 ]
    [[ $output == *"pen_abort on rank 0 ($host): enough"* ]] || { echo "$output"; return 1; }
    echo "pen_abort OK" >"$tmp/abort.out"
    ! grep -h UNSUPPORTED "$tmp"/*.out || return 1
    sed -n 's/ OK$//p' "$tmp"/*.out | sort -u >"$tmp/works"
    awk '/^PEN_(API|MUST)/ {s = $0; sub(/ *\(.*/, "", s); n = split(s, w, /[ *]+/); print w[n]}' "$root/include/penstock.h" | sort >"$tmp/all"
    [ "$(wc -l <"$tmp/all")" -ge 80 ]
    for name in $(comm -13 "$tmp/works" "$tmp/all"); do
        grep -q "\`$name\`" "$root/docs/limits.md" || { echo "$name() works in no job, and docs/limits.md does not say why"; return 1; }
    done
    nothing_is_left
}

@test "the program that walks the header gives every flag, operation and type of it" {
    local name
    for name in $(sed -nE 's/^#define (PEN_[A-Z_]+) +[0-9]+u .*/\1/p' "$root/include/penstock.h" | grep -vE '^PEN_(CAP|STEP)_') \
        $(grep -oE 'PEN_(SUM|AVG|PROD|MIN|MAX|LAND|LOR|LXOR|BAND|BOR|BXOR)\b' "$root/include/penstock.h" | sort -u); do
        grep -qw "$name" "$root/tests/cluster/programs/header.c" || { echo "$name is never given"; return 1; }
    done
}
