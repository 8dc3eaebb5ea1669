# order.bats - deterministic=node: every mode gives the same parameters on two hosts (support/hosts.bash) of two workers,
# started with the README's flags.

load ../support/job
load ../support/hosts

setup() {
    job_setup
    can_have_bridge >"$tmp/cannot" || skip "$(cat "$tmp/cannot")"
    export OMP_NUM_THREADS=1 # as for the README's comparison: the program's own products must not depend on the machine
}
teardown() { job_teardown; }

# Trains on both hosts, two workers each:  train_on_hosts NAME LAUNCHER_FLAGS... -- EXAMPLE_FLAGS...   -> $tmp/NAME.json
train_on_hosts() {
    local name=$1 flags
    take_flags "${@:2}"
    shift $((${#flags[@]} + 2))
    flags=(--nnodes 2 --nproc-per-node 2 "${flags[@]}")
    begin_on node0 run0 "$penstock" run "${flags[@]}" --node-rank 0 --master-addr node0 "${fashion[@]}" "$@" --out "$tmp/$name.json"
    join_line run0
    begin_on node1 run1 "$penstock" run "${flags[@]}" --node-rank 1 --join - "${fashion[@]}" "$@" <<<"$line"
    ends run0 0
    ends run1 0
    [ -n "$(crc "$name")" ] && echo "$name: $(crc "$name")"
}

@test "deterministic=node: all modes train to the same parameters on two hosts of two workers, clipped and not" {
    local clip mode example=(--optim "adamw lr=0.002 weight_decay=0.01" --steps 12)
    hosts_start 2
    for clip in 0 0.1; do
        train_on_hosts "allreduce-$clip" --deterministic node --mode allreduce -- --clip $clip "${example[@]}"
        train_on_hosts "flat-$clip" --servers 2 --deterministic node --mode ps-bsp --two-level no -- --clip $clip "${example[@]}"
        train_on_hosts "hier-$clip" --servers 2 --deterministic node --mode ps-hier -- --clip $clip "${example[@]}"
        same_crc {allreduce,flat,hier}-$clip
    done
    echo "clipped in $(value allreduce-0.1 clipped) of 12 steps"
    [ "$(value allreduce-0.1 clipped)" -ge 4 ]
    for mode in zero1 zero2 zero3 hybrid_shard; do
        train_on_hosts "$mode-0.1" --deterministic node --mode $mode -- --clip 0.1 "${example[@]}"
    done
    train_on_hosts servers-0.1 --servers 2 --deterministic node --mode zero2 -- --clip 0.1 "${example[@]}"
    same_crc {allreduce,zero1,zero2,zero3,hybrid_shard,servers}-0.1
    for mode in "allreduce" "ps-bsp --servers 2 --two-level no" "ps-hier --servers 2"; do
        # shellcheck disable=SC2086
        train_on_hosts "${mode%% *}-bf16" --deterministic node --wire bf16 --mode $mode -- --clip 0.1 "${example[@]}"
    done
    same_crc {allreduce,ps-bsp,ps-hier}-bf16
    [ "$(crc allreduce-bf16)" != "$(crc allreduce-0.1)" ]
    train_on_hosts by-rank --mode allreduce -- "${example[@]}" # the default is another sum
    [ "$(crc by-rank)" != "$(crc allreduce-0)" ]
    hosts_stop
}

# The steps of a model that is large enough for sums of nodes:  steps_on_hosts NAME LAUNCHER_FLAGS...
steps_on_hosts() {
    local name=$1 flags=(--nnodes 2 --nproc-per-node 2 --servers 2 --log-level info "${@:2}")
    begin_on node0 run0 "$penstock" run "${flags[@]}" --node-rank 0 --master-addr node0 "$programs/stepper" rows=512
    join_line run0
    begin_on node1 run1 "$penstock" run "${flags[@]}" --node-rank 1 --join - "$programs/stepper" rows=512 <<<"$line"
    ends run0 0
    ends run1 0
    n_summed=$(cat "$tmp"/run[01].err | grep -c 'in its node pushes and pulls' || true)
    cat "$tmp"/run[01].out | sed -n 's/^\[[0-9]*\] \(rank .*\)/\1/p' | sort >"$tmp/$name"
    [ -s "$tmp/$name" ]
}

@test "two_level=auto sums inside nodes over two hosts with deterministic=node, with the bits of no; in rank order it does not" {
    hosts_start 2
    steps_on_hosts auto --deterministic node
    [ "$n_summed" = 4 ]
    steps_on_hosts no --deterministic node --two-level no
    [ "$n_summed" = 0 ]
    diff "$tmp/auto" "$tmp/no"
    steps_on_hosts rank
    [ "$n_summed" = 0 ]
    hosts_stop
}

# Trains tensors that each rank checks, two workers on each host, one bad step:  units_on_hosts NAME WORDS...
units_on_hosts() {
    local name=$1 flags=(--nnodes 2 --nproc-per-node 2 --servers 2 --mode ps-hier --deterministic node)
    local words=(steps=3 rows=40 clip=60 persistence_threshold=1000 own=1 bad=1 "${@:2}")
    begin_on node0 run0 "$penstock" run "${flags[@]}" --node-rank 0 --master-addr node0 "$programs/units" "${words[@]}"
    join_line run0
    begin_on node1 run1 "$penstock" run "${flags[@]}" --node-rank 1 --join - "$programs/units" "${words[@]}" <<<"$line"
    ends run0 0
    ends run1 0
    cat "$tmp"/run[01].out | sed -n 's/^\[[0-9]*\] \(rank .*\)/\1/p' | sort >"$tmp/$name"
    [ "$(wc -l <"$tmp/$name")" = 12 ]
}

# With the fake CUDA driver (tests/gpu/README.md), a device for each worker of a host.
@test "deterministic=node: nodes that sum on their devices have the bits of the host, and each copies the model once a step" {
    [ -e "$build/tests/gpu/driver/libcuda.so.1" ] || skip "built without CUDA"
    export LD_LIBRARY_PATH=$build/tests/gpu/driver:$build/lib CUDA_ON_HOST_DEVICES=2
    hosts_start 2
    units_on_hosts host
    units_on_hosts device device=cuda lazy=1 count=1
    diff "$tmp/host" "$tmp/device"
    grep -h 'traffic rank [0-3] down' "$tmp"/run[01].err
    [ "$(cat "$tmp"/run[01].err | sed -n 's/.*traffic rank [0-3] down .* grad \([0-9]*\) .*/\1/p' | awk '{n += $1} END {print n}')" = $((2 * 3 * 1121048)) ]
    hosts_stop
}
