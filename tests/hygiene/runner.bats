# runner.bats - what tests/run.sh counts, and what it does with files of tests that are not steady.

load ../support/bats

setup() {
    root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    tmp=$(mktemp -d)
    mkdir -p "$tmp/build/tests"
    unset UNSTEADY REQUIRE_ALL
}
teardown() { rm -rf "$tmp"; }

# A test program that fails in the given runs (1 is the first) and passes in all others.
plant() { # NAME RUN...
    local program=$tmp/build/tests/$1
    cat >"$program" <<END
#!/bin/sh
echo run >>"$tmp/$1.runs"
case " ${*:2} " in
*" \$(grep -c . "$tmp/$1.runs") "*) echo "not ok 1 the planted test"; echo "# planted in $1"; exit 1 ;;
esac
echo "ok 1 the planted test"
END
    chmod +x "$program"
    planted="${planted:-} $program"
}

run_planted() {
    # shellcheck disable=SC2086
    run "$root/tests/run.sh" "$tmp/build" only $planted
    last=${lines[${#lines[@]} - 1]}
}

@test "what fails in a function that a test calls, or in setup, fails the test, and is told at the line of the test" {
    declare -f bats_debug_trap | grep -q 'FUNCNAME\[1\]' # support/bats.bash fits this bats
    sed 's/^%/@/' >"$tmp/planted.bats" <<END
load $root/tests/support/bats
deep() { false; true; }
loops() { local i; for i in 1 2; do [ \$i = 1 ]; true; done; }
setup() { if [ "\$BATS_TEST_NUMBER" = 4 ]; then deep; fi; }
%test "deep" {
    deep
    true
}
%test "loops" {
    loops
    true
}
%test "in a subshell" {
    (deep)
    true
}
%test "in setup" { true; }
%test "is heeded" { deep || true; }
END
    run env -i PATH=/usr/local/bin:/usr/bin:/bin TMPDIR="$tmp" bats --formatter tap "$tmp/planted.bats"
    echo "$output"
    [ "$status" = 1 ]
    [ "$(grep -cE '^not ok [1-4] ' <<<"$output")" = 4 ]
    [[ $output == *"line 6)"* && $output == *"line 10)"* && $output == *"line 14)"* && $output == *"line 4)"* ]]
    grep -q '^ok 5 ' <<<"$output"
}

@test "a benchmark, which is no test of bats, can source what tests share" {
    cd "$root"
    env -i PATH="$PATH" BATS_TEST_DIRNAME="$root/tests/bench" bash -c 'set -euo pipefail
        source tests/support/job.bash
        for file in $(grep -hoE "tests/support/[a-z_]+\.bash" tests/bench/*.sh | sort -u); do source "$file"; done
        declare -F job_setup hosts_start' || { echo "exit $?"; return 1; }
}

@test "make test counts a test that fails once as a failure and does not run it again" {
    plant once 1
    plant good
    run_planted
    [ "$status" = 1 ] && [ "$last" = "1 passed, 1 failed" ]
    [ "$(grep -c . "$tmp/once.runs")" = 1 ]
}

@test "in CI a test that fails once is UNSTEADY, with the text of its failure, and counts as passed" {
    export UNSTEADY=$tmp/unsteady
    : >"$UNSTEADY"
    plant once 1
    plant good
    run_planted
    [ "$status" = 0 ] && [ "$last" = "2 passed, 0 failed" ]
    [[ $output == *"UNSTEADY  once "*"planted in once"* ]]
    [ "$(cat "$UNSTEADY")" = once ]
    [ "$(grep -c . "$tmp/once.runs")" = 3 ] && [ "$(grep -c . "$tmp/good.runs")" = 1 ]
}

@test "in CI a test that always fails, and one that fails again, are failures" {
    export UNSTEADY=$tmp/unsteady
    : >"$UNSTEADY"
    plant always 1 2 3
    plant again 1 3
    run_planted
    [ "$status" = 1 ] && [ "$last" = "0 passed, 2 failed" ]
    [[ $output == *"FAILED  always "*"planted in always"* ]] && [[ $output == *"FAILED  again "* ]]
    [ ! -s "$UNSTEADY" ]
}

@test "in CI a fourth test that is not steady fails the run, also when runs share the count" {
    export UNSTEADY=$tmp/unsteady
    echo of_the_sanitizers >"$UNSTEADY"
    plant one 1
    plant two 1
    run_planted
    [ "$status" = 0 ] && [ "$last" = "2 passed, 0 failed" ]
    planted=""
    plant three 1
    run_planted
    [ "$status" = 1 ] && [ "$last" = "1 passed, 1 failed" ]
    [[ $output == *"FAILED  three (more than 3 files were not steady: of_the_sanitizers one two three)"* ]]
}

@test "only CI runs tests again: .ci/run says so, the Makefile does not" {
    grep -q '^export UNSTEADY$' "$root/.ci/run"
    ! grep -q UNSTEADY "$root/Makefile" || return 1
}

@test "tests/unsteady.md lists at most 5 files, each with its cause, and each exists" {
    local file seen cause n=0
    while IFS='|' read -r _ file seen cause _; do
        file=$(tr -d ' `' <<<"$file")
        [ -e "$root/tests/$file" ] || { echo "no such file: $file"; return 1; }
        [ -n "${seen// /}" ] && [ "${#cause}" -gt 20 ] || { echo "no date or no cause: $file"; return 1; }
        n=$((n + 1))
    done < <(sed '1,/^|---/d' "$root/tests/unsteady.md" | grep '^|')
    [ "$n" -le 5 ]
}
