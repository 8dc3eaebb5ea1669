# training.bats - Fashion-MNIST with real processes: equal bits where they are promised, bounds where they are not.

load ../support/job

adamw="adamw lr=0.002 weight_decay=0.01"
momentum="sgd lr=0.05 momentum=0.9"

setup() { job_setup; }
teardown() { job_teardown; }

# One, two and three servers, everything else equal; $1 is the rule, the rest are flags of the example.
with_1_2_and_3_servers() {
    local s
    for s in 1 2 3; do
        train "s$s" --servers "$s" --nproc-per-node 2 -- --mode ps-bsp --optim "$1" --clip 0.1 "${@:2}"
    done
    same_crc s1 s2 s3
    echo "clipped in $(value s1 clipped) of $(value s1 steps) steps"
    [ $(($(value s1 clipped) * 10)) -ge $(($(value s1 steps) * 3)) ]
    nothing_is_left
}

@test "the same seed trains to the same parameters, another seed to others" {
    train a --servers 2 --nproc-per-node 2 -- --mode ps-bsp --steps 60 --seed 7
    train b --servers 2 --nproc-per-node 2 -- --mode ps-bsp --steps 60 --seed 7
    train c --servers 2 --nproc-per-node 2 -- --mode ps-bsp --steps 60 --seed 8
    same_crc a b
    [ "$(crc a)" != "$(crc c)" ]
    cmp "$tmp/a.loss" "$tmp/b.loss"
    nothing_is_left
}

@test "1, 2 and 3 servers give equal parameters: MLP, adamw, clipped in most steps" {
    with_1_2_and_3_servers "$adamw" --steps 60
}

@test "1, 2 and 3 servers give equal parameters: MLP, momentum sgd, clipped in most steps" {
    with_1_2_and_3_servers "$momentum" --steps 60
}

@test "1, 2 and 3 servers give equal parameters: CNN, adamw, clipped in most steps" {
    with_1_2_and_3_servers "$adamw" --model cnn --steps 12
}

@test "1, 2 and 3 servers give equal parameters: CNN, momentum sgd, clipped in most steps" {
    with_1_2_and_3_servers "$momentum" --model cnn --steps 12
}

@test "every instruction set level of this processor gives equal parameters" {
    local level
    for level in scalar avx2 avx512; do
        [ "$level" = scalar ] || grep -qE " ${level}(f)? " /proc/cpuinfo || continue
        train "$level" --servers 2 --nproc-per-node 2 --simd "$level" -- --mode ps-bsp --optim "$adamw" --clip 0.1 --steps 60
        same_crc scalar "$level"
    done
    grep -q ' avx2 ' /proc/cpuinfo || skip "this processor has no AVX2"
    nothing_is_left
}

@test "ps-bsp with one worker trains bit for bit like the program alone" {
    local model flags
    for model in mlp cnn; do
        flags=(--model "$model" --optim "$adamw" --clip 0.1 --steps 15)
        train "ps-$model" --servers 2 --nproc-per-node 1 -- --mode ps-bsp "${flags[@]}"
        "${fashion[@]}" --mode local "${flags[@]}" --out "$tmp/alone-$model.json" --loss-log "$tmp/alone-$model.loss"
        same_crc "ps-$model" "alone-$model"
        cmp "$tmp/ps-$model.loss" "$tmp/alone-$model.loss"
    done
    nothing_is_left
}

# The rate is small because ReLU jumps: at a larger rate, one unit that rounding turns on or off grows to 1e-3 within
# 100 steps, even in one process that only changes its BLAS kernels.
@test "1, 2, 3 and 4 workers with the same global batch agree in loss to 1e-4 for 100 steps" {
    local w
    for w in 1 2 3 4; do
        train "w$w" --servers 2 --nproc-per-node "$w" -- --mode ps-bsp --optim "sgd lr=0.001" --lr-schedule constant --steps 100
        [ "$(wc -l <"$tmp/w$w.loss")" = 100 ]
    done
    for w in 2 3 4; do
        paste "$tmp/w1.loss" "$tmp/w$w.loss" | awk -v w="$w" '
            $1 != $3 {bad = 1}
            {d = ($2 - $4) / $2; d = d < 0 ? -d : d; if (d > most) most = d}
            END {printf "%d workers: largest difference %.3g of 1e-4\n", w, most; exit bad || NR != 100 || !(most <= 1e-4)}'
    done
    nothing_is_left
}

@test "an epoch of ps-ssp and one of ps-async end well and learn" {
    local mode
    for mode in ps-ssp ps-async; do
        train "$mode" --servers 2 --nproc-per-node 2 -- --mode "$mode" --optim "sgd lr=0.05 momentum=0.5" --epochs 1
        echo "$mode: $(value "$mode" test_accuracy)"
        [ "$(value "$mode" mode)" = "$mode" ]
        awk -v a="$(value "$mode" test_accuracy)" 'BEGIN {exit !(a >= 0.75)}'
    done
    nothing_is_left
}

# The sum of a counter over the servers of a status line; with "max" the largest.
servers_stat() {
    members_of | grep '"role":"server"' | sed "s/.*\"$1\":\([0-9.]*\).*/\1/" |
        awk -v how="${2:-sum}" '{if (how == "sum") s += $1; else if ($1 > s) s = $1} END {printf "%d", s}'
}

@test "ssp: the fast worker's lead is exactly s and is held there, as the servers' counters show" {
    local s state last held pulls most
    for s in 2 8; do
        start "s$s" --servers 2 --nproc-per-node 2 --lease-ms 2000 --sync "ssp s=$s" "${fashion[@]}" \
            --mode ps-ssp --steps 90 --slow-ms 45 --slow-rank 1
        last= most=0
        while state=$(status) || kill -0 "$launcher" 2>/dev/null; do # servers that have left no longer count: keep the fullest status
            pulls=$(servers_stat pull.ops <<<"$state")
            [ "$pulls" -lt "$most" ] || { last=$state most=$pulls; }
            sleep 0.1
        done
        wait_for_end 20
        [ "$code" = 0 ] || { cat "$tmp/s$s.err"; false; }
        held=$(servers_stat pulls.held <<<"$last")
        pulls=$most
        echo "s=$s: largest lead $(servers_stat gap.max max <<<"$last"), held $held of about $((pulls / 2)) pulls of the fast worker"
        [ "$(servers_stat gap.max max <<<"$last")" = "$s" ]
        [ $((held * 5)) -ge $((pulls / 2)) ]
    done
    nothing_is_left
}

@test "two jobs run side by side without meeting" {
    train alone --servers 1 --nproc-per-node 1 -- --mode ps-bsp --steps 60 --seed 3
    start left --servers 1 --nproc-per-node 1 "${fashion[@]}" --steps 60 --seed 3 --out "$tmp/left.json"
    local left=$launcher
    start right --servers 1 --nproc-per-node 1 "${fashion[@]}" --steps 60 --seed 3 --out "$tmp/right.json"
    wait_for_end 30
    [ "$code" = 0 ]
    launcher=$left
    wait_for_end 30
    [ "$code" = 0 ]
    same_crc alone left right
    nothing_is_left
}
