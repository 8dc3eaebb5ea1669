# output.bats - what programs print reaches the terminal, files and logs when it is printed, whole, and survives a kill.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

@test "a line of printf() is in the launcher's output and in the log folder within a second, without fflush()" {
    start soon --nproc-per-node 2 --log-dir "$tmp/logs" --tee 3 "$programs/printer" 1
    within 1 grep -q '^\[0\] line 0 ' "$tmp/soon.out"
    within 1 grep -q '^\[1\] line 0 ' "$tmp/soon.out"
    within 1 grep -q '^line 0 ' "$tmp/logs/$job-soon/attempt_0/worker-0.out"
    kill -INT "$launcher"
    wait "$launcher" || [ $? -eq 130 ]
    [ "$(grep -c ' line 0 ' "$tmp/soon.out")" -eq 2 ]
    nothing_is_left
}

@test "on a terminal a line is there within a second" {
    MARK=$mark script -qefc "$penstock run --nproc-per-node 1 $programs/printer 1" /dev/null >"$tmp/typescript" 2>&1 </dev/null 3>&- &
    within 2 grep -q '^\[0\] line 0 ' "$tmp/typescript"
    kill $!
    nothing_is_left
}

@test "every line of a program that is killed arrives, and every byte unchanged" {
    pen run --nproc-per-node 1 --no-prefix "$programs/printer" 20000 kill >"$tmp/all.out" 2>"$tmp/all.err" || [ $? -eq 137 ]
    seq -f $'line %.0f \001\003\004\r\t\177\x1a end' 0 19999 | cmp - "$tmp/all.out"
    nothing_is_left
}

@test "a program that writes to a file is told that its terminal has no colours" {
    # shellcheck disable=SC2016
    pen run --nproc-per-node 1 --no-prefix sh -c 'echo "$TERM"' >"$tmp/term.out"
    is_text dumb <"$tmp/term.out"
    script -qec "TERM=xterm $penstock run --nproc-per-node 1 --no-prefix sh -c 'echo term=\$TERM'" /dev/null | grep -q 'term=xterm'
}
