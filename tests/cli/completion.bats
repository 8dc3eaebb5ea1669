# completion.bats - bash completion and the manual pages, both generated from the tables behind --help.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# The words that bash offers for the last word:  offers WORD...
offers() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _penstock
    printf '%s\n' "${COMPREPLY[@]}" | sort | tr '\n' ' ' | sed 's/ $//'
}

is_offered() {
    local wanted=$1
    shift
    [ "$(offers "$@")" = "$wanted" ] || { echo "$*: $(offers "$@")"; return 1; }
}

@test "commands, verbs, flags and values are completed" {
    pen docs completion >"$tmp/penstock"
    . "$tmp/penstock"
    [ "$(complete -p penstock)" = "complete -F _penstock penstock" ]
    is_offered "status" penstock st
    is_offered "list restore verify" penstock snapshot ""
    is_offered "--step --store" penstock snapshot verify --st
    is_offered "--server-program --servers --servers-max" penstock run --nproc-per-node 2 --serve
    is_offered "--lease-ms" penstock run --lease
    is_offered "--lease_ms" penstock run --lease_
    is_offered "zero1 zero2 zero3" penstock run --mode zero
    is_offered "zero1 zero2 zero3" penstock run --mode = zero
    is_offered "bad never note" penstock doctor --fail-on ""
    is_offered "bf16" penstock bench all-reduce --json --dtype b
    is_offered "--json" penstock status --js
    is_offered "no yes" penstock status --json = ""
    is_offered "" penstock run -r ""
    mkdir "$tmp/folder" "$tmp/folder/inner"
    touch "$tmp/folder/file"
    is_offered "$tmp/folder/inner" penstock run --log-dir "$tmp/folder/"
    is_offered "$tmp/folder/file $tmp/folder/inner" penstock run --config "$tmp/folder/"
    is_offered "$tmp/folder/file $tmp/folder/inner" penstock run --servers 1 prog "$tmp/folder/"
}

@test "every command is completed, and has a manual page with each of its flags" {
    local command flag
    pen docs completion >"$tmp/penstock"
    . "$tmp/penstock"
    pen docs man "$tmp/man"
    for command in $(pen --help | sed -n 's/^  \([a-z][a-z-]*\)  *[a-z].*/\1/p'); do
        [ "$(offers penstock "$command" | tr ' ' '\n' | grep -cx "$command")" = 1 ]
        grep -q '^\.SH SYNOPSIS$' "$tmp/man/penstock-$command.1"
        sed -n '/^\.SH SYNOPSIS$/,/^\.fi$/p' "$tmp/man/penstock-$command.1" | grep -q "^penstock $command" ||
            { echo "penstock $command --help does not come from command_help()"; return 1; }
        grep -q "^.BR penstock.-$command (1)$" "$tmp/man/penstock.1"
        for flag in $(pen "$command" --help 2>&1 </dev/null | sed -n 's/^  --\([a-z_]*\)  .*/\1/p' | tr _ -); do
            grep -q "^.fB.-.-${flag//-/.-}.fR" "$tmp/man/penstock-$command.1" || { echo "$command --$flag"; return 1; }
        done
    done
    grep -q '^.fBlease_ms.fR, .fBPENSTOCK_LEASE_MS.fR$' "$tmp/man/penstock-settings.7"
}

@test "manual and completion are built, and installed with the sources of the examples" {
    DESTDIR=$tmp/dest cmake --install "$build" --prefix /usr >"$tmp/log"
    cmp "$build/man/penstock-run.1" "$tmp/dest/usr/share/man/man1/penstock-run.1"
    [ -s "$tmp/dest/usr/share/man/man7/penstock-settings.7" ]
    [ -s "$tmp/dest/usr/share/bash-completion/completions/penstock" ]
    cmp "$root/examples/linear.c" "$(find "$tmp/dest/usr/share/doc" -name linear.c)"
    [ "$(cd "$tmp/dest" && ls)" = usr ]
}
