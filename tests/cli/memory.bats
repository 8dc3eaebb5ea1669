# memory.bats - `penstock memory`: the formulas of ZeRO (arXiv:1910.02054, figure 1), and Penstock's own memory.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

says() {
    local code=0
    pen "${@:3}" >"$tmp/out" 2>"$tmp/err" || code=$?
    cat "$tmp/out" "$tmp/err"
    [ "$code" = "$1" ]
    [ "$(cat "$tmp/err")" = "$2" ]
}

# memory KEY FLAGS... -> the number
memory() {
    pen memory --json "${@:2}" | grep -o "\"$1\":[0-9]*" | head -n 1 | cut -d: -f2
}

# Bytes per worker of all four strategies in GB, as the literature rounds them:  row PARAMS WORLD GB GB GB GB
row() {
    local strategy i=3 bytes
    for strategy in ddp zero1 zero2 zero3; do
        bytes=$(memory bytes_per_worker --params "$1" --world "$2" --mode $strategy | tail -n 1)
        awk -v bytes="$bytes" -v gb="${!i}" 'BEGIN {
            digits = length(gb) - index(gb, "."); if (!index(gb, ".")) digits = 0
            tolerance = 0.5001 * 10 ^ -digits; off = bytes / 1e9 - gb; if (off < 0) off = -off
            printf "%s GB, got %.6f: %.0f %% of the tolerance\n", gb, bytes / 1e9, 100 * off / tolerance
            exit off > tolerance }' || return 1
        i=$((i + 1))
    done
}

@test "bytes per worker match the literature" {
    row 7.5e9 64 120 31.41 16.64 1.875
    row 124439808 4 1.9910 0.87108 0.68442 0.49776
    row 124475904 8 1.99161 0.68462 0.46678 0.24895
    row 1.5577e9 8 24.92 8.567 5.841 3.115
    row 175e9 128 2800 716.4 369.1 21.875
}

@test "with servers, the servers hold the state, and workers the parts that the strategy leaves them" {
    # P = 1e9, S = 4: 4P per worker (16 bits), 12P/S and the sum of gradients, 2P/S, per server
    [ "$(memory bytes_per_worker --params 1e9 --world 8 --servers 4 --mode ps)" = 4000000000 ]
    [ "$(memory bytes_per_server --params 1e9 --world 8 --servers 4 --mode ps)" = 3500000000 ]
    [ "$(memory bytes_per_worker --params 1e9 --world 8 --servers 4 --mode zero2 --bucket 1000000)" = 2002000000 ]
    [ "$(memory bytes_per_worker --params 1e9 --world 8 --servers 4 --mode zero3 --bucket 1000000 --live 100000000)" = 202000000 ]
    [ "$(memory bytes_per_worker --params 1e9 --world 8 --servers 4 --mode ps --precision fp32)" = 8000000000 ]
    [ "$(memory bytes_per_server --params 1e9 --world 8 --servers 4 --mode ps --precision fp32)" = 4000000000 ]
}

@test "in float32 a parameter is its own master, and rules count their state" {
    [ "$(memory bytes_per_worker --params 1e9 --mode ddp --precision fp32)" = 16000000000 ]
    [ "$(memory bytes_per_worker --params 1e9 --world 4 --mode zero1 --precision fp32)" = 10000000000 ]
    [ "$(memory bytes_per_worker --params 1e9 --world 4 --mode zero2 --precision fp32)" = 7000000000 ]
    [ "$(memory bytes_per_worker --params 1e9 --world 4 --mode zero3 --precision fp32)" = 4000000000 ]
    [ "$(memory bytes_per_worker --params 1e9 --precision fp32 --optim 'sgd lr=1 momentum=0.9')" = 12000000000 ]
}

# The memory of Penstock's workers:  here WORKER_BYTES FLAGS...
here() {
    local bytes
    bytes=$(pen memory --json "${@:2}" | grep -o '"here":{[^}]*}' | grep -o '"bytes_per_worker":[0-9]*' | cut -d: -f2)
    [ "$bytes" = "$1" ] || { echo "${*:2}: $bytes, not $1"; return 1; }
}

@test "Penstock sums in float32: the bytes that tests/unit/sharded_test.c measures" {
    for precision in fp32 bf16; do
        [ $precision = fp32 ] && set -- 8 8 4 12 0 16 || set -- 4 16 2 16 0 16
        for strategy in zero1 zero2 zero3; do
            here $(($1 * 1000000000 + $2 * 250000000)) --params 1e9 --world 4 --mode $strategy --precision $precision
            shift 2
        done
    done
    here 16000000000 --params 1e9 --world 1 --mode zero2 --precision fp32
    here 20000000000 --params 1e9 --world 1 --mode zero3 --precision bf16
}

@test "FSDP's names mean the same, and hybrids shard inside a machine" {
    [ "$(memory bytes_per_worker --params 1e9 --world 8 --mode full_shard)" = 2000000000 ]
    [ "$(memory bytes_per_worker --params 1e9 --world 8 --per-node 4 --mode hybrid_shard)" = 4000000000 ]
    [ "$(memory elements_on_wire_per_worker --params 1e9 --world 8 --mode zero3)" = 3000000000 ]
    [ "$(memory elements_on_wire_per_worker --params 1e9 --world 8 --mode zero2)" = 2000000000 ]
}

@test "without --json the parts are named, and the differences of Penstock" {
    pen memory --params 124439808 --world 4 --mode zero2 >"$tmp/out"
    grep -qE "^  total +0\.68442 +0\.[0-9]+\$" "$tmp/out"
    grep -qx "Penstock sums gradients in float32 (4 bytes each); buckets in flight are not included." "$tmp/out"
}

@test "impossible requests are a usage error" {
    says 2 "penstock: missing --params N: the number of parameters, a whole number" memory
    says 2 "penstock: --mode ps needs --servers S" memory --params 1e9 --mode ps
    says 2 "penstock: --servers 2 and --mode ddp contradict each other" memory --params 1e9 --servers 2 --mode ddp
    says 2 "penstock: unknown setting 'parms'; did you mean 'params'?" memory --parms 1
    says 2 "penstock: optim is 'adamv'; choose one of sum, sgd, adam, adamw, adagrad, rmsprop, adadelta, adamax, ftrl, lion, lamb" \
        memory --params 1 --optim adamv
    says 2 "penstock: rowwise_adagrad is a rule of tables by key (pen_table_new) only" \
        memory --params 1 --optim "rowwise_adagrad lr=0.1"
}
