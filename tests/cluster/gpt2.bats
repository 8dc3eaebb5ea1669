# gpt2.bats - the language model with real processes: equal bits in every strategy, the loss curve of one process on any
# number of workers, a killed run that resumes without a difference, and text that beats a counting model.
#
# Tests that take minutes are in tests/bench/gpt2_quality.sh and tests/bench/gpt2_strategies.sh.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

small=(--layers 2 --channels 32 --heads 2 --block 32 --batch 8 --eval-sequences 16 --log-every 10 --sample 0)

# Trains to the end:  gpt2 NAME LAUNCHER_FLAGS... -- EXAMPLE_FLAGS...   -> $tmp/NAME.{json,loss,out,err}
gpt2() {
    local name=$1 flags
    take_flags "${@:2}"
    shift $((${#flags[@]} + 2))
    pen run --standalone --job "$job-$name" "${flags[@]}" "$examples/gpt2" "$@" \
        --out "$tmp/$name.json" --loss-log "$tmp/$name.loss" >"$tmp/$name.out" 2>"$tmp/$name.err" ||
        { echo "exit $? of job $name:"; cat "$tmp/$name.out" "$tmp/$name.err"; return 1; }
}

# The losses of two runs differ by at most $3, relatively; prints how much of that was used.
same_curve() {
    paste -d ' ' "$tmp/$1.loss" "$tmp/$2.loss" | awk -v most="$3" -v who="$1 $2" '
        {d = ($2 - $4) / $2; if (d < 0) d = -d; if (d > worst) worst = d; n++}
        END {printf "%s: %d steps, largest relative difference %.1e of %s\n", who, n, worst, most; exit !(n > 0 && worst <= most)}'
}

@test "ddp, ps, zero1, zero2 and zero3, over workers and over servers, train the same bits, and clip" {
    local mode
    for mode in ddp zero1 zero2 zero3; do
        gpt2 "$mode" --nproc-per-node 2 --mode "$mode" -- "${small[@]}" --steps 20 --clip 0.5
    done
    for mode in ps zero2 zero3; do
        gpt2 "s-$mode" --nproc-per-node 2 --servers 2 --mode "$mode" -- "${small[@]}" --steps 20 --clip 0.5
    done
    echo "clipped in $(value ddp clipped) of $(value ddp steps) steps"
    [ $(($(value ddp clipped) * 10)) -ge $(($(value ddp steps) * 3)) ]
    same_crc ddp zero1 zero2 zero3 s-ps s-zero2 s-zero3
    cmp "$tmp/ddp.loss" "$tmp/zero3.loss"
    nothing_is_left
}

@test "bf16: the strategies train the same bits, and stay near fp32" {
    local mode
    for mode in ddp zero2 zero3; do
        gpt2 "$mode" --nproc-per-node 2 --mode "$mode" -- "${small[@]}" --steps 20 --precision bf16
    done
    gpt2 ps --nproc-per-node 2 --servers 2 --mode ps -- "${small[@]}" --steps 20 --precision bf16
    gpt2 fp32 --nproc-per-node 2 --mode ddp -- "${small[@]}" --steps 20
    same_crc ddp zero2 zero3 ps
    [ "$(crc ddp)" != "$(crc fp32)" ]
    same_curve ddp fp32 0.004 # rounding: at most 2^-9 of a parameter; observed: twice that
    nothing_is_left
}

@test "1, 2 and 4 workers and micro-batches have the loss curve of one process, to 1e-4 for 20 steps" {
    local w
    gpt2 alone --nproc-per-node 1 -- "${small[@]}" --steps 20
    gpt2 accum --nproc-per-node 1 -- "${small[@]}" --steps 20 --grad-accum 4
    for w in 2 4; do
        gpt2 "ddp$w" --nproc-per-node "$w" --mode ddp -- "${small[@]}" --steps 20
        gpt2 "zero$w" --nproc-per-node "$w" --mode zero3 -- "${small[@]}" --steps 20
        same_curve alone "ddp$w" 1e-4
        same_curve alone "zero$w" 1e-4
    done
    same_curve alone accum 1e-4
    nothing_is_left
}

@test "killed with SIGKILL and resumed, a run ends with the same parameters and the same losses" {
    local first kept=-1
    gpt2 whole --servers 2 --nproc-per-node 2 -- "${small[@]}" --steps 60
    start cut --servers 2 --nproc-per-node 2 --store "$tmp/store" --snapshot-every 10 \
        "$examples/gpt2" "${small[@]}" --steps 60 --slow-ms 30
    for _ in $(seq 400); do
        kept=$(status_value snapshot)
        [ "${kept:--1}" -ge 20 ] && break
        kill -0 "$launcher"
        sleep 0.02
    done
    [ "$kept" -ge 20 ]
    kill -9 "$launcher"
    wait_for_end 5
    nothing_is_left
    gpt2 rest --servers 1 --nproc-per-node 2 --store "$tmp/store" --resume -- "${small[@]}" --steps 60
    first=$(head -n 1 "$tmp/rest.loss" | cut -d ' ' -f 1)
    echo "went on from step $first"
    [ "$first" -ge 20 ] && [ "$first" -lt 60 ]
    [ "$(value rest from_step)" = "$first" ]
    same_crc whole rest
    cmp <(awk -v from="$first" '$1 >= from' "$tmp/whole.loss") "$tmp/rest.loss"
    nothing_is_left
}

@test "one job imports what another exported, with Hugging Face's names, in any strategy" {
    local name
    gpt2 made --nproc-per-node 2 --mode zero3 -- "${small[@]}" --steps 10 --export "$tmp/model.safetensors"
    for name in wte.weight wpe.weight h.0.ln_1.weight h.1.attn.c_attn.bias h.1.mlp.c_proj.weight ln_f.bias; do
        head -c 8192 "$tmp/model.safetensors" | grep -qaF "\"$name\":{" || { echo "$name is not in it"; return 1; }
    done
    gpt2 ps --nproc-per-node 2 --servers 1 --mode ps -- "${small[@]}" --steps 0 --import "$tmp/model.safetensors"
    same_crc made ps
    [ "$(value made held_loss)" = "$(value ps held_loss)" ]
    nothing_is_left
}

# A bound that is met in seconds: a model that knows one previous byte. The bound that takes minutes is order 3.
@test "a few seconds of training on Debian's text beat counting pairs of bytes" {
    [ -e /usr/lib/bible.data ] || skip "bible-kjv-text is not installed"
    local bound
    gpt2 quick --servers 1 --nproc-per-node 2 -- --layers 1 --channels 64 --heads 2 --block 32 --batch 8 --steps 800 \
        --optim "adamw lr=4e-3 beta2=0.95 weight_decay=0.1" --eval-sequences 512 --sample 600 --sample-out "$tmp/sample"
    bound=$("$programs/gpt2_judge" - "$tmp/sample" 1 2>/dev/null | tee /dev/stderr | sed 's/.*"bits_per_byte": \([0-9.]*\).*/\1/')
    echo "held out: $(value quick held_bits_per_byte) bits a byte; counting pairs of bytes: $bound"
    awk -v got="$(value quick held_bits_per_byte)" -v bound="$bound" 'BEGIN {exit !(got > 0 && got <= bound)}'
    [ "$(wc -c <"$tmp/sample")" = 600 ]
    [ "$("$programs/gpt2_judge" - "$tmp/sample" 1 2>/dev/null | sed 's/.*"longest_run": \([0-9]*\).*/\1/')" -lt 64 ]
    ! grep -q $'\033' "$tmp/quick.out" || return 1
    nothing_is_left
}

# gpt2 ends with code $1, and its last line on stderr is $2.
says() {
    local code=0 want=$1 sentence=$2
    shift 2
    "$examples/gpt2" "$@" >"$tmp/says.out" 2>"$tmp/says.err" || code=$?
    [ "$code" = "$want" ] || { echo "code $code"; cat "$tmp/says.err"; return 1; }
    grep -qF -- "$sentence" "$tmp/says.err" || { cat "$tmp/says.err"; return 1; }
}

@test "wrong flags end with 2 and wrong files with 1, each with one sentence" {
    export PENSTOCK_LOG_LEVEL=error
    printf 'too short\n' >"$tmp/short"
    says 2 "--preset is one of tiny small 10m 124m gpt2 350m 774m 1558m, not 'huge'" --preset huge
    says 2 "--length 200 is more than the 128 positions of --block" --length 200
    says 2 "--vocab and --merges belong together: --merges is missing" --vocab x
    says 2 "--shuffle is yes, no or auto, not 'maybe'" --shuffle maybe
    says 1 "gpt2: cannot open $tmp/nothing: No such file or directory" --data "$tmp/nothing"
    says 1 "gpt2: 9 tokens to train on are too few for sequences of 128" --data "$tmp/short"
    says 1 "gpt2: $tmp/short is too short for a token file" --tokens "$tmp/short"
    says 1 "gpt2: --batch 7 does not divide by 1 workers x 2 micro-batches: 6 or 8 does" --batch 7 --grad-accum 2 --data "$tmp/short"
    says 1 "gpt2: cannot write $tmp/no/where: No such file or directory" --out "$tmp/no/where" --data "$tmp/short"
}

@test "with its layers stacked the model trains with the bits of the same model unstacked, in every mode" {
    local mode
    gpt2 ddp --nproc-per-node 2 --mode ddp -- "${small[@]}" --steps 10 --clip 0.5
    for mode in ddp zero1 zero2 zero3; do
        gpt2 "$mode-stacked" --nproc-per-node 2 --mode "$mode" -- "${small[@]}" --steps 10 --clip 0.5 --stacked
    done
    for mode in ps ps-hier zero2 zero3; do
        gpt2 "s-$mode-stacked" --nproc-per-node 2 --servers 2 --mode "$mode" -- "${small[@]}" --steps 10 --clip 0.5 --stacked
    done
    gpt2 held --nproc-per-node 2 --mode ddp -- "${small[@]}" --steps 10 --clip 0.5 --stacked --held yes
    same_crc ddp ddp-stacked zero1-stacked zero2-stacked zero3-stacked s-ps-stacked s-ps-hier-stacked s-zero2-stacked s-zero3-stacked held
    cmp "$tmp/ddp.loss" "$tmp/zero3-stacked.loss"
    # a snapshot has slices, not stacks
    gpt2 half --nproc-per-node 2 --mode zero1 --store "$tmp/store" --snapshot-every 5 -- "${small[@]}" --steps 5 --schedule constant
    gpt2 rest --nproc-per-node 2 --mode ddp --store "$tmp/store" --resume -- "${small[@]}" --steps 10 --schedule constant --stacked
    gpt2 constant --nproc-per-node 2 --mode ddp -- "${small[@]}" --steps 10 --schedule constant
    same_crc constant rest
    nothing_is_left
}
