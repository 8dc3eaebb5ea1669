# log_to.bats - scalars and metrics of every step in files: CSV, and TensorBoard's events, read by code of their own.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

@test "csv and tensorboard have each step's scalar as the program got it, once, and a resumed run adds to them" {
    command -v python3 >/dev/null || skip "no python3"
    pen run --nproc-per-node 2 --servers 1 --log-to "csv:$tmp/run.csv,tensorboard:$tmp/runs" "$programs/quiet" 30 mean
    [ "$(head -n 1 "$tmp/run.csv")" = step,time,name,value ]
    tail -n +2 "$tmp/run.csv" | cut -d, -f1,3,4 | diff - <(for i in $(seq 0 29); do echo "$i,loss,0.5"; done)
    python3 "$root/tests/support/read_events.py" "$tmp"/runs/events.out.tfevents.* | diff - <(for i in $(seq 0 29); do echo "$i loss 0.5"; done)
    pen run --nproc-per-node 1 --log-to "csv:$tmp/run.csv,tensorboard:$tmp/runs" "$programs/quiet" 5
    [ "$(grep -c '^step,' "$tmp/run.csv")" = 1 ]
    [ "$(wc -l <"$tmp/run.csv")" = 36 ]
    [ "$(find "$tmp/runs" -type f | wc -l)" = 2 ]
    nothing_is_left
}

@test "the log goes on when the rank that writes it is lost, and what it wrote is kept" {
    start lost --nproc-per-node 2 --servers 1 --on-worker-loss continue --log-to "csv:$tmp/run.csv" "$programs/quiet" 100000
    within 10 grep -q '^20,' "$tmp/run.csv"
    kill -9 "$(member worker 0)"
    within 10 bash -c "[ \$(tail -n 1 '$tmp/run.csv' | cut -d, -f1) -gt 300 ]"
    kill -INT "$launcher"
    wait "$launcher" || [ $? -eq 130 ]
    [ "$(cut -d, -f1 "$tmp/run.csv" | tail -n +2 | sort -n | uniq -d | wc -l)" -le 1 ]
    nothing_is_left
}

@test "a form that is wrong, a folder that is missing and a full disk are sentences; the last two do not end the training" {
    run pen run --log-to foo:x "$programs/quiet" 3
    [ "$status" -ne 0 ]
    [[ $output == *"log_to=foo:x: expected csv:FILE, tensorboard:DIR, or both with a comma between them"* ]]
    pen run --log-to "csv:$tmp/no/x.csv" "$programs/quiet" 3 2>"$tmp/no.err"
    grep -q "log_to: cannot write $tmp/no/x.csv: No such file or directory; the steps are not logged" "$tmp/no.err"
    pen run --log-to csv:/dev/full "$programs/quiet" 120 2>"$tmp/full.err"
    [ "$(grep -c 'log_to: cannot write /dev/full: No space left on device; the log ends here, the training does not' "$tmp/full.err")" = 1 ]
    ln -s "$tmp/elsewhere" "$tmp/link.csv"
    pen run --log-to "csv:$tmp/link.csv" "$programs/quiet" 3 2>"$tmp/link.err"
    [ ! -e "$tmp/elsewhere" ]
}
