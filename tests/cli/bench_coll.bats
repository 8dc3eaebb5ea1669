# bench_coll.bats - the benchmarks of collectives: their results are right, and their output can be parsed.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# One short measurement of $1 with the given flags; the benchmark itself checks the values.
bench() {
    pen bench "$@" --seconds 0.01 --pairs 1 --no-limit 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
}

@test "every collective gives the right values, in place and out of place, on registered and foreign buffers" {
    for kind in all-reduce broadcast reduce all-gather reduce-scatter gather scatter all-to-all send-recv; do
        bench "$kind" --ranks 3 --bytes 24012 --dtype bf16 --root 1 --json >"$tmp/out"
        grep -q "^{\"bench\":\"$kind\",\"bytes\":24012,.*\"verified\":true" "$tmp/out"
        bench "$kind" --ranks 2 --bytes 4096 --in-place 1 --registered 0 --dtype i64 --op max --json >"$tmp/out"
        grep -q "\"registered\":false,\"in_place\":true,.*\"verified\":true" "$tmp/out"
    done
    bench barrier --ranks 2 --json | grep -q '"bytes":0,'
}

@test "the JSON has algbw and busbw as nccl-tests define them, the percentiles and the limit" {
    pen bench all-reduce --ranks 4 --min-bytes 64k --max-bytes 256k --seconds 0.02 --pairs 2 --json >"$tmp/out" 2>"$tmp/err"
    [ "$(wc -l <"$tmp/out")" = 2 ]
    for field in time_us time_us_p50 time_us_p99 algbw_GBps busbw_GBps limit_GBps ratio ratio_min ratio_max iterations; do
        [ "$(grep -c "\"$field\":[0-9]" "$tmp/out")" = 2 ] || { echo "no $field"; cat "$tmp/out"; return 1; }
    done
    sed 's/[{}"]//g; s/,/\n/g' "$tmp/out" | awk -F: '
        {v[$1] = $2}
        $1 == "busbw_GBps" {
            algbw = v["bytes"] / v["time_us"] / 1000
            if (algbw / v["algbw_GBps"] < 0.999 || algbw / v["algbw_GBps"] > 1.001) exit 1
            if ($2 / algbw < 1.499 || $2 / algbw > 1.501) exit 1
            n++
        }
        END {exit n != 2}'
}

@test "the table is for people to read, and --plot draws it" {
    bench broadcast --ranks 2 --min-bytes 4k --max-bytes 64k --plot "$tmp/b.png" >"$tmp/out"
    head -n 1 "$tmp/out" | grep -qx 'broadcast  2 ranks, f32, cpu, shm, registered buffers, out of place'
    [ "$(grep -cE '^ +(4096|16384|65536) +[0-9.]+ ' "$tmp/out")" = 3 ]
    head -c 4 "$tmp/b.png" | grep -q PNG
}

@test "without shared memory TCP gives the same values, and tune writes rules that the setting accepts" {
    bench all-reduce --ranks 2 --bytes 100000 --over tcp --json | grep -q '"transport":"tcp".*"verified":true'
    rules=$(pen bench tune --ranks 2 --only all-reduce --max-bytes 4k --seconds 0.01 2>"$tmp/err")
    grep -qE '^all-reduce +\(built in\) +[0-9.]+ +[0-9.]+$' "$tmp/err" || { cat "$tmp/err"; return 1; }
    [ "$(grep -c '^all-reduce ' "$tmp/err")" -ge 2 ]
    PENSTOCK_COLL_ALGORITHM="$rules" bench all-reduce --ranks 2 --bytes 4k --over tcp --json | grep -q '"verified":true'
}

@test "as workers of a job, bench and tune measure its links, and --save writes settings for the next job" {
    cd "$tmp"
    pen run --nproc-per-node 3 --no-prefix --shared-memory no "$penstock" bench tune --only all-reduce \
        --min-bytes 4k --max-bytes 16k --seconds 0.01 --save links.conf >out 2>err || { cat err; return 1; }
    [ "$(wc -l <out)" = 1 ]
    grep -qx '# penstock bench tune: 3 ranks' links.conf
    grep -qE '^# all-reduce +connections: +1 +2 +4$' links.conf
    grep -qE '^# all-reduce +bruck +[0-9.]+ +[0-9.]+$' links.conf
    grep -qE '^coll_lanes = [124]$' links.conf
    [ -z "$(cat out)" ] || grep -qxF "coll_algorithm = $(cat out)" links.conf
    pen run --nproc-per-node 3 --no-prefix --config links.conf "$penstock" bench all-reduce --bytes 4k --seconds 0.01 --json \
        >rows 2>err || { cat err; return 1; }
    [ "$(wc -l <rows)" = 1 ]
    pen run --nproc-per-node 3 --no-prefix "$penstock" bench broadcast --root 2 --bytes 4k --seconds 0.01 --json | grep -q '"verified":true'
    grep -q '"ranks":3,.*"transport":"job".*"verified":true' rows
}

@test "flags that contradict each other are refused with a sentence" {
    refuses() {
        code=0
        pen bench "${@:2}" >"$tmp/out" 2>"$tmp/err" || code=$?
        [ "$code" = 2 ]
        is_text "penstock: $1" <"$tmp/err"
    }
    refuses "--op band needs an integer type, not f32" all-reduce --op band
    refuses "--root 2 is out of range for 2 ranks" broadcast --root 2
    refuses "--min-bytes 8192 is more than --max-bytes 4096" reduce --min-bytes 8k --max-bytes 4k
    refuses "4 bytes are too few for one f32 per part; minimum 8" all-gather --bytes 4
    refuses "--device cuda needs pen_alloc() buffers; remove --registered 0" gather --device cuda --registered 0
    refuses "unknown benchmark 'all-reduc'; did you mean 'all-reduce'?" all-reduc
    refuses "--only 'ring' is not a collective with several algorithms" tune --only ring
}
