# waits.bats - every wait between copies, sums, updates and uses is needed: without it some mode computes other bits,
# fails or dies. The fake CUDA driver (driver/sites.cpp) lists the places that wait, and leaves one of them out.
#
# Calls in stream order are made by tests/gpu/stream_order.c, which has the collectives in itself.
#
# Two hosts are workers with two host_ids on one machine, whose files of places and counts are in one folder: hosts.bats
# has real ones. two_level=yes lets sums of hosts be added, which the order of sums of one machine does not.
#
# A place is the function that calls the device, its caller, and what the compiler inlined into both. What a place waits
# for is late from its first call on, so a place that is called once may find its work done: programs do all things
# several times.
# alone: a job that hangs for want of a wait is told by the time that it takes.

load ../support/job
load ../support/units

unit_words=(steps=3 rows=4 clip=60 persistence_threshold=1000)

# Places whose wait alone makes no difference, and why: words of their names.
covered=(
    "cuEventQuery await_gradient|only the timeline needs to know when a gradient was ready; the copy's own end is awaited next"
    "cuEventQuery await has_let_go|nothing is copied any more when tensors are freed, unless a step has failed"
    "cuEventQuery device_copies_unlend|the pair is freed next, which waits for its copy"
    "cuEventQuery test_stage|a link that seems broken is not used: calls go through the host"
    "make_memory|it is zeroed long before the members have found each other's"
    "bandwidth_stage|it only measures"
    "barrier_stage|it only measures"
    "cuStreamSynchronize make_room|the first gradients come long after set-up has zeroed their buckets"
    "cuStreamSynchronize make_buffer|its memory is zeroed while the host still prepares the first gradient"
    "cuStreamSynchronize sharded_hold_there|sums and values come long after their memory is zeroed"
    "cuStreamSynchronize make_values|values are gathered long after their memory is zeroed"
    "cuStreamSynchronize make_state|the first step comes long after set-up has zeroed the state"
    "cuStreamWaitEvent fetch_first_values|the program wrote its first values long before it commits"
    "cuStreamSynchronize grad_sum_names|the first sum comes long after its memory is zeroed"
    "space_wait|what it waits for goes into memory that is not page-locked, so the driver waits too; or it stays in its stream, or is freed next, which waits too"
    "cuEventQuery settles hier_leave_devices|the device's team, which is freed before, has waited for the same stream"
    "cuStreamSynchronize hold_room begin_trial|what the trial of a host's devices adds up has no meaning"
    "cuStreamWaitEvent prepare begin_node|the SDK makes the calls of a group in stream order on one stream"
    "cuEventQuery drain device_team_destroy|all users of the group have waited for its stream"
    "cuStreamWaitEvent see_update device_copies_use|the program's newest stream has waited since the step's end, if the program has only one"
    "cuStreamWaitEvent stepped_there|uses of the next step wait too"
    "cuStreamWaitEvent follow_readers|one of two waits: streams that released units, and the newest one; it is the same, if the program has only one"
    "cuStreamWaitEvent reducer_room|the step before has ended, and with it the sums, before values are used"
    "cuStreamWaitEvent offer|stream_order.c itself makes the stream of a call wait for that of the call before"
    "cuEventQuery wait_for_older|it limits the memory of a host that runs ahead, not the order of work"
    "cuStreamWaitEvent device_copies_zero|the kernels that used this memory are in the same stream, if the program has only one"
    "cuStreamWaitEvent move device_copies_give_part|values of a step come after gradients that were made of those of the step before"
    "cuStreamWaitEvent pinned_pair_up|new values come after gradients, and those after the kernels that read old values, if the program has only one stream"
)

# Each job as it is, once for both tests: what it prints, and its sites.
setup_file() {
    local mode
    job_setup
    LD_LIBRARY_PATH=$build/tests/gpu/driver:$build/lib
    [ -e "$build/tests/gpu/driver/libcuda.so.1" ] || return 0
    for mode in $hosts $modes; do
        CUDA_ON_HOST_SITES=$tmp/$mode.%p.sites at_most_two noted "$mode"
    done
    wait
    mkdir "$BATS_FILE_TMPDIR/jobs"
    cp "$tmp"/*.out "$tmp"/*.sites "$tmp"/*.failed "$BATS_FILE_TMPDIR/jobs" 2>/dev/null || :
    job_teardown
}
noted() { play "$1" "$1" >"$tmp/$1.said" 2>&1 || mv "$tmp/$1.said" "$tmp/$1.failed"; }

# Begins a function beside one other.
at_most_two() {
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do sleep 0.05; done
    "$@" 3>&- &
}

setup() {
    job_setup
    [ -e "$build/tests/gpu/driver/libcuda.so.1" ] || skip "built without CUDA"
    command -v addr2line >/dev/null || skip "needs addr2line (Debian: binutils)"
    LD_LIBRARY_PATH=$build/tests/gpu/driver:$build/lib
    cp "$BATS_FILE_TMPDIR"/jobs/* "$tmp"
    cat "$tmp"/*.failed 2>/dev/null && return 1 || :
}
teardown() { job_teardown; }

# Runs a job of that name; its results are in $tmp/$2.out:  play MODE NAME
hosts="host host-micro host-nodes host-reuse host-ahead host-zero2 host-lamb host-hosts"
# The quickest first, as a site is left out in one mode after the other; `spin` later: it may hang there.
modes="verbs bind ps reuse-ps chain-spin allreduce nodes ahead reuse apart lamb shared chain-apart spin zero1 micro zero2 zero3 hosts hosts-calls chain-shared"
host_ids=(0:host_id=a 1:host_id=a 2:host_id=b 3:host_id=b two_level=yes)
play() {
    local reuse=(mode=zero3 ahead=1 even=1)
    case $1 in
    host) units "$2" --servers 2 -- mode=ps-bsp own=1 ;;
    host-micro) units "$2" -- mode=zero2 accum=3 accum_reduce=last ;;
    ps) units "$2" --servers 1 -- mode=ps-bsp own=1 device=cuda lazy=1 look=1 ;;
    nodes) units "$2" --servers 1 -- mode=ps-hier own=1 device=cuda lazy=1 look=1 bucket_bytes=40000 wire=f16 bad=1 ;;
    host-nodes) units "$2" --servers 1 -- mode=ps-hier own=1 wire=f16 bad=1 ;;
    reuse) CUDA_ON_HOST_DEVICES=2 units "$2" -- "${reuse[@]}" device=cuda max_reuse=0 prefetch_backward=none prefetch_forward=no ;;
    reuse-ps) units "$2" --servers 1 -- "${reuse[@]}" device=cuda max_reuse=0 prefetch_backward=none prefetch_forward=no ;;
    host-reuse) units "$2" -- "${reuse[@]}" ;;
    zero3) units "$2" -- mode=zero3 device=cuda lazy=1 max_reuse=0 prefetch_backward=post look=1 ;;
    micro) units "$2" -- mode=zero2 device=cuda accum=3 accum_reduce=last ;;
    allreduce) units "$2" -- mode=allreduce own=1 device=cuda lazy=1 look=1 ;;
    ahead) units "$2" --nproc-per-node 3 -- mode=allreduce own=1 ahead=1 device=cuda bucket_bytes=40000 bad=1 ;;
    host-ahead) units "$2" --nproc-per-node 3 -- mode=allreduce own=1 ahead=1 bad=1 ;;
    zero1) units "$2" --nproc-per-node 3 -- mode=zero1 own=1 ahead=1 device=cuda bucket_bytes=40000 bad=1 ;;
    zero2) units "$2" -- mode=zero2 ahead=1 device=cuda accum=2 bucket_bytes=40000 ;;
    host-zero2) units "$2" -- mode=zero2 ahead=1 accum=2 bucket_bytes=40000 ;;
    lamb) units "$2" -- mode=zero1 own=1 ahead=1 device=cuda optim=lamb ;;
    host-lamb) units "$2" -- mode=zero1 own=1 ahead=1 optim=lamb ;;
    verbs | bind) MARK=$mark timeout 60 "$programs/on_device" "$1" commit=eager >"$tmp/$2.out" 2>"$tmp/$2.err" ;;
    shared) reduce "$2" 1 ;;
    apart) reduce "$2" 2 device_backend=stream ;;
    chain-shared) chain "$2" 3 hostflag 1 ;;
    chain-apart) chain "$2" 3 stream 2 ;;
    chain-spin) chain "$2" 2 spin 2 ;;
    spin) reduce "$2" 2 device_backend=spin ;;
    hosts) units "$2" --nproc-per-node 4 -- mode=zero1 own=1 ahead=1 device=cuda bucket_bytes=40000 "${host_ids[@]}" ;;
    host-hosts) units "$2" --nproc-per-node 4 -- mode=zero1 own=1 ahead=1 "${host_ids[@]}" ;;
    hosts-calls) workers=4 reduce "$2" 2 two_level=yes ;;
    esac
}
reduce() {
    CUDA_ON_HOST_DEVICES=$2 pen run --standalone --no-prefix --job "$job-$1" --nproc-per-node "${workers:-2}" \
        sh -c 'PENSTOCK_HOST_ID=$((RANK / 2)) exec "$@"' - "$programs/on_device" reduce device=cuda "${@:3}" >"$tmp/$1.unsorted" 2>"$tmp/$1.err" || { echo "exit $? of job $1:"; cat "$tmp/$1.err"; return 1; }
    sort "$tmp/$1.unsorted" >"$tmp/$1.out"
}

chain() {
    CUDA_ON_HOST_DEVICES=$4 MARK=$mark timeout 20 "$build/tests/gpu/stream_order" "${@:2}" >"$tmp/$1.out" 2>"$tmp/$1.err" ||
        { echo "exit $? of job $1:"; return 1; }
}

# What job $2 of mode $1 shall print.
has_right_bits() {
    case $1 in
    ps | zero3 | allreduce) same_steps host "$2" ;;
    reuse-ps) same_steps host-reuse "$2" ;;
    micro | nodes | reuse | ahead | zero2 | lamb | hosts) same_steps "host-$1" "$2" ;;
    zero1) same_steps host-ahead "$2" ;;
    chain-*) grep -q 'calls in stream order right$' "$tmp/$2.out" ;;
    *) diff "$tmp/$1.out" "$tmp/$2.out" ;;
    esac
}

# Adds the names of the sites in a file to name_of. One addr2line for each library: it takes long to begin.
declare -gA name_of
name_sites() {
    local library site name
    while IFS='|' read -r site name; do name_of[$site]=$name; done < <(
        for library in $(cut -d' ' -f2 "$1" | sort -u); do
            grep -F " $library" "$1" | sed 's/^[^:]*://; s/ .*//' | tr , '\n' | sort -u | addr2line -aifs -e "$library" |
                sed 's/ (discriminator .*//' | awk -v library="$library" -v sites="$1" '
                    /^0x/ { at = $1; sub(/^0x0*/, "", at); next }
                    { text[at] = text[at] $0 " " }
                    END {
                        while ((getline <sites) > 0) {
                            if ($2 != library) continue
                            split($1, part, ":")
                            n = split(part[2], at_each, ",")
                            name = part[1] " "
                            for (i = 1; i <= n; i++) name = name text[at_each[i]]
                            print $1 " " $2 "|" name
                        }
                    }'
        done)
}

reason_for() {
    local row word name=" $1"
    for row in "${covered[@]}"; do
        for word in ${row%|*}; do
            [[ $name == *" $word "* ]] || continue 2
        done
        echo "${row#*|}"
        return
    done
}

# Is the site noticed in one of the modes that have it? -> $tmp/noticed. A machine under load takes its time too: what
# is waited for is then made later. A job that does not end is not counted.
leave_out() {
    local mode late_ms said
    local job_name=${1% *}
    export CUDA_ON_HOST_SEED=0 CUDA_ON_HOST_DROP=${1% *}
    for late_ms in 2 2 10 10 40 40 120; do
        export CUDA_ON_HOST_LATE_MS=$late_ms CUDA_ON_HOST_SEED=$((CUDA_ON_HOST_SEED + 1))
        for mode in $modes; do
            grep -qxF -- "$1" "$tmp/$mode.list" || continue
            [[ $mode != chain-* || $late_ms -le 10 ]] || continue # each of its many calls is that late
            if said=$(play "$mode" "$job_name" 2>&1) && has_right_bits "$mode" "$job_name" >/dev/null; then continue; fi
            [[ $said != "exit 124 "* ]] || continue
            echo "$1 : $mode, $late_ms ms" >>"$tmp/noticed"
            return
        done
    done
}

@test "each wait is needed: without it bits differ, or a step fails, in some mode and order" {
    local mode site row
    for mode in $modes; do
        has_right_bits "$mode" "$mode"
        cat "$tmp/$mode".*.sites | awk '$2 ~ /\/(libpenstock\.so|stream_order)[^\/]*$/ {print $1, $2}' | sort -u >"$tmp/$mode.list"
    done
    [ "$(grep -c '^rank' "$tmp/shared.out")" = 16 ]
    diff "$tmp/shared.out" "$tmp/apart.out"
    diff "$tmp/shared.out" "$tmp/spin.out"
    sort -u "$tmp"/*.list >"$tmp/all"
    name_sites "$tmp/all"
    while read -r site; do
        [[ ${name_of[$site]} == *" members.c:"* || ${name_of[$site]} == *" stream_order.c:"* ]] || echo "$site"
    done <"$tmp/all" >"$tmp/sites"
    [ "$(wc -l <"$tmp/sites")" -gt 15 ]
    : >"$tmp/noticed"
    while read -r site; do
        [ -z "$(reason_for "${name_of[$site]}")" ] || continue
        at_most_two leave_out "$site"
    done <"$tmp/sites"
    wait
    while read -r site; do
        row=$(reason_for "${name_of[$site]}")
        if [ -n "$row" ]; then
            echo "covered: ${name_of[$site]}: $row"
        elif grep -qF -- "$site " "$tmp/noticed"; then
            echo "noticed: ${name_of[$site]} $(grep -F -- "$site " "$tmp/noticed")"
        else
            echo "UNNOTICED: ${name_of[$site]} $(grep -lxF -- "$site" "$tmp"/*.list | tr '\n' ' ')"
        fi
    done <"$tmp/sites" >"$tmp/verdicts"
    cat "$tmp/verdicts"
    [ "$(grep -c ^UNNOTICED "$tmp/verdicts")" = 0 ]
    for row in "${covered[@]}"; do
        grep -qF "${row#*|}" "$tmp/verdicts" || { echo "no site is covered because $row"; return 1; }
    done
}

@test "work that is late wherever it is waited for changes no bit" {
    local mode
    for mode in $modes; do CUDA_ON_HOST_LATE=1 at_most_two noted_late "$mode"; done
    wait
    [ "$(ls "$tmp" | grep -c '^late-.*\.right$')" = "$(wc -w <<<"$modes")" ] || { cat "$tmp"/late-*.said; return 1; }
}
noted_late() {
    { play "$1" "late-$1" && has_right_bits "$1" "late-$1"; } >"$tmp/late-$1.said" 2>&1 || return
    mv "$tmp/late-$1.said" "$tmp/late-$1.right"
}
