# modes.bats - one program, several architectures: equal losses, and equal bits where they are promised.

load ../support/job

adamw="adamw lr=0.002 weight_decay=0.01"

setup() { job_setup; }
teardown() { job_teardown; }

# The largest relative difference of two jobs' losses over 100 steps is at most 1e-4:  same_losses A B
same_losses() {
    paste "$tmp/$1.loss" "$tmp/$2.loss" | awk -v a="$1" -v b="$2" '
        $1 != $3 {bad = 1}
        {d = ($2 - $4) / $2; d = d < 0 ? -d : d; if (d > most) most = d}
        END {printf "%s, %s: largest difference %.3g of 1e-4\n", a, b, most; exit bad || NR != 100 || !(most <= 1e-4)}'
}

# As in training.bats, the learning rate is small enough that rounding does not grow through ReLU units that jump.
calm=(--optim "sgd lr=0.001" --lr-schedule constant --steps 100)

@test "allreduce, ps-bsp and ps-hier have the loss of one process with the same global batch, to 1e-4 for 100 steps" {
    "${fashion[@]}" --mode local "${calm[@]}" --loss-log "$tmp/alone.loss"
    train allreduce --nproc-per-node 2 -- --mode allreduce "${calm[@]}"
    train ps-bsp --servers 2 --nproc-per-node 2 -- --mode ps-bsp "${calm[@]}"
    train ps-hier --servers 2 --nproc-per-node 2 -- --mode ps-hier "${calm[@]}"
    same_losses alone allreduce
    same_losses alone ps-bsp
    same_losses alone ps-hier
    same_crc allreduce ps-bsp
    nothing_is_left
}

@test "allreduce trains bit for bit like ps-bsp: adamw, clipped in most steps" {
    train allreduce --nproc-per-node 2 -- --mode allreduce --optim "$adamw" --clip 0.1 --steps 60
    train ps-bsp --servers 2 --nproc-per-node 2 -- --mode ps-bsp --optim "$adamw" --clip 0.1 --steps 60
    same_crc allreduce ps-bsp
    cmp "$tmp/allreduce.loss" "$tmp/ps-bsp.loss"
    echo "clipped in $(value allreduce clipped) of $(value allreduce steps) steps"
    [ $(($(value allreduce clipped) * 10)) -ge $(($(value allreduce steps) * 3)) ]
    nothing_is_left
}

# Three images over four ranks: the first rank has none, and weight 0.
@test "allreduce trains bit for bit like ps-bsp: four micro-batches, a rank of weight 0" {
    local flags=(--optim "$adamw" --clip 0.1 --grad-accum 4 --batch 3 --steps 40)
    train allreduce --nproc-per-node 4 -- --mode allreduce "${flags[@]}"
    train ps-bsp --servers 2 --nproc-per-node 4 -- --mode ps-bsp "${flags[@]}"
    same_crc allreduce ps-bsp
    nothing_is_left
}

@test "allreduce trains bit for bit like ps-bsp: gradients in 16 bits, lamb, and commit=eager" {
    train allreduce --nproc-per-node 3 --wire bf16 -- --mode allreduce --optim "lamb lr=0.002" --steps 20
    train ps-bsp --servers 1 --nproc-per-node 3 --wire bf16 -- --mode ps-bsp --optim "lamb lr=0.002" --steps 20
    same_crc allreduce ps-bsp
    export PENSTOCK_COMMIT=eager
    train eager --nproc-per-node 3 -- --mode allreduce --optim "$adamw" --steps 20
    train ps-eager --servers 1 --nproc-per-node 3 -- --mode ps-bsp --optim "$adamw" --steps 20
    same_crc eager ps-eager
    nothing_is_left
}

@test "allreduce gives the same bits over sockets, and with buckets of any size" {
    local flags=(--mode allreduce --optim "$adamw" --clip 0.1 --steps 30)
    train memory --nproc-per-node 3 -- "${flags[@]}"
    PENSTOCK_SHARED_MEMORY=no train sockets --nproc-per-node 3 -- "${flags[@]}"
    PENSTOCK_BUCKET_FIRST_BYTES=4096 PENSTOCK_BUCKET_BYTES=4096 train small --nproc-per-node 3 -- "${flags[@]}"
    same_crc memory sockets small
    nothing_is_left
}

@test "accumulated micro-batches have the loss of whole shares, and are sent once a step" {
    train whole --servers 1 --nproc-per-node 2 -- --mode ps-bsp "${calm[@]}"
    train parts --servers 1 --nproc-per-node 2 -- --mode ps-bsp --grad-accum 4 "${calm[@]}"
    same_losses whole parts
    nothing_is_left
}

# Two launchers on this machine, each a node of two workers:  train_on_two_nodes NAME SERVERS EXAMPLE_FLAGS...
train_on_two_nodes() {
    local name=$1 servers=$2 port second code=0
    shift 2
    port=$(free_port)
    local flags=(run --nnodes 2 --master-addr 127.0.0.1 --master-port "$port" --servers "$servers"
        --nproc-per-node 2)
    pen "${flags[@]}" --node-rank 1 "${fashion[@]}" "$@" >"$tmp/$name.1.out" 2>"$tmp/$name.1.err" &
    second=$!
    pen "${flags[@]}" --node-rank 0 "${fashion[@]}" "$@" --out "$tmp/$name.json" --loss-log "$tmp/$name.loss" \
        >"$tmp/$name.out" 2>"$tmp/$name.err" || code=$?
    wait "$second" || code=$?
    [ "$code" = 0 ] || { cat "$tmp/$name".*err; return 1; }
}

@test "two nodes of two workers have the loss of one process, with node sums and without servers" {
    "${fashion[@]}" --mode local "${calm[@]}" --loss-log "$tmp/alone.loss"
    train_on_two_nodes hier 2 --mode ps-hier "${calm[@]}"
    train_on_two_nodes allreduce 0 --mode allreduce "${calm[@]}"
    same_losses alone hier
    same_losses alone allreduce
    nothing_is_left
}

@test "on one node ps-hier trains bit for bit like ps-bsp: clipped, micro-batches, a rank of weight 0" {
    local flags=(--optim "$adamw" --clip 0.1 --grad-accum 2)
    train hier --servers 2 --nproc-per-node 3 -- --mode ps-hier "${flags[@]}" --steps 40
    train bsp --servers 2 --nproc-per-node 3 -- --mode ps-bsp "${flags[@]}" --steps 40
    same_crc hier bsp
    train hier-0 --servers 1 --nproc-per-node 4 -- --mode ps-hier "${flags[@]}" --batch 3 --steps 20
    train bsp-0 --servers 1 --nproc-per-node 4 -- --mode ps-bsp "${flags[@]}" --batch 3 --steps 20
    same_crc hier-0 bsp-0
    nothing_is_left
}

@test "a snapshot of ps-hier holds every chunk: a resumed run ends with the same parameters" {
    train first --servers 2 --nproc-per-node 2 --store "$tmp/store" --snapshot-every 20 -- --mode ps-hier \
        --optim "$adamw" --steps 20 --lr-schedule constant
    train second --servers 2 --nproc-per-node 2 --store "$tmp/store" --resume -- --mode ps-hier \
        --optim "$adamw" --steps 40 --lr-schedule constant
    train through --servers 2 --nproc-per-node 2 -- --mode ps-hier --optim "$adamw" --steps 40 --lr-schedule constant
    same_crc second through
    nothing_is_left
}

# The outcome of a step, without the rank and the launcher's prefix.
steps_of() {
    grep -o "rank $1 step .*" "$tmp/$2.out"
}

@test "every mode skips a gradient that is not finite, and names it, in the same way" {
    local mode flags
    for mode in allreduce ps-bsp ps-hier; do
        flags=()
        [ "$mode" = allreduce ] || flags=(--servers 2)
        pen run --standalone --job "$job-$mode" "${flags[@]}" --nproc-per-node 3 "$programs/stepper" mode=$mode \
            clip=0.1 loss_scale=8 1:nan=2,1,7777 >"$tmp/$mode.out" 2>"$tmp/$mode.err"
    done
    steps_of 2 allreduce | grep -q 'step 2 SKIPPED_NONFINITE .* bad 1 fc1.weight'
    diff <(steps_of 2 allreduce) <(steps_of 2 ps-bsp)
    diff <(steps_of 2 allreduce) <(steps_of 2 ps-hier)
    nothing_is_left
}

@test "ranks of allreduce with different learning rates report the same sentence" {
    local code=0
    pen run --standalone --job "$job" --nproc-per-node 2 "$programs/stepper" 1:lr_scale=0.5 >"$tmp/out" 2>&1 || code=$?
    [ "$code" != 0 ]
    [ "$(grep -c 'the learning rate of parameter group 0 is 0.01 on rank 0 and 0.005.* on rank 1' "$tmp/out")" -ge 2 ]
    nothing_is_left
}

@test "a worker of allreduce or ps-hier that dies ends the job with its own code" {
    local servers code
    for servers in 0 2; do
        code=0
        [ "$servers" = 0 ] || export PENSTOCK_MODE=ps-hier
        pen run --standalone --job "$job-$servers" --servers "$servers" --nproc-per-node 3 "$programs/stepper" \
            1:crash_at=2 >"$tmp/out" 2>&1 || code=$?
        [ "$code" = 139 ]
        grep -q 'worker 1 .* is gone' "$tmp/out"
        nothing_is_left 5
    done
}

# What survivors print about the last step, without their ranks:  last_of NAME STEPS
last_of() {
    grep -o "step $(($2 - 1)) .*" "$tmp/$1.out" | sort -u
}

@test "continue: allreduce goes on without a worker that is killed in a step, with equal parameters" {
    local victim
    for victim in 0 2; do
        pen run --standalone --job "$job-$victim" --nproc-per-node 4 --on-worker-loss continue "$programs/stepper" \
            mode=allreduce clip=0.1 steps=12 "$victim:crash_at=5" >"$tmp/$victim.out" 2>"$tmp/$victim.err"
        cat "$tmp/$victim.err"
        [ "$(grep -c "rank [0-3] step 11 APPLIED applied 12 " "$tmp/$victim.out")" = 3 ]
        [ "$(last_of "$victim" 12 | wc -l)" = 1 ]
        [ "$(grep -c '3 workers are left; step 5 is repeated' "$tmp/$victim.err")" = 3 ]
        nothing_is_left 5
    done
}

@test "continue: two workers are lost one after the other, and the last two train on" {
    pen run --standalone --job "$job" --nproc-per-node 4 --on-worker-loss continue "$programs/stepper" \
        mode=allreduce steps=12 1:crash_at=0 3:crash_at=6 >"$tmp/two.out" 2>"$tmp/two.err"
    cat "$tmp/two.err"
    [ "$(grep -c "rank [02] step 11 APPLIED applied 12 " "$tmp/two.out")" = 2 ]
    [ "$(last_of two 12 | wc -l)" = 1 ]
    nothing_is_left 5
}

@test "two_level: auto sums inside the node where the model is large enough, with the same bits as no" {
    local how flags=(mode=ps-bsp clip=0.1 rows=512)
    for how in auto yes no; do
        PENSTOCK_TWO_LEVEL=$how PENSTOCK_LOG_LEVEL=info pen run --standalone --job "$job-$how" --servers 2 \
            --nproc-per-node 3 "$programs/stepper" "${flags[@]}" >"$tmp/$how.out" 2>"$tmp/$how.err"
    done
    [ "$(grep -c 'in its node pushes and pulls' "$tmp/auto.err")" = 3 ]
    [ "$(grep -c 'in its node pushes and pulls' "$tmp/yes.err")" = 3 ]
    ! grep -q 'in its node pushes and pulls' "$tmp/no.err" || return 1
    diff <(steps_of 2 auto) <(steps_of 2 no)
    diff <(steps_of 2 yes) <(steps_of 2 no)
    PENSTOCK_LOG_LEVEL=info pen run --standalone --job "$job-small" --servers 2 --nproc-per-node 3 \
        "$programs/stepper" mode=ps-bsp rows=64 >"$tmp/small.out" 2>"$tmp/small.err"
    ! grep -q 'in its node pushes and pulls' "$tmp/small.err" || return 1
    nothing_is_left
}

@test "lazy steps of ps-hier and allreduce end with the same parameters" {
    local mode flags
    for mode in allreduce ps-bsp ps-hier; do
        flags=()
        [ "$mode" = allreduce ] || flags=(--servers 2)
        pen run --standalone --job "$job-$mode" "${flags[@]}" --nproc-per-node 3 "$programs/stepper" mode=$mode \
            clip=0.1 lazy=1 steps=20 >"$tmp/$mode.out" 2>"$tmp/$mode.err"
        [ "$(grep -c 'rank [0-2] step 19 ' "$tmp/$mode.out")" = 3 ]
    done
    diff <(steps_of 2 allreduce) <(steps_of 2 ps-bsp)
    diff <(steps_of 2 allreduce) <(steps_of 2 ps-hier)
    nothing_is_left
}
