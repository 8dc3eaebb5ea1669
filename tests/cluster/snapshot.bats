# snapshot.bats - a killed job resumes from its store without a difference, on any number of servers.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

example=(--mode ps-bsp --optim "adamw lr=0.002 weight_decay=0.01" --clip 0.5 --steps 120)

# Starts a training with snapshots and kills all of it in the middle:  killed_in_the_middle NAME SERVERS -> $kept
killed_in_the_middle() {
    start "$1" --servers "$2" --nproc-per-node 2 --store "$tmp/store" --snapshot-every 20 \
        "${fashion[@]}" "${example[@]}" --slow-ms 25
    kept=-1
    for _ in $(seq 400); do
        kept=$(status_value snapshot)
        [ "${kept:--1}" -ge 40 ] && break
        kill -0 "$launcher"
        sleep 0.05
    done
    [ "$kept" -ge 40 ]
    [ "$(status_value step)" -lt 110 ]
    kill -9 "$launcher"
    wait_for_end 5
    nothing_is_left
}

@test "killed and resumed with more and with fewer servers, training continues bit for bit" {
    local servers first
    train whole --servers 2 --nproc-per-node 2 -- "${example[@]}"
    killed_in_the_middle cut 2
    cp -r "$tmp/store" "$tmp/copy"
    for servers in 3 1; do
        train "r$servers" --servers "$servers" --nproc-per-node 2 --store "$tmp/store" --resume -- "${example[@]}"
        same_crc whole "r$servers"
        first=$(head -n 1 "$tmp/r$servers.loss" | awk '{print $1}')
        echo "went on from step $first"
        [ "$first" -ge "$kept" ] && [ $((first % 20)) = 0 ] && [ "$first" -lt 120 ]
        cmp <(awk -v from="$first" '$1 >= from' "$tmp/whole.loss") "$tmp/r$servers.loss"
        rm -rf "$tmp/store"
        cp -r "$tmp/copy" "$tmp/store"
    done
    nothing_is_left
}

@test "a resumed job may be killed and resumed again" {
    train whole --servers 2 --nproc-per-node 2 -- "${example[@]}"
    killed_in_the_middle cut 2
    local from=$kept
    start again --servers 3 --nproc-per-node 2 --store "$tmp/store" --snapshot-every 20 --resume \
        "${fashion[@]}" "${example[@]}" --slow-ms 25
    for _ in $(seq 400); do
        kept=$(status_value snapshot)
        [ "${kept:--1}" -gt "$from" ] && break
        kill -0 "$launcher"
        sleep 0.05
    done
    [ "$kept" -gt "$from" ]
    kill -9 "$launcher"
    wait_for_end 5
    train last --servers 1 --nproc-per-node 2 --store "$tmp/store" --resume -- "${example[@]}"
    same_crc whole last
    nothing_is_left
}

@test "a store with snapshots is not resumed or overwritten unless asked" {
    killed_in_the_middle cut 1
    code=0
    train asked --servers 1 --nproc-per-node 2 --store "$tmp/store" -- "${example[@]}" || code=$?
    [ "$code" = 1 ]
    grep -qE "^penstock: store $tmp/store holds a snapshot of step [0-9]+; use --resume to continue from it or --fresh to start over$" "$tmp/asked.err"
    train whole --servers 2 --nproc-per-node 2 -- "${example[@]}"
    train fresh --servers 1 --nproc-per-node 2 --store "$tmp/store" --fresh -- "${example[@]}"
    [ "$(wc -l <"$tmp/fresh.loss")" = 120 ]
    same_crc whole fresh
    nothing_is_left
}

@test "--resume without a snapshot is refused with a sentence" {
    mkdir "$tmp/store"
    code=0
    train none --servers 1 --nproc-per-node 1 --store "$tmp/store" --resume -- --steps 5 || code=$?
    [ "$code" = 1 ]
    grep -qE "^penstock: --resume found no snapshot in store $tmp/store of server 0 \($host\); use --fresh to start over$" "$tmp/none.err"
    nothing_is_left
}

@test "penstock snapshot asks the running job for one, and the job can resume from it" {
    start run --servers 2 --nproc-per-node 2 --store "$tmp/store" "${fashion[@]}" "${example[@]}" --slow-ms 20
    wait_for_step 5
    pen snapshot >"$tmp/said"
    cat "$tmp/said"
    grep -qxE "snapshot of step [0-9]+ is complete" "$tmp/said"
    local step
    step=$(grep -oE '[0-9]+' "$tmp/said")
    [ "$(status_value snapshot)" = "$step" ]
    kill -9 "$launcher"
    wait_for_end 5
    train resumed --servers 1 --nproc-per-node 2 --store "$tmp/store" --resume -- "${example[@]}"
    [ "$(awk '{print $1; exit}' "$tmp/resumed.loss")" = "$step" ]
    nothing_is_left
}

@test "penstock snapshot of a job without a store says so" {
    start run --servers 1 --nproc-per-node 1 "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 2
    code=0
    pen snapshot >"$tmp/out" 2>"$tmp/said" || code=$?
    cat "$tmp/said"
    [ "$code" = 1 ]
    grep -qE "^penstock: no snapshot of step [0-9]+: server 0 \($host\): .*--store" "$tmp/said"
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}

@test "a truncated or overwritten snapshot file is refused by name, with exit code 1" {
    local file
    killed_in_the_middle cut 2
    cp -r "$tmp/store" "$tmp/copy"
    file=$(ls "$tmp/store/part-0"/*.mdb | tail -n 1) # the newest
    for damage in truncated noise; do
        rm -rf "$tmp/store"
        cp -r "$tmp/copy" "$tmp/store"
        if [ "$damage" = truncated ]; then truncate -s $(($(stat -c %s "$file") / 2)) "$file"
        else head -c 100000 /dev/urandom >"$file"; fi
        code=0
        train "$damage" --servers 2 --nproc-per-node 2 --store "$tmp/store" --resume -- "${example[@]}" || code=$?
        cat "$tmp/$damage.err"
        [ "$code" = 1 ]
        grep -qF "$file" "$tmp/$damage.err"
        ! grep -qE "SIG(SEGV|BUS|ABRT)" "$tmp/$damage.err" || false
        nothing_is_left
    done
}
