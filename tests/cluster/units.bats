# units.bats - zero2 and zero3 over the servers: the bits of ps-bsp, without the memory that a worker does not need:
# gradients that a server already has, and values outside of the units in use.

load ../support/job
load ../support/units

unit_flags=(--servers 2)
unit_words=(clip=100)

setup() { job_setup; }
teardown() { job_teardown; }

# A counter at the end:  memory NAME RANK COUNTER
memory() {
    sed -n "s/^memory rank $2 $3 //p" "$tmp/$1.err"
}

# Bytes (elements times 4): four layers, which are loaded and released, and the outermost unit's; biases of 64 elements
# stay.
layer=$((4 * 150000))
layers=$((4 * (600000 + 0 + 1 + 2 + 3)))
embed=$((4 * 120000))
table=$((4 * 110000))
biases=$((4 * 4 * 64))

@test "zero2 and zero3 train bit for bit like ps-bsp with the program's own memory, clipped" {
    units own -- mode=ps-bsp own=1
    units zero2 -- mode=zero2
    units zero3 -- mode=zero3
    units lazy -- mode=zero3 lazy=1 wrap=none
    units sockets -- mode=zero3 shared_memory=no lanes=3 max_reuse=0 prefetch_backward=post wrap=layer wrap_match=h.*
    same_steps own zero2 zero3 lazy sockets
    grep -q 'clip 0\.' "$tmp/own.out"
    grep -q 'clip 1 ' "$tmp/own.out"
    units own-3 --nproc-per-node 3 -- mode=ps-bsp own=1 accum=2
    units zero3-3 --nproc-per-node 3 -- mode=zero3 accum=2 max_reuse=0
    same_steps own-3 zero3-3
    nothing_is_left
}

@test "zero2 holds no more gradients than a bucket or the largest unit, and the tied tensor's" {
    units zero2 -- mode=zero2 reduce_bucket=150000
    units zero1 -- mode=zero1
    same_steps zero1 zero2
    for rank in 0 1; do
        peak=$(memory zero2 $rank mem.grad.peak.bytes)
        echo "rank $rank: $peak bytes of gradients at most, with zero1 $(memory zero1 $rank mem.grad.peak.bytes)"
        [ "$peak" -le $((embed + layer + 12 + 256)) ]
        [ "$(memory zero2 $rank mem.grad.bytes)" = 0 ]
        [ "$(memory zero1 $rank mem.grad.peak.bytes)" -ge $((layers + 2 * embed)) ]
    done
    nothing_is_left
}

@test "FULL_SHARD of an accelerate file reshards each unit after its forward pass, without servers" {
    cat >"$tmp/fsdp.yml" <<'YAML'
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch_policy: BACKWARD_PRE
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_transformer_layer_cls_to_wrap: GPT2Block
num_machines: 1
num_processes: 2
YAML
    unit_flags=(--config "$tmp/fsdp.yml")
    units file -- steps=3
    units kept --max-reuse 1000000000 -- steps=3
    same_steps file kept
    for rank in 0 1; do
        echo "rank $rank: $(memory file $rank mem.param.peak.bytes), $(memory kept $rank mem.param.peak.bytes) bytes at most"
        [ "$(memory file $rank mem.param.peak.bytes)" -lt "$(memory kept $rank mem.param.peak.bytes)" ]
        [ $(($(memory file $rank mem.param.peak.bytes) + layer)) -le "$(memory kept $rank mem.param.peak.bytes)" ]
    done
    nothing_is_left
}

@test "gradients larger than the bucket are released as soon as a server has them, also for a lone worker" {
    units many -- mode=zero2 reduce_bucket=1000
    units own -- mode=ps-bsp own=1
    same_steps own many
    units diverge -- mode=zero3 reduce_bucket=1000 diverge=1
    units alone --nproc-per-node 1 -- mode=zero3 reduce_bucket=1000
    grep -q '^rank 0 step 3 ' "$tmp/alone.out"
    nothing_is_left
}

@test "zero3 holds the outermost unit, the one in use and the next, and pulls each unit when it is used" {
    units pre -- mode=zero3 max_reuse=0 steps=3
    units none -- mode=zero3 max_reuse=0 steps=3 prefetch_backward=none prefetch_forward=no
    units kept -- mode=zero3 steps=3
    same_steps pre none kept
    # A step: the persistent tensors, all units forward, the layers backward; then everything for the digest.
    pulled=$((3 * (biases + embed + table + 2 * layers + embed + table + layers)))
    for rank in 0 1; do
        echo "rank $rank: $(memory pre $rank mem.param.peak.bytes), $(memory none $rank mem.param.peak.bytes) bytes at most"
        [ "$(memory pre $rank mem.param.peak.bytes)" -le $((embed + table + biases + 2 * layer + 20)) ]
        [ "$(memory none $rank mem.param.peak.bytes)" -le $((embed + table + biases + layer + 12)) ]
        [ "$(memory pre $rank mem.param.bytes)" = "$biases" ]
        [ "$(memory pre $rank pull.bytes)" = "$pulled" ]
        # With enough memory, the layers of the forward pass are still here in the backward pass, from the second step
        # on.
        [ "$(memory kept $rank pull.bytes)" = $((pulled - 2 * layers)) ]
    done
    nothing_is_left
}

@test "zero3: workers that use different units in different orders do not wait for each other" {
    units own -- mode=ps-bsp own=1 diverge=1
    units zero3 -- mode=zero3 max_reuse=0 diverge=1
    same_steps own zero3
    [ "$(grep -c 'units were used in another order in each of 3 steps' "$tmp/zero3.err")" = 2 ]
    nothing_is_left
}

@test "zero3 resumes from a snapshot, on another number of servers, with the bits of an uninterrupted job" {
    units whole -- mode=ps-bsp
    units half --store "$tmp/store" --snapshot-every 2 -- mode=zero3 steps=2
    units rest --store "$tmp/store" --resume --servers 1 -- mode=zero3
    for rank in 0 1; do
        [ "$(grep -c "^rank $rank " "$tmp/rest.out")" = 2 ]
        diff <(grep "^rank $rank step [23]" "$tmp/whole.out") <(grep "^rank $rank " "$tmp/rest.out")
    done
    nothing_is_left
}

@test "zero3 continues from copies when a server is killed, with the bits of an undisturbed job" {
    units calm -- mode=ps-bsp steps=16
    start hurt --no-prefix --servers 2 --nproc-per-node 2 --replicas 1 "$programs/units" clip=100 mode=zero3 \
        max_reuse=0 steps=16 pause_ms=30
    wait_for_step 4
    kill -9 "$(member server 0)"
    wait_for_end 60
    cat "$tmp/hurt.err"
    [ "$code" = 0 ]
    same_steps calm hurt
    [ "$(grep -c 'server 0 .*restarting it$' "$tmp/hurt.err")" = 1 ]
    nothing_is_left 5
}

@test "zero3 refuses what it cannot do, in a sentence" {
    ! units late -- mode=zero3 late=1 || return 1
    grep -q "units: pen_use: the values of 'h.0.weight' left after its gradient was sent; use its unit before pen_ready(), or after pen_step_end()" "$tmp/late.err"
    ! units elastic --on-worker-loss continue -- mode=zero3 || return 1
    grep -q 'units: mode=zero3 and workers that come and go contradict each other: ' "$tmp/elastic.err"
    unit_words=(clip=0)
    ! units eager -- mode=zero3 commit=eager || return 1
    grep -q 'units: mode=zero3 and commit=eager contradict each other: ' "$tmp/eager.err"
    nothing_is_left
}

# Every rank reads its units while the sums of others are on their way; small buckets, so that there are many.
@test "without servers, values of lazy steps without a decision come bucket by bucket, with the bits of other steps" {
    unit_flags=() unit_words=(mode=allreduce commit=eager steps=6)
    units plain --
    units lazy -- lazy=1
    units sockets -- lazy=1 shared_memory=no bucket_bytes=65536
    units ahead -- ahead=1 shared_memory=no bucket_bytes=65536
    units snapshots --store "$tmp/store" --snapshot-every 2 -- lazy=1 bucket_bytes=65536
    same_steps plain lazy sockets snapshots
    for rank in 0 1; do
        diff <(sed -n "s/ crc .*//; /^rank $rank step/p" "$tmp/plain.out") <(sed -n "/^rank $rank step/p" "$tmp/ahead.out")
        grep -qx "$(sed -n "s/^\(rank $rank \)step 5 .*\(crc .*\)/\1\2/p" "$tmp/plain.out")" "$tmp/ahead.out"
    done
    units rest --store "$tmp/store" --resume -- steps=8
    units long -- steps=8
    for rank in 0 1; do
        diff <(grep "^rank $rank step [67]" "$tmp/long.out") <(grep "^rank $rank " "$tmp/rest.out")
    done
    nothing_is_left
}

@test "a worker that dies while values come bucket by bucket ends the job with its name" {
    start hurt --no-prefix --nproc-per-node 3 "$programs/units" mode=allreduce commit=eager ahead=1 shared_memory=no \
        bucket_bytes=65536 steps=1000000
    wait_for_step 20
    grep -qx pen-step /proc/"$(member worker 0)"/task/*/comm
    kill -9 "$(member worker 1)"
    wait_for_end 10
    cat "$tmp/hurt.err"
    [ "$code" != 0 ]
    grep -q 'worker 1 (.*) is gone in step ' "$tmp/hurt.err"
    nothing_is_left 5
}
