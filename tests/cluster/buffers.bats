# buffers.bats - PEN_BUFFER in real jobs: all ranks read rank 0's values before each forward pass, or their mean.

load ../support/job
load ../support/units

setup() { job_setup; }
teardown() { job_teardown; }

steps=4
buffers() { # NAME LAUNCHER_FLAGS... -- WORDS...
    unit_words=("optim=sgd lr=1" "steps=$steps")
    run_program buffers 4 "$@"
}

# What rank 0 alone computes, or with `mean` the mean over four ranks, which is exact in these numbers; by Python.
expected() {
    python3 -c '
import sys
mean, run, count = sys.argv[1] == "mean", [1.0, 0.0], 0
for step in range(5):
    for rank in range(4):
        print("rank %d step %d mean %.9g %.9g count %d" % (rank, step, run[0], run[1], count))
    ranks = range(4) if mean else range(1)
    run = [sum(r + 0.25 * (rank + 2 * i + step / 4 - r) for rank in ranks) / len(ranks) for i, r in enumerate(run)]
    count += 1' "$1"
}

same() { diff <(grep '^rank' "$tmp/$1.out" | sort) <(expected "$2" | sort); }

@test "in every mode all ranks read rank 0's buffers in the next forward pass" {
    local mode
    for mode in ddp zero1 zero2 zero3; do buffers "$mode" -- mode="$mode"; done
    for mode in ps-bsp ps-hier zero2 zero3; do buffers "s-$mode" --servers 2 -- mode="$mode"; done
    buffers eager -- mode=ddp commit=eager
    buffers sockets -- mode=ddp shared_memory=no
    for mode in ddp zero1 zero2 zero3 s-ps-bsp s-ps-hier s-zero2 s-zero3 eager sockets; do same "$mode" first; done
    nothing_is_left
}

@test "buffers=mean takes the mean of floats and rank 0's integers, and buffers=own leaves each rank its own" {
    buffers mean -- mode=ddp buffers=mean
    same mean mean
    buffers s-mean --servers 1 -- mode=ps-bsp buffers=mean
    same s-mean mean
    buffers own -- mode=ddp buffers=own
    grep -qx 'rank 2 step 4 mean .* count 12' "$tmp/own.out"
    [ "$(grep -c ' step 0 mean 1 0 count 0$' "$tmp/own.out")" = 4 ] # first values are rank 0's in any case
    nothing_is_left
}

@test "a snapshot has the buffers, with and without servers" {
    local flags
    for flags in "" "--servers 2"; do
        steps=6 buffers whole $flags --
        steps=3 buffers half $flags --store "$tmp/store$flags" --snapshot-every 3 --
        steps=6 buffers rest $flags --store "$tmp/store$flags" --resume --
        diff <(grep ' step [3456] ' "$tmp/whole.out" | sort) <(grep '^rank' "$tmp/rest.out" | sort)
    done
    nothing_is_left
}

@test "ranks that register other buffers, or go on without each other, are told so" {
    ! buffers fewer -- mode=ddp 1:fewer=1 || return 1
    grep -q "setting 'tensors with PEN_BUFFER' is '[12], hash [0-9a-f]*' on rank .* all ranks must register the same" "$tmp/fewer.err"
    ! buffers mixed -- mode=ddp 2:buffers=own || return 1
    grep -q "setting 'buffers' is '.*' on rank .* and '.*' on rank .*; all ranks must register the same" "$tmp/mixed.err"
    ! buffers elastic --servers 1 --on-worker-loss continue -- mode=ps-bsp || return 1
    grep -q "'bn.num_batches_tracked' is a PEN_BUFFER, which needs workers that neither come nor go" "$tmp/elastic.err"
    ! buffers async --servers 1 -- mode=ps-async || return 1
    grep -q "'bn.num_batches_tracked' is a PEN_BUFFER, but 'w' is in group 'default' with sync=async" "$tmp/async.err"
    nothing_is_left
}

# Numbers of two files that have the same words, to 1e-5; prints how much of that was used.
near() {
    paste -d ' ' "$1" "$2" | awk '
        {for (i = 1; i <= NF / 2; i++) {
            a = $i; b = $(i + NF / 2)
            if (a == b) continue
            d = a - b; if (d < 0) d = -d
            s = b < 0 ? -b : b; if (s < 1) s = 1
            if (d / s > worst) worst = d / s
            n++}}
        END {printf "%d lines, %d numbers differ, by at most %.1e of 1e-5\n", NR, n, worst; exit !(NR > 40 && worst <= 1e-5)}'
}

@test "a model with a BatchNorm layer trains as under PyTorch's DDP, which broadcasts rank 0's buffers" {
    local golden=$BATS_TEST_DIRNAME/../support/golden_batchnorm.txt mode
    for mode in ddp zero2 ps-bsp; do
        flags=()
        [ $mode != ps-bsp ] || flags=(--servers 1)
        pen run --standalone --no-prefix --job "$job-$mode" --nproc-per-node 2 "${flags[@]}" "$programs/batchnorm" mode=$mode \
            >"$tmp/$mode.out" 2>"$tmp/$mode.err" || { cat "$tmp/$mode.err"; return 1; }
        sort -s -k2,2n "$tmp/$mode.out" >"$tmp/$mode.sorted"
        near "$tmp/$mode.sorted" "$golden"
    done
    /usr/bin/python3 -c 'import torch' 2>/dev/null || return 0 # else the golden file is PyTorch's of today
    timeout 60 /usr/bin/python3 "$BATS_TEST_DIRNAME/../support/make_golden_batchnorm.py" >"$tmp/again" 3>&-
    near "$tmp/again" "$golden"
}
