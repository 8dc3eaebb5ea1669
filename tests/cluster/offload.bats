# offload.bats - servers keep optimizer state and parameters in a file: the same bits, little memory, a full disk.

load ../support/job

setup() { job_setup; }
teardown() {
    [ -z "$disk" ] || rm -rf "$disk"
    job_teardown
    [ -z "$group" ] || [ ! -d "$group" ] || rmdir "$group"
}

everything=(PENSTOCK_OFFLOAD_OPTIMIZER=nvme PENSTOCK_OFFLOAD_PARAM=nvme)
rule='optim=adamw lr=0.01 weight_decay=0.01'

# A member started by hand:  shell NAME COMMAND...   -> $tmp/NAME.{out,err}, $!
shell() {
    MARK=$mark "${@:2}" >"$tmp/$1.out" 2>"$tmp/$1.err" 3>&- &
}

# What all ranks print for every step, in order:  steps NAME LAUNCHER_FLAGS... -- STEPPER_WORDS...  -> $tmp/NAME.steps
steps() {
    local name=$1 flags
    take_flags "${@:2}"
    shift $((${#flags[@]} + 2))
    pen run --standalone --no-prefix "${flags[@]}" "$programs/stepper" "$rule" "$@" \
        >"$tmp/$name.out" 2>"$tmp/$name.err" || { echo "exit $? of $name"; cat "$tmp/$name.err"; return 1; }
    sort "$tmp/$name.out" >"$tmp/$name.steps"
}

# One server, started by the test's own command, and one worker, which hosts the scheduler:
#   by_hand NAME STEPPER_WORDS...   with the command in "${server_by[@]}"  -> $code of the worker, $tmp/NAME.{steps,err}
by_hand() {
    local name=$1 port server worker
    shift
    port=$(free_port)
    shell "$name-server" "${server_by[@]}" "$penstock" server --master-addr 127.0.0.1 --master-port "$port"
    server=$!
    shell "$name" env RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" \
        PENSTOCK_SERVERS=1 timeout 60 "$programs/stepper" "$rule" "$@"
    worker=$!
    watch "$server"
    code=0
    wait "$worker" || code=$?
    wait "$server" || :
    mv "$tmp/$name.out" "$tmp/$name.steps"
    cat "$tmp/$name.err" "$tmp/$name-server.err"
}

# Keeps the last I/O counters of a process and the peak of its own memory:  watch PID  -> $tmp/watched, $most_kib
# Its own memory is what it wrote to, and what it maps of files in $disk: not the code it shares with others.
watch() {
    local own
    most_kib=0
    while own=$(awk -v disk="${disk:-none}" '/^[0-9a-f]+-/ { path = $6 } /^Rss:/ { rss = $2 }
            /^Anonymous:/ { n += index(path, disk) == 1 ? rss : $2 } END { print n + 0 }' "/proc/$1/smaps" 2>/dev/null) &&
        [ "$own" -gt 0 ] && grep -hE '^(read|write)_bytes:' "/proc/$1/io" >"$tmp/now" 2>/dev/null; do
        [ "$own" -le "$most_kib" ] || most_kib=$own
        mv "$tmp/now" "$tmp/watched"
        sleep 0.02
    done
}

watched() {
    sed -n "s/^$1:[[:space:]]*\([0-9]*\).*/\1/p" "$tmp/watched"
}

# A cgroup of this test, version 2 or 1, if the kernel allows one with a memory limit:
# -> $group, $group_limit and $group_peak, its files; fails otherwise.
make_group() {
    local above
    for above in "/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup) memory.max memory.peak" \
        "/sys/fs/cgroup/memory$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup) memory.limit_in_bytes memory.max_usage_in_bytes"; do
        read -r above group_limit group_peak <<<"$above"
        group=${above%/}/$mark group_limit=$group/$group_limit group_peak=$group/$group_peak
        [ -w "$above/cgroup.procs" ] && mkdir "$group" 2>/dev/null || continue
        [ -w "$group_limit" ] && [ -r "$group_peak" ] && return
        rmdir "$group"
    done
    return 1
}

@test "state and parameters in a file train bit for bit as in memory: decided and clipped, eager, and with copies" {
    steps memory --servers 2 --nproc-per-node 2 -- rows=1000 steps=3 clip=0.1
    PENSTOCK_OFFLOAD_PATH=$tmp/nvme PENSTOCK_OFFLOAD_OPTIMIZER=nvme \
        steps slots --servers 2 --nproc-per-node 2 -- rows=1000 steps=3 clip=0.1
    cmp "$tmp/memory.steps" "$tmp/slots.steps"
    export "${everything[@]}" PENSTOCK_OFFLOAD_PATH=$tmp/nvme
    steps file --servers 1 --nproc-per-node 2 -- rows=1000 steps=3 clip=0.1
    cmp "$tmp/memory.steps" "$tmp/file.steps"
    steps copies --servers 2 --replicas 1 --nproc-per-node 2 -- rows=1000 steps=3 clip=0.1
    cmp "$tmp/memory.steps" "$tmp/copies.steps"
    steps eager-file --servers 1 --nproc-per-node 2 -- rows=1000 steps=3 commit=eager
    PENSTOCK_OFFLOAD_OPTIMIZER=none PENSTOCK_OFFLOAD_PARAM=none \
        steps eager --servers 1 --nproc-per-node 2 -- rows=1000 steps=3 commit=eager
    cmp "$tmp/eager.steps" "$tmp/eager-file.steps"
    [ "$(ls -A "$tmp/nvme")" = "" ]
}

@test "snapshots of state in a file are complete, and resume in memory and in a file" {
    local words=(rows=1000 steps=6 clip=0.1)
    steps whole --servers 1 --nproc-per-node 1 -- "${words[@]}"
    export "${everything[@]}"
    export PENSTOCK_OFFLOAD_PATH=$tmp/nvme
    steps first --servers 1 --nproc-per-node 1 --store "$tmp/store" --snapshot-every 2 -- "${words[@]/steps=6/steps=3}"
    cp -r "$tmp/store" "$tmp/copy"
    steps in-file --servers 2 --nproc-per-node 1 --store "$tmp/store" --resume -- "${words[@]}"
    cmp <(tail -n 4 "$tmp/whole.steps") "$tmp/in-file.steps"
    unset PENSTOCK_OFFLOAD_OPTIMIZER PENSTOCK_OFFLOAD_PARAM
    steps in-memory --servers 1 --nproc-per-node 1 --store "$tmp/copy" --resume -- "${words[@]}"
    cmp <(tail -n 4 "$tmp/whole.steps") "$tmp/in-memory.steps"
}

@test "a server whose memory limit is a quarter of its optimizer state trains like one with all of it in memory" {
    local state_kib limit_kib steps=4 words=(rows=10000 steps=4)
    disk=$(mktemp -d "$build/tier-XXXXXX") # the build's file system, which is not in memory
    server_by=(env)
    by_hand memory "${words[@]}"
    [ "$code" = 0 ]
    # Masters and both moments in float32: 12 bytes for each of 784 x 10000 + 10000 + 50101 numbers.
    state_kib=$((12 * (784 * 10000 + 10000 + 50101) / 1024))
    echo "$most_kib KiB of its own where all is in memory" # both moments; masters are in memory that the worker also reads
    [ "$most_kib" -ge $((state_kib * 2 / 3)) ]
    limit_kib=$((state_kib / 4))
    server_by=(env "${everything[@]}" PENSTOCK_OFFLOAD_PATH="$disk" bash -c)
    if make_group; then
        echo "$limit_kib KiB of $(basename "$group_limit") for $state_kib KiB of state"
        echo "$limit_kib"K >"$group_limit"
        [ ! -w "$group/memory.swap.max" ] || echo 0 >"$group/memory.swap.max"
        server_by+=("echo \$\$ >$group/cgroup.procs; exec \"\$@\"" limited)
    else
        echo "$limit_kib KiB of RLIMIT_DATA for $state_kib KiB of state"
        server_by+=("ulimit -s 256; ulimit -d $limit_kib; exec \"\$@\"" limited)
    fi
    by_hand file "${words[@]}"
    [ "$code" = 0 ]
    cmp "$tmp/memory.steps" "$tmp/file.steps"
    echo "most of its own memory $most_kib KiB; read $(watched read_bytes) and wrote $(watched write_bytes) bytes"
    if [ -n "$group" ] && [ -d "$group" ]; then
        echo "$(basename "$group_peak"): $(cat "$group_peak") bytes"
        [ "$(cat "$group_peak")" -le $((limit_kib * 1024)) ]
        rmdir "$group"
    fi
    [ "$most_kib" -le "$limit_kib" ]
    # Each step writes nine tenths of the state to the file and reads them back; the first reads none: its moments are
    # zero.
    [ "$(watched write_bytes)" -ge $((state_kib * 1024 / 10 * 9 * steps)) ]
    [ "$(watched read_bytes)" -ge $((state_kib * 1024 / 10 * 9 * (steps - 1))) ]
    [ "$(ls -A "$disk")" = "" ]
    rmdir "$disk"
    nothing_is_left
}

@test "the same server without files cannot even start under that limit" {
    server_by=(bash -c 'ulimit -s 256; ulimit -d 23000; exec "$@"' limited)
    by_hand none rows=10000 steps=4
    [ "$code" != 0 ]
    grep -q 'no memory' "$tmp/none.err"
    nothing_is_left
}

@test "a full disk in the middle of training ends the job with a sentence, and the job resumes from its snapshot" {
    local words=(rows=1000 steps=8 clip=0.1) kept
    steps whole --servers 1 --nproc-per-node 1 -- "${words[@]}"
    mkdir "$tmp/nvme"
    server_by=(env "${everything[@]}" PENSTOCK_OFFLOAD_PATH="$tmp/nvme" PENSTOCK_STORE="$tmp/store"
        LD_PRELOAD="$build/tests/support/libiofault.so" IOFAULT_DIR="$tmp/nvme" IOFAULT_AT=1100 IOFAULT_HOW=enospc)
    by_hand full "${words[@]}" snapshot_every=2 pause_ms=50
    [ "$code" != 0 ]
    grep -q "stepper: .*cannot write optimizer state in $tmp/nvme: No space left on device; .*--resume" "$tmp/full.err"
    cmp <(head -n "$(wc -l <"$tmp/full.steps")" "$tmp/whole.steps") "$tmp/full.steps"
    nothing_is_left
    [ "$(ls -A "$tmp/nvme")" = "" ]
    export "${everything[@]}" PENSTOCK_OFFLOAD_PATH=$tmp/nvme
    steps again --servers 1 --nproc-per-node 1 --store "$tmp/store" --resume -- "${words[@]}"
    kept=$(wc -l <"$tmp/again.steps")
    echo "$(wc -l <"$tmp/full.steps") steps before the disk was full, $kept after it went on"
    [ "$kept" -lt 8 ]
    cmp <(tail -n "$kept" "$tmp/whole.steps") "$tmp/again.steps"
}

# Sets server_by to the command of a server with a disk of $1 KiB at $2; where the kernel does not allow the mount, its
# files may not grow beyond that size.
small_disk() {
    local mine=(unshare -m --propagation private)
    [ "$(id -u)" = 0 ] || mine=(unshare -Urm --propagation private)
    if "${mine[@]}" mount -t tmpfs none "$2" 2>/dev/null; then
        server_by+=("${mine[@]}" sh -c "mount -t tmpfs -o size=$1k none $2 && exec \"\$@\"" small)
    else
        server_by+=(sh -c "ulimit -f $(($1 * 2)); exec \"\$@\"" small)
    fi
}

@test "a disk without room for a second version: snapshots are given up with a sentence, and training continues bit for bit" {
    local words=(rows=1000 steps=8 clip=0.1)
    steps whole --servers 1 --nproc-per-node 1 -- "${words[@]}"
    mkdir "$tmp/nvme"
    server_by=(env "${everything[@]}" PENSTOCK_OFFLOAD_PATH="$tmp/nvme" PENSTOCK_STORE="$tmp/store")
    small_disk 11264 "$tmp/nvme"
    by_hand small "${words[@]}" snapshot_every=1
    [ "$code" = 0 ]
    cmp "$tmp/whole.steps" "$tmp/small.steps"
    grep -qE 'no snapshot of step [0-9]+: server 0 .*(is lost: .*No space left on device; free some space|File too large)' \
        "$tmp/small-server.err" "$tmp/small.err"
    server_by=(env "${everything[@]}" PENSTOCK_OFFLOAD_PATH="$tmp/nvme")
    small_disk 8192 "$tmp/nvme"
    by_hand smaller "${words[@]}"
    [ "$code" != 0 ]
    grep -qE "optimizer state in $tmp/nvme needs [0-9]+ KiB more, but [0-9]+ KiB are free" "$tmp/smaller.err"
    nothing_is_left
}

@test "writes that are cut short are finished, and a write that fails ends with a sentence" {
    steps memory --servers 1 --nproc-per-node 1 -- rows=1000 steps=3
    mkdir "$tmp/nvme"
    server_by=(env "${everything[@]}" PENSTOCK_OFFLOAD_PATH="$tmp/nvme" LD_PRELOAD="$build/tests/support/libiofault.so"
        IOFAULT_DIR="$tmp/nvme" IOFAULT_AT=300 IOFAULT_HOW=short)
    by_hand short rows=1000 steps=3
    [ "$code" = 0 ]
    cmp "$tmp/memory.steps" "$tmp/short.steps"
    server_by+=(IOFAULT_HOW=eio)
    by_hand broken rows=1000 steps=3
    [ "$code" != 0 ]
    grep -q "cannot write optimizer state in $tmp/nvme: Input/output error" "$tmp/broken.err"
    nothing_is_left
}

@test "without a folder, without servers, or with a folder that cannot be created, a job says so before it begins" {
    export "${everything[@]}"
    run pen run --standalone --servers 1 --nproc-per-node 1 "$programs/stepper"
    [ "$status" != 0 ]
    grep -q 'offload_optimizer=nvme needs a folder on a disk; set offload_path or store' <<<"$output"
    export PENSTOCK_OFFLOAD_PATH=/proc/none
    run pen run --standalone --servers 1 --nproc-per-node 1 "$programs/stepper" rows=1000
    [ "$status" != 0 ]
    grep -q 'cannot create the folder /proc/none: .*; set offload_path to a writable folder' <<<"$output"
    run pen run --standalone --nproc-per-node 2 "$programs/stepper"
    [ "$status" != 0 ]
    grep -q 'offload_optimizer=nvme needs servers, which hold that state and its files: start the job with --servers 1' <<<"$output"
}
