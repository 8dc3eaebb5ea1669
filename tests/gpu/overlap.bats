# overlap.bats - sums of buckets begin during the backward pass: no stream waits for gradients of later buckets first.

load ../support/job
load ../support/units

unit_words=(steps=3 rows=400 lazy=1 bucket_bytes=5000 own=1)

setup() {
    job_setup
    [ -e "$build/tests/gpu/driver/libcuda.so.1" ] || skip "built without CUDA"
    LD_LIBRARY_PATH=$build/tests/gpu/driver:$build/lib
}
teardown() { job_teardown; }

# Of a process's log: on each stream that folds, how many folds there are, and the most waits for streams that weigh
# gradients in a row, without work of a bucket between them: a kernel of these, or a record, as a bucket leaves of which
# this process folds nothing.  waits_between PATTERN LOG
waits_between() {
    awk -v between="^($1|update)" '$2 == "runs" && $3 ~ /^weigh/ { writes[$1] = 1 }
         $2 == "waits" && writes[$4] && !writes[$1] { if (++row[$1] > most[$1]) most[$1] = row[$1] }
         $2 == "records" || ($2 == "runs" && $3 ~ between) { row[$1] = 0 }
         $2 == "runs" && $3 ~ /^fold/ { folds[$1]++ }
         END { for (s in folds) print folds[s], most[s] + 0 }' "$2"
}

@test "the sum of a bucket is enqueued before the wait for the gradients of the one after the next, in every mode and sync" {
    local sync mode log folds most kernels
    for sync in hostflag stream spin; do
        for mode in allreduce zero1 zero2 ps-hier; do
            CUDA_ON_HOST_DEVICES=$([ $sync = hostflag ] && echo 1 || echo 2) CUDA_ON_HOST_LOG=$tmp/$sync-$mode.%p \
                units "$sync-$mode" --servers $([ $mode = ps-hier ] && echo 1 || echo 0) --device-backend $sync -- mode=$mode device=cuda
            kernels=fold
            [ $mode = allreduce ] || kernels='fold|copy' # a member folds its own part of a bucket, which may be empty
            for log in "$tmp/$sync-$mode".[0-9]*; do waits_between "$kernels" "$log"; done | sort -rn >"$tmp/rows"
            [ $sync != hostflag ] || sed -i 2,\$d "$tmp/rows" # of members on one device, one folds for all
            echo "$sync $mode: $(tr '\n' ';' <"$tmp/rows")"
            read -r folds most <"$tmp/rows"
            [ "$folds" -ge 12 ] # 4 buckets a step
            [ "$most" -ge 1 ]
            [ "$(sort -rnk2 "$tmp/rows" | sed 's/.* //;q')" -le 2 ]
        done
    done
    nothing_is_left
}
