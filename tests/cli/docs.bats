# docs.bats - runs the commands of the documentation: every `sh run` block of every page, page by page.

load ../support/job
load ../support/docs

setup() {
    job_setup
    PATH=/usr/bin:$PATH # Debian's Python, which has Debian's NumPy
}
teardown() { job_teardown; }

@test "the commands of the README work" {
    follow README.md
    nothing_is_left
}

@test "the commands of the guides work" {
    local page
    for page in $(doc_pages | grep '^docs/guides/'); do
        ! grep -qx '```sh run' "$root/$page" || follow "$page" || return 1
    done
    nothing_is_left
}

@test "the commands of all other pages work" {
    local page
    for page in $(doc_pages | grep -vE '^(docs/guides/|README\.md)'); do
        ! grep -qx '```sh run' "$root/$page" || follow "$page" || return 1
    done
    nothing_is_left
}

@test "every flag and variable that the guides name exists" {
    local command word bad=0
    local others="no-build-isolation|cflags|libs|static|variable|module|no-python|nodes|ntasks|lease-s" # pip's, pkg-config's, torchrun's, Slurm's, a deliberate mistake
    {
        for command in run "run --settings" config memory env status top "trace merge" "snapshot list" "snapshot verify" "snapshot restore" export import \
            keygen scale drain doctor scheduler server "bench push-pull" "bench table" "bench optim" "bench snapshot" "bench all-reduce" "bench tune"; do
            # shellcheck disable=SC2086
            pen $command --help
        done
        pen run --settings
        "$examples/fashion_mnist" --help
        "$root"/tests/gpu/first_run.sh --usage || :
        grep -ohE 'add_argument\("--[a-z-]+' "$root"/examples/python/*.py
    } 2>&1 | grep -oE -- '--[a-z][a-z0-9_-]*' | tr _ - | sort -u >"$tmp/known"
    [ "$(wc -l <"$tmp/known")" -ge 100 ]
    pen docs settings.md >"$tmp/settings"
    for word in $(sed 's/](\([^)]*\))//g' "$root"/docs/guides/*.md "$root/README.md" | grep -oE '(^|[ `|(])--[a-z][a-z0-9_-]*' | grep -oE -- '--.*' | tr _ - | sort -u); do
        grep -qx -- "$word" "$tmp/known" || grep -qxE -- "--($others)" <<<"$word" || { echo "$word"; bad=1; }
    done
    for word in $(grep -ohE '\bPENSTOCK_[A-Z_0-9]+' "$root"/docs/guides/*.md "$root/README.md" | sort -u); do
        grep -qF "\`$word\`" "$tmp/settings" || { echo "$word"; bad=1; }
    done
    [ "$bad" = 0 ]
}

@test "a page that is wrong is found" {
    printf '```sh run\necho 5 gates\nfalse || echo open\n```\n\n```output\n5 ...\nopen\n```\n' >"$tmp/good.md"
    follow "$tmp/good.md"
    printf '```sh run\necho 5 gates\n```\n\n```output\n6 ...\n```\n' >"$tmp/wrong.md"
    run follow "$tmp/wrong.md"
    [ "$status" != 0 ]
    [[ $output == *"this is not printed:  6 ..."* ]]
    printf '```sh run\nfalse\n```\n' >"$tmp/failing.md"
    run follow "$tmp/failing.md"
    [ "$status" != 0 ]
    printf '```sh run\ntrue\n```\n\n<!-- run: false -->\n' >"$tmp/unseen.md" # a block that a reader sees as text
    run follow "$tmp/unseen.md"
    [ "$status" != 0 ]
    printf '```sh run fleet k8s\nfalse\n```\n\n<!-- run: false -->\n\n```sh needs gpu\nfalse\n```\n\n```sh run\ntrue\n```\n' >"$tmp/others.md"
    follow "$tmp/others.md"
    printf '```c first.c\nint main(void)\n{\n    int unused;\n}\n```\n\n```sh run\ncc -std=c99 -o first first.c\n```\n' >"$tmp/warns.md"
    run follow "$tmp/warns.md"
    [ "$status" != 0 ]
    [[ $output == *"-Werror"* ]]
}
