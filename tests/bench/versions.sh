#!/usr/bin/env bash
# versions.sh - compares the speed of two builds:  tests/bench/versions.sh OLD NEW [PAIRS]
#
# OLD and NEW are build folders. Push-pull (16 x 4 MiB, 1,024 x 4 KiB) and all-reduce, with shared memory and without (over
# the sockets that processes of one host use by default), and gpt2 (tiny, without servers and with one) run PAIRS (7)
# times by turns; the builds swap places from pair to pair. Prints for each figure the median of
# both, and the median of the ratios new to old with the smallest and the largest.
set -eu
old=$1 new=$2 pairs=${3:-7}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

number() { sed -n "s/.*\"$1\":\\([0-9.e+-]*\\).*/\\1/p"; } # KEY: its value in a JSON object of bench

bench() { # BUILD WHAT FLAGS...: bench's JSON
    local build=$1
    shift
    "$build/bin/penstock" bench "$@" --limit no --json 2>"$tmp/err" || { cat "$tmp/err"; exit 1; }
}

gpt2() { # BUILD FLAGS...: tokens a second
    local build=$1
    shift
    OPENBLAS_NUM_THREADS=1 "$build/bin/penstock" run --standalone --nproc-per-node 2 "$@" "$build/bin/examples/gpt2" \
        --preset tiny --data "$tmp/text" --batch 16 --steps 60 --eval-sequences 2 --sample 0 --out "$tmp/gpt2.json" \
        >"$tmp/err" 2>&1 || { cat "$tmp/err"; exit 1; }
    tr -d ' ' <"$tmp/gpt2.json" | awk -F'[:,}]' -v RS=, '/step_p50_s/ {s = $2} /"length"/ {l = $2} END {print 16 * l / s}'
}

figures() { # BUILD: lines of name and value, larger is better
    local shared bytes
    for shared in yes no; do
        export PENSTOCK_SHARED_MEMORY=$shared
        echo "push-pull,_16_x_4_MiB,_shared_memory_$shared,_GB/s $(bench "$1" push-pull | number algbw_GBps)"
        echo "push-pull,_1024_x_4_KiB,_shared_memory_$shared,_GB/s $(bench "$1" push-pull --keys 1024 --bytes 4k | number algbw_GBps)"
        for bytes in 4096 65536 1048576 16777216; do
            echo "all-reduce,_$bytes,_shared_memory_$shared,_1/s" \
                "$(bench "$1" all-reduce --bytes "$bytes" | number time_us_p50 | awk '{print 1e6 / $1}')"
        done
        unset PENSTOCK_SHARED_MEMORY
    done
    echo "gpt2_tiny,_ddp,_tokens/s $(gpt2 "$1" --mode ddp)"
    echo "gpt2_tiny,_ps,_tokens/s $(gpt2 "$1" --mode ps --servers 1)"
}

text() { cat "$(dirname "$0")"/../../docs/*.md "$(dirname "$0")"/../../docs/*/*.md; }

text >"$tmp/text"
for i in $(seq "$pairs"); do
    for side in $( ((i % 2)) && echo old new || echo new old); do
        figures "${!side}" | sed "s/^/$i $side /" >>"$tmp/all"
    done
    echo "pair $i of $pairs" >&2
done
awk '
    function median(list, n,    i, j, t) {
        for (i = 2; i <= n; i++)
            for (j = i; j > 1 && list[j] < list[j - 1]; j--) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
        return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
    }
    { if (!($3 in seen)) { seen[$3] = ++names; name[names] = $3 } value[$2, $3, $1] = $4; if ($1 > n) n = $1 }
    END {
        printf "%-50s %12s %12s   %s\n", "figure", "old", "new", "ratio"
        for (k = 1; k <= names; k++) {
            for (i = 1; i <= n; i++) {
                a[i] = value["old", name[k], i]; b[i] = value["new", name[k], i]; r[i] = b[i] / a[i]
            }
            m = median(r, n); shown = name[k]; gsub("_", " ", shown)
            printf "%-50s %12.5g %12.5g   %.3f (%.3f to %.3f, %d pairs)\n", shown, median(a, n), median(b, n), m, r[1], r[n], n
        }
    }' "$tmp/all"
