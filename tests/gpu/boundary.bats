# boundary.bats - what crosses between device and host in a step, and how often the host waits for the device: counted by
# the fake CUDA driver (driver/counts.cpp), for which all that libpenstock.so asks of it is the SDK's.

load ../support/job
load ../support/units

# Bytes: the trained tensors, and the second gradient of the tensor that has two names.
model=1121048
tied=480000
steps=3

unit_words=(steps=$steps rows=40 clip=60 persistence_threshold=1000 count=1)

setup() {
    job_setup
    [ -e "$build/tests/gpu/driver/libcuda.so.1" ] || skip "built without CUDA"
    LD_LIBRARY_PATH=$build/tests/gpu/driver:$build/lib
}
teardown() { job_teardown; }

# Runs a job, and adds up what its workers counted:  crossings NAME WORKERS DEVICES FLAGS... -- WORDS...
crossings() {
    local name=$1 workers=$2
    export CUDA_ON_HOST_COUNTS=$tmp/$name.%p.counts CUDA_ON_HOST_DEVICES=$3
    if [ "$workers" = alone ]; then
        LD_LIBRARY_PATH=$LD_LIBRARY_PATH MARK=$mark timeout 60 "$programs/units" "${unit_words[@]}" "${@:5}" \
            >"$tmp/$name.out" 2>"$tmp/$name.err" || { cat "$tmp/$name.err"; return 1; }
        workers=1
    else
        units "$name" --nproc-per-node "$workers" "${@:4}"
    fi
    [ "$(ls "$tmp/$name".*.counts | wc -l)" = "$workers" ]
    cat "$tmp/$name".*.counts | awk '{sum[$1] += $2} END {for (n in sum) print n, sum[n]}' | sort >"$tmp/$name.counts"
}

# The sum of a count of the job, 0 if it is not there:  count NAME COUNT
count() { awk -v name="$2" '$1 == name {n = $2} END {printf "%d", n}' "$tmp/$1.counts"; }

# In the job's last step so many bytes went down and up, by copies or by kernels on the host's memory, and the host
# called nothing that waits for the device (with may_wait=1: or did):  step_moves NAME DOWN UP
step_moves() {
    local last=step.$((steps - 1)).sdk
    echo "$1: $(count "$1" $last.copy.down.bytes) down of $2, $(count "$1" $last.copy.up.bytes) up of $3," \
        "$(count "$1" $last.kernel.host.bytes) by kernels, waits: $(grep "^$last.sync" "$tmp/$1.counts")"
    [ "$(count "$1" $last.copy.down.bytes)" = "$2" ]
    [ "$(count "$1" $last.copy.up.bytes)" = "$3" ]
    [ "$(count "$1" $last.kernel.host.bytes)" -le 4096 ]
    [ -n "${may_wait:-}" ] || [ "$(grep -c "^$last.sync" "$tmp/$1.counts")" = 0 ]
}

# Every worker's own counters have the driver's sums:  sdk_counts NAME WORKERS
sdk_counts() {
    grep '^traffic ' "$tmp/$1.err"
    [ "$(grep -c '^traffic ' "$tmp/$1.err")" = $((2 * $2)) ]
    awk '/^traffic / {if ($6 != $8 || $8 != $10 + $12 + $14) bad = 1} END {exit bad}' "$tmp/$1.err"
}

# A worker alone on its node copies both gradients of a tensor with two names; the SDK's counters say so too.
@test "bytes of a step: with servers the workers of a node copy the sum of their gradients down once, and values up once" {
    crossings ps1 1 1 --servers 1 -- mode=ps-bsp own=1 device=cuda
    step_moves ps1 $((model + tied)) $model
    sdk_counts ps1 1
    crossings ps2 2 1 --servers 1 -- mode=ps-bsp own=1 device=cuda
    step_moves ps2 $model $model
    [ "$(count ps2 step.$((steps - 1)).sdk.copy.up)" -ge 8 ] # as they come, tensor by tensor, of both workers
    sdk_counts ps2 2
    crossings ps4 4 2 --servers 2 -- mode=ps-bsp own=1 device=cuda
    step_moves ps4 $model $model
    sdk_counts ps4 4
    crossings bf16 2 2 --servers 1 -- mode=ps-hier own=1 device=cuda wire=bf16
    step_moves bf16 $((model / 2)) $model
    crossings wide 2 2 --servers 1 -- mode=ps-hier own=1 device=cuda wire=bf16 deterministic=node
    step_moves wide $model $model
    nothing_is_left
}

# What the host reads of a step: its verdict, and a word of each rank.
verdict=48

@test "bytes of a step: one worker alone, allreduce and zero1 to zero3 move no gradient and no value through the host" {
    local mode
    crossings alone alone 1 -- own=1 device=cuda lazy=1
    step_moves alone $verdict 0
    sdk_counts alone 1
    for mode in allreduce zero1; do
        crossings $mode 2 2 -- mode=$mode own=1 device=cuda lazy=1
        step_moves $mode $((2 * (verdict + 2 * 4))) 0
        sdk_counts $mode 2
    done
    crossings zero2 2 2 -- mode=zero2 device=cuda lazy=1
    step_moves zero2 $((2 * (verdict + 2 * 4))) 0
    sdk_counts zero2 2
    crossings zero3 2 2 -- mode=zero3 device=cuda lazy=1
    step_moves zero3 $((2 * (verdict + 2 * 4))) 0
    sdk_counts zero3 2
    crossings each 2 2 -- mode=zero2 device=cuda lazy=1 accum=2
    step_moves each $((2 * (verdict + 2 * 4))) 0
    sdk_counts each 2
    nothing_is_left
}

@test "host memory is page-locked when something passes it: where gradients are summed on devices, only that of values" {
    local mode
    for mode in allreduce zero1 zero3; do
        crossings $mode 2 2 -- mode=$mode own=1 device=cuda lazy=1
        echo "$mode: $(count $mode sdk.locked.bytes) of $((2 * model)) bytes"
        [ "$(count $mode sdk.locked.bytes)" -lt $((3 * model)) ] # first values of both workers; gradients would be as much again
    done
    crossings ps 2 1 --servers 1 -- mode=ps-bsp own=1 device=cuda
    [ "$(count ps sdk.locked.bytes)" -ge $((2 * model)) ]
}

# It takes memory until it has enough, and gathers what it dropped once more, for the backward pass.
@test "bytes of a step: zero3 with servers copies values up for each use" {
    crossings zero3-servers 2 1 --servers 2 -- mode=zero3 device=cuda
    may_wait=1 step_moves zero3-servers $((2 * (model + tied))) $((2 * 1561048))
    sdk_counts zero3-servers 2
    nothing_is_left
}

# The bytes of all copies of one direction in a timeline:  timeline_bytes "copy down"
timeline_bytes() {
    grep -F "\"ph\":\"X\"" "$tmp/trace" | grep -F "\"name\":\"$1\"" | sed 's/.*"bytes":\([0-9]*\).*/\1/' |
        awk '{sum += $1} END {printf "%d", sum}'
}

@test "only gradients come down, only values go up, and the timeline has the same bytes" {
    local down up grad value
    units ps --nproc-per-node 1 --trace "$tmp/trace" --servers 1 -- mode=ps-bsp own=1 device=cuda
    grep '^traffic' "$tmp/ps.err"
    read -r down grad <<<"$(awk '/^traffic rank 0 down/ {print $6, $10}' "$tmp/ps.err")"
    read -r up value <<<"$(awk '/^traffic rank 0 up/ {print $6, $12}' "$tmp/ps.err")"
    [ "$down" = $((steps * (model + tied))) ] && [ "$grad" = "$down" ]
    [ "$up" -gt $((steps * model)) ] && [ "$value" = "$up" ]
    [ "$(timeline_bytes "copy down")" = "$down" ]
    [ "$(timeline_bytes "copy up")" = "$up" ]
}

# shared_memory=no: members that share no memory pass the whole tensor through host memory. With the default (driver.bats)
# nothing crosses; between hosts only a share does (hosts.bats). The only member of a group needs no host.
@test "a collective that goes through host memory is counted apart from training" {
    pen run --standalone --no-prefix --job "$job" --nproc-per-node 2 "$programs/on_device" staged shared_memory=no |
        sort >"$tmp/staged"
    printf '%s\n' "down 400000 of 400000"{,} "sum 4 16 sum 900000"{,} "up 400000 of 400000"{,} | diff - "$tmp/staged"
    "$programs/on_device" staged >"$tmp/alone"
    printf '%s\n' "sum 2 8 sum 450000" "down 0 of 0" "up 0 of 0" | diff - "$tmp/alone"
}
