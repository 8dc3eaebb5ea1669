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
    nothing_is_left 8
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

@test "a program that prints nothing is shown by its step, scalars, speed and time left, on a terminal without a flag" {
    pen run --nproc-per-node 2 --progress 1 "$programs/quiet" 250 2>"$tmp/quiet.err"
    cat "$tmp/quiet.err"
    grep -qE '^penstock: step [0-9]+ of 250   [0-9.]+ steps/s   [0-9]+ s left   loss 1$' "$tmp/quiet.err"
    pen run --nproc-per-node 2 --progress 1 "$programs/stepper" steps=150 pause_ms=10 >"$tmp/loud.out" 2>"$tmp/loud.err"
    ! grep -q ' steps/s ' "$tmp/loud.err" || return 1 # it prints a line each step
    pen run --nproc-per-node 2 "$programs/quiet" 150 2>"$tmp/file.err"
    ! grep -q ' steps/s ' "$tmp/file.err" || return 1
    MARK=$mark timeout 60 script -qec "$penstock run --nproc-per-node 2 $programs/quiet 1500" /dev/null >"$tmp/terminal" 3>&-
    grep -qE 'penstock: step [0-9]+ of 1500   [0-9.]+ steps/s   [0-9]+ s left   loss 1' "$tmp/terminal"
    nothing_is_left
}

@test "a scalar of the program is in status, top, metrics and on the page's data, without another call: the sum, or what it asks for" {
    local want page
    for want in 1 0.5; do
        # shellcheck disable=SC2046
        start "scalar$want" --nproc-per-node 2 "$programs/quiet" 100000 $([ $want = 1 ] || echo mean)
        within 10 bash -c "'$penstock' status | grep -qE ' of 100000 .* steps/s .* left   loss $want   '"
        pen top -n 1 | grep -qE "   loss $want   "
        page=$(pen status | sed -n 's/^page //p')
        curl -sf "${page}metrics" | grep -qxF "penstock_member_metric{role=\"worker\",rank=\"0\",name=\"loss\"} $want"
        curl -sf "${page}status" | grep -qE "\"rank\":0,.*\"metrics\":\{\"loss\":$want"
        kill -INT "$launcher"
        wait "$launcher" || [ $? -eq 130 ]
    done
    nothing_is_left
}
