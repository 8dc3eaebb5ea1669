# disk.bats - the disk under a job's store fills up during training: training continues, and snapshots continue when
# there is room or when the oldest can be deleted.
#
# The disk is a small tmpfs, mounted where only the job sees it. Where the kernel does not allow the mount, a limit on
# file size takes its place and is lifted later.

load ../support/job
load ../support/netfault

setup() { job_setup; }
teardown() { job_teardown; }

example=(--mode ps-bsp --optim "adamw lr=0.002 weight_decay=0.01" --clip 0.5 --steps 130 --seed 5)

# A folder that can be filled:  $disk; "${there[@]}" COMMAND... runs where it is visible; fill, make_room.
# Network and processes are not isolated.
disk_start() {
    disk=$tmp/disk
    mkdir "$disk"
    there=(env)
    can_have_hosts >"$tmp/cannot" || return 0
    MARK=$mark "${make_host[@]}" sleep 1000 3>&- &
    disk_pid=$!
    until_true is_host "$disk_pid"
    on disk mount -t tmpfs -o size=64m none "$disk"
    there=(nsenter -m -t "$disk_pid")
    [ "$(id -u)" = 0 ] || there=(nsenter -U --preserve-credentials -m -t "$disk_pid")
}

# Process ids of the job's servers.
servers() {
    member server 0
    member server 1
}

fill() {
    local pid
    if [ -n "$disk_pid" ]; then
        on disk sh -c "cat /dev/zero >$disk/ballast; df -k $disk" 2>&1
    else
        for pid in $(servers); do prlimit --pid "$pid" --fsize=65536:unlimited; done
    fi
}

make_room() {
    local pid
    if [ -n "$disk_pid" ]; then
        on disk rm "$disk/ballast"
    else
        for pid in $(servers); do prlimit --pid "$pid" --fsize=unlimited:unlimited; done
    fi
}

# The newest complete snapshot is of step $1 or later.
snapshot_is_of() {
    local newest
    kill -0 "$launcher" || return 2
    newest=$(status_value snapshot)
    [ "${newest:--1}" -ge "$1" ]
}

@test "a disk fills up and is emptied again: training continues bit for bit, and a later snapshot is complete" {
    local kept
    train whole --servers 2 --nproc-per-node 2 -- "${example[@]}"
    disk_start
    MARK=$mark "${there[@]}" "$penstock" run --standalone --job "$job-full" --servers 2 --nproc-per-node 2 \
        --store "$disk/store" --snapshot-every 10 "${fashion[@]}" "${example[@]}" --slow-ms 40 \
        --out "$tmp/full.json" >"$tmp/full.out" 2>"$tmp/full.err" 3>&- &
    launcher=$!
    launched_job=$job-full
    until_true snapshot_is_of 10
    fill
    until_true grep -qE 'no snapshot of step [0-9]+: server [01] .*([Nn]o space left|File too large)' "$tmp/full.err"
    kept=$(status_value snapshot)
    make_room
    until_true snapshot_is_of $((kept + 10))
    kept=$(status_value snapshot)
    wait_for_end 40
    cat "$tmp/full.err"
    [ "$(grep -c 'no snapshot of step .*; said once$' "$tmp/full.err")" = 1 ]
    grep -qE 'the snapshot of step [0-9]+ is complete, the first since then' "$tmp/full.err"
    [ "$code" = 0 ]
    same_crc whole full
    MARK=$mark "${there[@]}" "$penstock" run --standalone --job "$job-again" --servers 1 --nproc-per-node 2 \
        --store "$disk/store" --resume "${fashion[@]}" "${example[@]}" --out "$tmp/again.json" \
        >"$tmp/again.out" 2>&1 3>&-
    same_crc whole again
    [ -z "$disk_pid" ] || kill "$disk_pid"
    nothing_is_left
}

# The store $1 has both parts of the snapshot of step $2 under their final names.
has_parts() {
    [ "$(on disk sh -c "ls $1/part-*/*-$2-*.mdb 2>/dev/null | wc -l")" = 2 ]
}

@test "a disk that holds two snapshots: the oldest goes before the next, with servers and without, and never the last one" {
    local how kbytes name words launchers=()
    disk_start
    [ -n "$disk_pid" ] || skip "the kernel lets us mount nothing"
    for how in "servers --servers 2 --mode ps-bsp" "workers --mode ddp"; do
        read -ra words <<<"$how"
        name=${words[0]}
        on disk mkdir "$disk/$name"
        on disk mount -t tmpfs -o size=64m none "$disk/$name"
        MARK=$mark "${there[@]}" "$penstock" run --standalone --job "$job-$name" "${words[@]:1}" --nproc-per-node 2 \
            --store "$disk/$name/store" --snapshot-every 10 --snapshot-keep 2 "${fashion[@]}" --optim "adamw lr=0.002" \
            --steps 100 --slow-ms 20 >"$tmp/$name.out" 2>"$tmp/$name.err" 3>&- &
        launchers+=($!)
        launcher=$! launched_job=$job-$name
        until_true has_parts "$disk/$name/store" 10
        kbytes=$(on disk sh -c "du -ck $disk/$name/store/part-*/*-10-*.mdb" | sed -n 's/\ttotal//p')
        on disk mount -o remount,size=$((kbytes * 5 / 2))k "$disk/$name"
    done
    for launcher in "${launchers[@]}"; do
        wait_for_end 60
        [ "$code" = 0 ] || cat "$tmp"/*.err
        [ "$code" = 0 ]
    done
    for name in servers workers; do
        cat "$tmp/$name.err"
        grep -qE 'no( room for the)? snapshot of step [0-9]+.* deleting (the snapshot|that) of step [0-9]+' "$tmp/$name.err"
        "${there[@]}" "$penstock" snapshot list --store "$disk/$name/store" --json | tee "$tmp/$name.json" >&2
        # Later snapshots followed, and one of them is complete.
        [ "$(sed -n 's/.*"step": *\([0-9]*\).*"complete": *true.*/\1/p' "$tmp/$name.json" | tail -n 1)" -ge 80 ]
    done
    kill "$disk_pid"
    nothing_is_left
}
