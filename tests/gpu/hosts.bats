# hosts.bats - devices of several hosts: collectives and training with the bits of host memory, of which only a host's
# share crosses between host and device, and a worker that dies. On the fake CUDA driver (driver/), on hosts of our own
# (support/hosts.bash), each with one device for two workers.

load ../support/job
load ../support/hosts
load ../support/units

setup() {
    job_setup
    [ -e "$build/tests/gpu/driver/libcuda.so.1" ] || skip "built without CUDA"
    can_have_bridge >"$tmp/cannot" || skip "$(cat "$tmp/cannot")"
    LD_LIBRARY_PATH=$build/tests/gpu/driver:$build/lib
}
teardown() { job_teardown; }

# Begins a program on both hosts, two workers each:  begin_job LAUNCHER_FLAGS... -- PROGRAM...
begin_job() {
    local flags
    take_flags "$@"
    shift $((${#flags[@]} + 1))
    flags=(--nnodes 2 --nproc-per-node 2 --no-prefix "${flags[@]}")
    begin_on node0 run0 "$penstock" run "${flags[@]}" --node-rank 0 --master-addr node0 "$@"
    join_line run0
    begin_on node1 run1 "$penstock" run "${flags[@]}" --node-rank 1 --join - "$@" <<<"$line"
}

# And waits for it:  on_both NAME LAUNCHER_FLAGS... -- PROGRAM...   -> $tmp/NAME.out, sorted, and $tmp/NAME.err
on_both() {
    begin_job "${@:2}"
    ends run0 0
    ends run1 0
    sort "$tmp"/run[01].out >"$tmp/$1.out"
    cat "$tmp"/run[01].err >"$tmp/$1.err"
}

# A line of each rank, whose numbers are those of ranks 0 and 1, and of 2 and 3:  lines NAME DOWN UP [DOWN UP]
lines() {
    local rank
    for rank in 0 1; do echo "$1: rank $rank down $2 up $3 right"; done
    for rank in 2 3; do echo "$1: rank $rank down ${4:-$2} up ${5:-$3} right"; done
}

@test "collectives on devices of two hosts: the bits of host memory, and only each worker's share of its host's data crosses" {
    local all=4400000 share=2200000 part=1100000
    hosts_start 2
    on_both node --deterministic node -- "$programs/on_device" between
    {
        lines all_gather $part $part
        lines "all_reduce of floats" $share $share
        lines all_reduce $share $share
        lines broadcast $share 0 0 $share
        lines reduce $share $share $share 0
        lines "scatter of a sum" $share $part
    } >"$tmp/expected"
    diff "$tmp/expected" "$tmp/node.out"
    on_both by-rank -- "$programs/on_device" between # floats in rank order over all hosts: the whole tensor
    sed "s/^\(.* of floats.*\) down $share up $share/\1 down $all up $all/" "$tmp/expected" | diff - "$tmp/by-rank.out"
    on_both staged --deterministic node --two-level no -- "$programs/on_device" between
    [ "$(grep -c ' right$' "$tmp/staged.out")" = 24 ]
    grep -q "^all_reduce: rank 0 down $all up $all right$" "$tmp/staged.out"
    hosts_stop
}

# Bytes of the trained tensors of programs/units; every bucket is a little longer.
model=1121048

# Bytes that all workers copied in the last step:  step_bytes NAME down|up
step_bytes() {
    cat "$tmp/$1".*.counts | awk -v name="step.2.sdk.copy.$2.bytes" '$1 == name {n += $2} END {printf "%d", n}'
}

# Whether a number of bytes is that many times half the model, and less than a hundredth more.
is_halves() { [ "$1" -ge $(($2 * model / 2)) ] && [ "$1" -le $(($2 * model / 2 + model / 100)) ]; }

@test "allreduce and zero1 on devices of two hosts: the bits of host tensors, and the model crosses once per host and direction" {
    local mode words=(steps=3 rows=40 clip=60 persistence_threshold=1000 own=1 lazy=1)
    hosts_start 2
    on_both host --deterministic node -- "$programs/units" mode=allreduce "${words[@]}"
    for mode in allreduce zero1; do
        CUDA_ON_HOST_COUNTS=$tmp/$mode.%p.counts \
            on_both $mode --deterministic node -- "$programs/units" mode=$mode "${words[@]}" device=cuda count=1
        diff <(grep '^rank' "$tmp/host.out") <(grep '^rank' "$tmp/$mode.out")
        echo "$mode: $(step_bytes $mode down) down, $(step_bytes $mode up) up"
    done
    [ "$(grep -c '^rank' "$tmp/host.out")" = 12 ]
    is_halves "$(step_bytes allreduce down)" 4
    is_halves "$(step_bytes allreduce up)" 4
    is_halves "$(step_bytes zero1 down)" 6 # gradients down and their sums up; of new values a half each
    is_halves "$(step_bytes zero1 up)" 4
    hosts_stop
}

# All calls have ended, and no stream of a survivor waits for ever.
@test "a worker that dies in a collective on devices of two hosts: all others end with one sentence, and so do their streams" {
    local victim
    hosts_start 2
    begin_job --deterministic node --max-restarts 0 -- "$programs/on_device" endless
    for _ in $(seq 500); do
        [ "$(grep -c '^begun' "$tmp"/run0.out)" = 2 ] && [ "$(grep -c '^begun' "$tmp"/run1.out)" = 2 ] && break
        sleep 0.02
    done
    victim=$(sed -n 's/^begun //p' "$tmp/run1.out" | head -n 1)
    on node1 kill -9 "$victim"
    ends run0 1
    ends run1 137
    grep -h '^worker' "$tmp"/run[01].out | tee "$tmp/said"
    [ "$(grep -c '^worker [23] (node1) is gone' "$tmp/said")" = 3 ]
    [ "$(sort -u "$tmp/said" | wc -l)" = 1 ]
    hosts_stop
}

# Bytes of gradients that the workers of one host moved, "down" or "up":  host_moves RUN WAY
host_moves() { awk -v way="$2" '$1 == "traffic" && $4 == way {sum += $10} END {printf "%d", sum}' "$tmp/$1.err"; }

@test "hybrid on two hosts of two workers: sums of a host stay on its devices, each worker moves its share of them, and the bits are the host's" {
    local mode run way words=(steps=6 rows=40 clip=60 persistence_threshold=1000 ahead=1 bad=2)
    hosts_start 2
    for mode in hybrid_shard hybrid_shard_zero2; do
        on_both "$mode-host" -- "$programs/units" mode=$mode "${words[@]}"
        CUDA_ON_HOST_DEVICES=2 on_both "$mode" -- "$programs/units" mode=$mode "${words[@]}" device=cuda count=1
        grep -q '^rank 3 step' "$tmp/$mode.out"
        diff "$tmp/$mode-host.out" "$tmp/$mode.out"
        for run in run0 run1; do
            for way in down up; do [ "$(host_moves $run $way)" = $((6 * 1121048)) ]; done
        done
    done
    grep -q 'outcome 1 .* bad 1 ' "$tmp/hybrid_shard.out"
    hosts_stop
}
