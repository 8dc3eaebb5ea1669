#!/usr/bin/env bash
# gpt2_strategies.sh - every strategy on 1, 2 and 4 workers, in float32 and bfloat16:  tests/bench/gpt2_strategies.sh
#
# Each run trains a small gpt2 for 50 steps. On one number of workers all strategies must end with the same parameters,
# bit for bit. In float32 the losses of the first 20 steps match those of one process to 1e-4. Later, rounding grows; it
# must not grow faster than in one process that only sums in another order (--grad-accum 4). In bfloat16 the losses may
# differ from float32 by 1.5 times PyTorch's difference (tests/bench/peers/gpt2_torch.py on the preset tiny, if torch is
# installed). Prints a line for each, and ends with 0 if all hold.
#   BUILD=DIR  the build (build)      STEPS=50      WORKERS="1 2 4"      PYTHON=/usr/bin/python3
set -u
BATS_TEST_DIRNAME=$(cd "$(dirname "$0")" && pwd)
. "$BATS_TEST_DIRNAME/../support/job.bash"
job_setup
trap job_teardown EXIT
export LIMIT=600 PENSTOCK_LOG_LEVEL=error
steps=${STEPS:-50} workers=${WORKERS:-1 2 4} python=${PYTHON:-/usr/bin/python3}
strategies=(ddp zero1 zero2 zero3 no_shard shard_grad_op full_shard ps+2 zero1+2 zero2+2 zero3+2) # +2: with two servers
small=(--layers 2 --channels 32 --heads 2 --block 32 --batch 8 --eval-sequences 8 --sample 0 --steps "$steps")
failed=0

gpt2() { # NAME LAUNCHER_FLAGS... -- EXAMPLE_FLAGS...
    local name=$1 flags
    take_flags "${@:2}"
    shift $((${#flags[@]} + 2))
    pen run --standalone --job "$job-$name" "${flags[@]}" "$examples/gpt2" "$@" --out "$tmp/$name.json" \
        --loss-log "$tmp/$name.loss" >"$tmp/$name.out" 2>"$tmp/$name.err" || { cat "$tmp/$name.out" "$tmp/$name.err"; exit 1; }
}

# The largest relative difference of the losses of $1 and $2 in steps $3 to $4.
difference() {
    paste -d ' ' "$tmp/$1.loss" "$tmp/$2.loss" | awk -v from="$3" -v to="$4" '
        $1 >= from && $1 < to {d = ($2 - $4) / $2; if (d < 0) d = -d; if (d > worst) worst = d}
        END {printf "%.2e", worst}'
}

# One line:  holds WHAT FIGURE BOUND
holds() {
    local verdict=ok
    awk -v a="$2" -v b="$3" 'BEGIN {exit !(a != "" && a + 0 <= b + 0)}' || { verdict=FAILED; failed=1; }
    printf '%-6s  %-66s %s <= %s\n' "$verdict" "$1" "$2" "$3"
}

most_of() {
    awk -v a="$1" -v b="$2" 'BEGIN {print (a + 0 > b + 0) ? a : b}'
}

for precision in fp32 bf16; do
    gpt2 "alone-$precision" --nproc-per-node 1 -- "${small[@]}" --precision $precision
    gpt2 "other-$precision" --nproc-per-node 1 -- "${small[@]}" --precision $precision --grad-accum 4
    grown=$(difference "alone-$precision" "other-$precision" 20 "$steps")
    for w in $workers; do
        differ=0 early=0 late=0 first=
        for strategy in "${strategies[@]}"; do
            name=$strategy-$w-$precision servers=()
            [ "${strategy#*+}" = "$strategy" ] || servers=(--servers 2)
            gpt2 "$name" --nproc-per-node "$w" --mode "${strategy%+*}" "${servers[@]}" -- "${small[@]}" --precision $precision
            first=${first:-$name}
            [ "$(crc "$name")" = "$(crc "$first")" ] || { differ=$((differ + 1)); echo "        $name: $(crc "$name"), $first: $(crc "$first")"; }
            early=$(most_of "$early" "$(difference "alone-$precision" "$name" 0 20)")
            late=$(most_of "$late" "$(difference "alone-$precision" "$name" 20 "$steps")")
        done
        holds "$precision, $w workers: strategies of ${#strategies[@]} with other bits than the first" $differ 0
        if [ $precision = fp32 ]; then
            holds "fp32, $w workers: steps 0 to 19 differ from one process by" "$early" 1e-4
            holds "fp32, $w workers: later steps; 4 times another order of sums" "$late" "$(awk -v g="$grown" 'BEGIN {print 4 * g + 1e-6}')"
        else
            echo "        bf16, $w workers: differs from one process by $(most_of "$early" "$late"), another order of sums by $grown"
        fi
    done
done

if "$python" -c 'import torch' 2>/dev/null; then
    "$programs/gpt2_judge" - >"$tmp/text" || exit 1
    for precision in fp32 bf16; do
        OMP_NUM_THREADS=1 MARK=$mark "$python" "$root/tests/bench/peers/gpt2_torch.py" --nproc 1 --threads 1 --preset tiny --data "$tmp/text" \
            --batch 4 --steps 20 --precision $precision --port "$(free_port)" |
            sed 's/.*"losses": \[\([^]]*\)\].*/\1/' | tr -d ' ' | tr ',' '\n' | awk '{print NR - 1, $1}' >"$tmp/torch-$precision.loss"
        gpt2 "tiny-$precision" --nproc-per-node 1 -- --preset tiny --starts-here --data "$tmp/text" --shuffle no --schedule constant --clip 0 \
            --optim "adamw lr=1e-3 beta2=0.95 weight_decay=0.1" --batch 4 --steps 20 --eval-sequences 2 --sample 0 --precision $precision
    done
    holds "fp32, tiny: differs from PyTorch by" "$(difference torch-fp32 tiny-fp32 0 20)" 1e-3
    holds "bf16, tiny: differs from fp32 by; 1.5 times what PyTorch's bf16 does" "$(difference tiny-fp32 tiny-bf16 0 20)" \
        "$(awk -v d="$(difference torch-fp32 torch-bf16 0 20)" 'BEGIN {print 1.5 * d}')"
else
    echo "        no torch ($python): bf16 is not compared with it"
fi
exit $failed
