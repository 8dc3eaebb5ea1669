# state.bats - a job's saved state resumes in any other mode, on any number of workers and servers, bit for bit:
# parameters, optimizer state, loss scale, positions of samplers, and the program's own bytes.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# Trains keeper.c from the state of the store:  keep NAME WORDS_OF_RUN... -- WORDS_OF_KEEPER...   -> $tmp/NAME, sorted
keep() {
    local name=$1 flags
    take_flags "${@:2}"
    shift $((${#flags[@]} + 2))
    pen run --standalone --no-prefix --job "$job-$name" "${flags[@]}" "$programs/keeper" "$@" >"$tmp/$name.out" 2>"$tmp/$name.err" ||
        { code=$?; cat "$tmp/$name.err"; return "$code"; }
    sort "$tmp/$name.out" >"$tmp/$name"
    [ -s "$tmp/$name" ]
}

# Steps of the complete snapshots in the store: a kill may leave one that is "not complete".
complete_steps() { pen snapshot list --store "$tmp/store" | awk '/complete/ && !/not complete/ {print $1}'; }

# Both have the same lines from this step on.
same_from() {
    diff <(awk -v from="$3" '$4 >= from' "$tmp/$1") <(awk -v from="$3" '$4 >= from' "$tmp/$2")
}

@test "a job that changes its mode every two steps trains as if it had not" {
    local ways=("0 allreduce" "2 ps-bsp" "0 zero1" "0 zero3" "1 zero3" "0 zero2" "1 zero2" "0 ddp") way at=0 resume=() links=0
    keep whole --nproc-per-node 2 -- steps=$((2 * ${#ways[@]}))
    for way in "${ways[@]}"; do
        read -r servers mode <<<"$way"
        at=$((at + 2))
        keep "at$at" --nproc-per-node 2 --servers "$servers" --mode "$mode" --store "$tmp/store" --snapshot-every 2 "${resume[@]}" -- steps=$at
        [ "$(awk '{print $4}' "$tmp/at$at" | sort -un | tr '\n' ' ')" = "$((at - 2)) $((at - 1)) " ]
        resume=(--resume)
        links=$((links + 1))
    done
    [ "$links" = 8 ]
    sort "$tmp"/at?? "$tmp"/at? | diff "$tmp/whole" -
    nothing_is_left
}

@test "a snapshot of two workers resumes on one and on four, alike in every mode" {
    local n
    keep two --nproc-per-node 2 --mode zero2 --store "$tmp/store" --snapshot-every 3 -- steps=3
    for n in 1 4; do
        for way in "0 auto" "2 ps-bsp" "0 zero3"; do
            read -r servers mode <<<"$way"
            [ "$n $mode" != "1 zero3" ] || continue # one worker trains locally
            keep "$n-$mode" --nproc-per-node "$n" --servers "$servers" --mode "$mode" --store "$tmp/store" --resume -- steps=5
            [ "$(wc -l <"$tmp/$n-$mode")" = $((2 * n)) ]
            same_from "$n-auto" "$n-$mode" 3
        done
    done
    grep -q "the snapshot of step 3 has nothing of the state 'generator' for this rank" "$tmp/4-auto.err"
    [ "$(grep -c " counter 12 " "$tmp/4-auto")" = 4 ] # all ranks share it, so new ranks have it
    nothing_is_left
}

@test "a loss scale that has just changed is resumed as it was, saved by workers and by servers" {
    local words=(precision=fp16 loss_scale_window=2 loss_scale_hysteresis=1 nan=3) from
    keep whole --nproc-per-node 2 -- "${words[@]}" steps=7
    [ "$(grep -c "outcome 1 " "$tmp/whole")" = 2 ]
    for from in 0 1; do
        keep "saved$from" --nproc-per-node 2 --servers $from --store "$tmp/s$from" --snapshot-every 4 -- "${words[@]}" steps=4
        keep "went$from" --nproc-per-node 2 --servers $((1 - from)) --store "$tmp/s$from" --resume -- "${words[@]}" steps=7
        same_from whole "went$from" 4
        [ "$(wc -l <"$tmp/went$from")" = 6 ]
    done
    nothing_is_left
}

@test "saved state resumes under every consistency rule" {
    local rule
    for rule in commit=eager sync=async; do
        keep "saved$rule" --nproc-per-node 2 --servers 2 --store "$tmp/$rule" --snapshot-every 3 -- "$rule" clip=0 steps=3
        keep "went$rule" --nproc-per-node 2 --servers 1 --store "$tmp/$rule" --resume -- "$rule" clip=0 steps=5
        [ "$(grep -c " step 3 .* counter 12 " "$tmp/went$rule")" = 2 ]
        [ "$(grep -c "^rank 0 step 4 .* generator 1715609f7c746c6a " "$tmp/went$rule")" = 1 ] # its fifth value
    done
    nothing_is_left
}

@test "exported values are those of the snapshot, and an import starts with them, in every mode" {
    local way name bytes=$((4 * (300 * 70 + 90 * 100 + 5000 + 90)))
    keep first --nproc-per-node 2 --store "$tmp/store" --snapshot-every 3 -- steps=3 export="$tmp/first.safetensors"
    pen export --store "$tmp/store" --out "$tmp/kept.safetensors" >/dev/null
    cmp <(tail -c $bytes "$tmp/first.safetensors") <(tail -c $bytes "$tmp/kept.safetensors")
    for way in "0 zero3" "1 ps-bsp" "1 zero3"; do
        read -r servers mode <<<"$way"
        keep "e$servers$mode" --nproc-per-node 2 --servers "$servers" --mode "$mode" -- steps=3 export="$tmp/other.safetensors" format="safetensors dtype=f32"
        cmp <(tail -c $bytes "$tmp/first.safetensors") <(tail -c $bytes "$tmp/other.safetensors")
    done
    pen import "$tmp/first.safetensors" --store "$tmp/imported" >/dev/null
    keep a --nproc-per-node 2 -- steps=2 import="$tmp/first.safetensors"
    keep b --nproc-per-node 2 --servers 1 -- steps=2 import="$tmp/first.safetensors"
    keep c --nproc-per-node 2 --store "$tmp/imported" --resume -- steps=2
    keep plain --nproc-per-node 2 -- steps=2
    for name in b c; do diff "$tmp/a" "$tmp/$name"; done
    ! cmp -s "$tmp/a" "$tmp/plain" || return 1
    nothing_is_left
}

@test "each snapshot that is kept has its parameters in 16 bits beside it" {
    keep g --nproc-per-node 2 --mode zero3 --store "$tmp/store" --snapshot-every 1 -- steps=4 snapshot_keep=2 gather_16bit_on_save=yes export="$tmp/whole.safetensors" format="safetensors dtype=bf16"
    [ "$(cd "$tmp/store" && echo weights-*)" = "weights-3.safetensors weights-4.safetensors" ]
    [ "$(pen snapshot list --store "$tmp/store" | grep -c complete)" = 2 ]
    cmp "$tmp/whole.safetensors" <(sed "s/keeper-g/&/" "$tmp/store/weights-4.safetensors")
    keep i --nproc-per-node 1 -- steps=1 import="$tmp/store/weights-4.safetensors"
    nothing_is_left
}

@test "without servers a killed job resumes from its last complete snapshot without a difference" {
    local kept
    pen run --standalone --no-prefix --nproc-per-node 2 "$programs/stepper" steps=80 2>/dev/null | sort >"$tmp/whole"
    start cut --nproc-per-node 2 --no-prefix --store "$tmp/store" --snapshot-every 5 "$programs/stepper" steps=80 pause_ms=20
    wait_for_step 13
    kill -9 "$launcher"
    wait_for_end 5
    nothing_is_left
    kept=$(complete_steps | tail -n 1)
    [ "$kept" -ge 10 ] && [ "$kept" -lt 80 ]
    pen run --standalone --no-prefix --nproc-per-node 2 --store "$tmp/store" --resume "$programs/stepper" steps=80 2>/dev/null | sort >"$tmp/rest"
    same_from whole rest "$kept"
    [ "$(wc -l <"$tmp/rest")" = $((2 * (80 - kept))) ]
    nothing_is_left
}

@test "a file that may not grow (ulimit -f) costs a program its snapshots, and does not end it" {
    cd "$tmp"
    local blocks doing
    for blocks in 8 16; do # of 512 bytes: the store's first pages do not fit, or nothing after them; the latter raises a signal
        doing=$([ $blocks = 8 ] && echo opening || echo writing)
        sh -c 'ulimit -f $0; PENSTOCK_STORE=store-$0 PENSTOCK_SNAPSHOT_EVERY=5 exec "$@"' $blocks "$examples/linear" >out 2>err
        [ "$(wc -l <out)" = 20 ]
        grep -q "^penstock: no snapshot of step 5: no room while $doing store-$blocks/part-0/making" err
    done
}

@test "the launcher's report names the newest complete snapshot, and promises none if there is none" {
    cd "$tmp"
    run pen run --standalone --nproc-per-node 2 --store first --snapshot-every 5 "$programs/stepper" steps=9 exit_at=3,7
    grep -qx '  kept     nothing: first has no complete snapshot' <<<"$output"
    run pen run --standalone --nproc-per-node 2 --store second --snapshot-every 2 "$programs/stepper" steps=9 exit_at=5,7
    grep -qx '  kept     the snapshot of step 4 in second; continue with --resume' <<<"$output"
}

@test "all ranks go back to a snapshot between two steps, and train the same again" {
    local mode
    keep whole --nproc-per-node 2 -- steps=6
    for mode in ddp zero3; do
        keep $mode --nproc-per-node 2 --mode $mode --store "$tmp/$mode-store" --snapshot-every 2 -- steps=6 snapshot_keep=9 back=4,2
        [ "$(wc -l <"$tmp/$mode")" = 18 ] # steps 2, 3, 4 twice
        sort -u "$tmp/$mode" | diff "$tmp/whole" -
    done
    ! keep ps --nproc-per-node 2 --servers 1 --store "$tmp/ps-store" --snapshot-every 2 -- steps=6 back=4,2 || return 1
    says ps "pen_restore: mode=ps-bsp uses servers, which cannot restore a running job; restart it with resume=yes"
    nothing_is_left
}

@test "a full disk of one worker costs all workers that snapshot, completely, and does not end the job" {
    keep whole --nproc-per-node 2 -- steps=6
    printf '#!/bin/sh\n[ "$RANK" = 0 ] || export LD_PRELOAD="$PRELOAD"\nexec "$@"\n' >"$tmp/faulty"
    chmod +x "$tmp/faulty"
    keep one --nproc-per-node 2 --store "$tmp/store" --snapshot-every 1 -- steps=2
    PRELOAD=$build/tests/support/libiofault.so IOFAULT_DIR=$tmp/store IOFAULT_AT=1 IOFAULT_HOW=enospc \
        pen run --standalone --no-prefix --job "$job-full" --nproc-per-node 2 --store "$tmp/store" --snapshot-every 2 --resume \
        "$tmp/faulty" "$programs/keeper" steps=6 >"$tmp/full.out" 2>"$tmp/full.err"
    sort "$tmp/full.out" >"$tmp/full"
    same_from whole full 2
    says full "no snapshot of step 4: rank 1: .*$tmp/store.*No space left on device"
    says full "no snapshot of step 4: .*; said once"
    ! says full "no snapshot of step 6" || return 1
    [ "$(complete_steps | tr '\n' ' ')" = "1 2 " ]
    [ "$(find "$tmp/store" -name '*.mdb' | wc -l)" = 4 ] # and nothing else
    nothing_is_left
}

# Fails with one line from the program:  says NAME PATTERN
says() {
    grep -qE "$2" "$tmp/$1.err" || { cat "$tmp/$1.err"; return 1; }
}

@test "state that cannot be saved or resumed is a sentence" {
    ! keep none --nproc-per-node 2 -- steps=1 snapshot_every=2 || return 1
    says none "snapshot_every=2 needs a store: give a folder that all workers reach with .penstock run --store DIR., or the setting store"
    ! keep empty --nproc-per-node 2 --store "$tmp/store" --resume -- steps=1 || return 1
    says empty "^penstock: --resume found no snapshot in store $tmp/store; use --fresh to start over"
    keep some --nproc-per-node 2 --store "$tmp/store" --snapshot-every 1 -- steps=2
    ! keep asked --nproc-per-node 2 --store "$tmp/store" -- steps=1 || return 1
    says asked "^penstock: store $tmp/store holds a snapshot of step 2; use --resume to continue from it or --fresh to start over$" # the verdict
    ! says asked "is gone" || return 1
    ! keep wrong --nproc-per-node 2 --store "$tmp/store" --resume -- steps=3 optim="sgd lr=1" || return 1
    says wrong "^penstock: .*keeps the state of 'adamw lr=0.01 weight_decay=0.1' for 'embed', and the job trains it with 'sgd lr=1'"
    keep other --nproc-per-node 2 --store "$tmp/store" --resume -- steps=3 own=other
    says other "the snapshot of step 2 has nothing of the state 'other', which stays as the program has it"
    keep anew --nproc-per-node 2 --store "$tmp/store" --fresh -- steps=1
    nothing_is_left
}
