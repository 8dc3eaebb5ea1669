# precision.bats - 16 bits and a loss scale in jobs: an overflow anywhere skips the step everywhere.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# Runs the program for $steps steps (9):  halves NAME "LAUNCHER FLAGS" WORDS...   -> $tmp/NAME.{out,err}, $code of the job
halves() {
    code=0
    # shellcheck disable=SC2086
    PENSTOCK_STEPS=${steps:-9} pen run --standalone --no-prefix --job "$job-$1" $2 "$programs/halves" "${@:3}" \
        >"$tmp/$1.out" 2>"$tmp/$1.err" || code=$?
}

# The lines of rank R for all steps:  rank_lines NAME R
rank_lines() {
    sed -n "s/^rank $2 //p" "$tmp/$1.out"
}

adamw="optim=adamw lr=0.01 weight_decay=0.01"
falls="schedule=linear total_num_steps=10"
fp16=(f16 precision=fp16 clip=0.05 loss_scale_window=3 "$adamw" "$falls" 1:peak=1,2 1:peak=2,3)

# Steps 1 and 2 of rank 1 are too large for 16 bits at a scale of 65536.
@test "an overflow on one rank skips the step on all, halves the scale by the rule, keeps the rate, and names rank and tensor" {
    local mode line rank
    halves allreduce "--nproc-per-node 3" "${fp16[@]}"
    [ "$code" = 0 ] || { cat "$tmp/allreduce.err"; false; }
    for rank in 1 2; do diff <(rank_lines allreduce 0) <(rank_lines allreduce "$rank"); done
    rank_lines allreduce 0 | awk '{print $4, $7, $9}' >"$tmp/trace"
    cat "$tmp/trace"
    is_text "65536 APPLIED 1
65536 NONFINITE 1
65536 NONFINITE 1
32768 APPLIED 2
32768 APPLIED 3
32768 APPLIED 4
32768 APPLIED 5
65536 APPLIED 6
65536 APPLIED 7" <"$tmp/trace"
    [ "$(rank_lines allreduce 0 | grep -c " bad 1 a crc ")" = 2 ]
    [ "$(rank_lines allreduce 0 | awk '{print $6}' | xargs)" = "0.01 0.009 0.009 0.009 0.008 0.007 0.006 0.005 0.004" ]
    grep -q "step 2 overflowed with a loss scale of 65536; the next one is 32768" "$tmp/allreduce.err"
    nothing_is_left
}

@test "fp16 and bf16 train bit for bit alike without servers, with them, and sharded" {
    halves fp16 "--nproc-per-node 2" "${fp16[@]}" mode=allreduce
    halves fp16-ps "--nproc-per-node 2 --servers 2" "${fp16[@]}" mode=ps-bsp
    halves fp16-zero2 "--nproc-per-node 2" "${fp16[@]}" mode=zero2
    local bf16=(bf16 precision=bf16 clip=0.05 "$adamw" "$falls" 1:nan=4) name
    halves bf16 "--nproc-per-node 2" "${bf16[@]}" mode=allreduce
    halves bf16-ps "--nproc-per-node 2 --servers 2" "${bf16[@]}" mode=ps-bsp
    halves bf16-zero3 "--nproc-per-node 2" "${bf16[@]}" mode=zero3
    for name in fp16-ps fp16-zero2 bf16-ps bf16-zero3; do
        diff <(sort "$tmp/${name%-*}.out") <(sort "$tmp/$name.out") || { cat "$tmp/$name.err"; false; }
    done
    [ "$(wc -l <"$tmp/fp16.out")" = 18 ]
    [ "$(rank_lines bf16 0 | awk '$4 != 1' | wc -l)" = 0 ] # a scale of 1
    rank_lines bf16 0 | grep -q "^step 4 .* NONFINITE applied 4 .* bad 1 b crc "
    nothing_is_left
}

# The sum of 16-bit values is rounded once more there, so only decisions are compared.
@test "with node sums the same steps overflow, and the loss scale is the same" {
    halves ps "--nproc-per-node 2 --servers 1" "${fp16[@]}" mode=ps-bsp
    halves hier "--nproc-per-node 2 --servers 1" "${fp16[@]}" mode=ps-hier
    diff <(rank_lines ps 0 | cut -d' ' -f1-9) <(rank_lines hier 0 | cut -d' ' -f1-9)
    rank_lines hier 1 | grep -q "^step 2 .* NONFINITE applied 1 .* bad 1 a crc "
    nothing_is_left
}

# The snapshot is of the moment after step 3, which overflows as well. An epoch of 26 samples ends in the seventh step.
@test "a resumed run continues with the rate, the loss scale and the next samples, with servers and without" {
    local name flags more=(1:peak=3,3 data=26)
    for name in "ps --servers=1" "zero1 --servers=0"; do
        flags="--nproc-per-node 2 ${name#* }"
        name=${name%% *}
        halves "$name" "$flags" "${fp16[@]}" "${more[@]}" mode="$name"
        steps=4 halves "$name-1" "$flags --store $tmp/$name --snapshot-every 4" "${fp16[@]}" "${more[@]}" mode="$name"
        [ "$code" = 0 ] || { cat "$tmp/$name-1.err"; false; }
        halves "$name-2" "$flags --store $tmp/$name --resume" "${fp16[@]}" "${more[@]}" mode="$name"
        [ "$code" = 0 ] || { cat "$tmp/$name-2.err"; false; }
        diff <(rank_lines "$name" 0) <(cat "$tmp/$name-1.out" "$tmp/$name-2.out" | sed -n "s/^rank 0 //p")
        [ "$(rank_lines "$name" 1 | grep -c "^epoch 1 samples ")" = 2 ]
        rank_lines "$name-2" 1 | grep -q "^step 4 scale 16384 lr 0.009 "
    done
    nothing_is_left
}

# Three ranks take two samples each in steps 0 to 3, then two ranks: 24 + 4 x 7 of 60.
@test "when a worker is lost the others continue with the samples that no rank has had" {
    local name
    for name in "allreduce --servers=0" "ps --servers=1"; do
        steps=11 halves "${name%% *}" "--nproc-per-node 3 --on-worker-loss continue ${name#* }" f32 "$adamw" data=60 2:exit=3 \
            mode="${name%% *}"
        sed -n 's/^rank . epoch 0 samples //p' "$tmp/${name%% *}.out" | tr ' ' '\n' >"$tmp/samples"
        [ "$(wc -l <"$tmp/samples")" = 52 ] || { cat "$tmp/${name%% *}.out" "$tmp/${name%% *}.err"; false; }
        [ -z "$(sort -n "$tmp/samples" | uniq -d)" ] || { cat "$tmp/${name%% *}.out"; false; }
    done
    nothing_is_left 5
}

@test "a gradient that is not finite at the smallest loss scale ends the job with its tensor and rank" {
    halves end "--nproc-per-node 2 --servers 1" f16 precision=fp16 loss_scale_power=1 loss_scale_hysteresis=1 \
        "$adamw" 1:nan=0 0:peak=1,3e5
    [ "$code" != 0 ]
    grep -q "step 1 overflowed in 'a' on rank 0 at the minimum loss scale, 1 (loss_scale_min)" "$tmp/end.err"
    nothing_is_left 5
}

# Its losses would look like training, but its parameters would hardly move.
@test "a program that does not say that it applies the loss scale is refused in fp16 before its first step" {
    local linear=$build/bin/examples/linear
    code=0
    pen run --nproc-per-node 2 --servers 1 --precision fp16 "$linear" >"$tmp/none.out" 2>"$tmp/none.err" || code=$?
    [ "$code" != 0 ]
    grep -q "precision=fp16 needs a program that multiplies its loss by step.loss_scale" "$tmp/none.err"
    ! grep -q "loss 0" "$tmp/none.out" || return 1
    ! pen run --precision fp16 --applies-loss-scale yes "$linear" 2>"$tmp/flag.err" || return 1
    grep -q "unknown flag '--applies-loss-scale'" "$tmp/flag.err"
    nothing_is_left 5
}

@test "precision settings that cannot work are refused before anything starts" {
    halves late "--nproc-per-node 1:2 --servers 1" f16 precision=fp16 "$adamw"
    [ "$code" != 0 ]
    grep -q "precision=fp16 with workers that join later needs a fixed loss scale" "$tmp/late.err"
    halves batch "--nproc-per-node 3" f32 train_batch=524288 micro_batch=16384 "$adamw"
    [ "$code" != 0 ]
    grep -q "train_batch=524288 cannot be divided by micro_batch=16384 x 3 workers = 49152: set train_batch=491520 or 540672" "$tmp/batch.err"
    halves rates "--nproc-per-node 2" f32 "$adamw" 0:schedule=constant "1:schedule=linear total_num_steps=4"
    [ "$code" != 0 ]
    grep -q "schedule of parameter group 'default' is 'linear total_num_steps=4' on rank 1 (.*) and 'constant' on rank 0" "$tmp/rates.err"
    nothing_is_left 5
}

@test "orders, permutations and updates of the golden table are those of the installed PyTorch" {
    /usr/bin/python3 -c 'import torch' 2>"$tmp/torch.err" || skip "python3-torch is not installed"
    /usr/bin/python3 "$root/tests/support/make_golden_training.py" >"$tmp/golden.h"
    diff "$tmp/golden.h" "$root/tests/support/golden_training.h"
}

@test "a precision that a program does not use is said once, and one that it uses is not" {
    pen run --nproc-per-node 2 --precision bf16 --steps 3 "$examples/linear" >"$tmp/linear.out" 2>"$tmp/linear.err"
    [ "$(grep -c 'precision=bf16 changes nothing here: all tensors are float32' "$tmp/linear.err")" = 1 ]
    halves bf16 "--nproc-per-node 2" bf16 precision=bf16 "$adamw" "$falls"
    ! grep -q 'changes nothing here' "$tmp/bf16.err" || return 1
}
