#!/usr/bin/env bash
# train.sh - steps of PyTorch over Penstock beside DDP over Gloo, 2 processes of one thread, in turn:
#   tests/bench/python/train.sh [BUILD_DIR] [PAIRS] [STEPS]
set -euo pipefail
cd "$(dirname "$0")/../../.."
build=$(realpath "${1:-build}")
pairs=${2:-7}
steps=${3:-40}
. "$build/env"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export OMP_NUM_THREADS=1
echo "load $(cut -d' ' -f1-3 /proc/loadavg)"

step() { # MODEL HOW STEPS: ms.  alone: the optimizer in two jobs of one worker each, at once, which send nothing
    local workers=2 how=$2 other= code=0
    if [ "$how" = alone ]; then workers=1 how=optimizer; fi
    local words=(penstock run --no-prefix --nproc-per-node "$workers" /usr/bin/python3 tests/bench/python/train.py "$1" "$how" "$3")
    if [ "$workers" = 1 ]; then
        "${words[@]}" >/dev/null 2>&1 &
        other=$!
    fi
    "${words[@]}" 2>/dev/null | tail -n 1 || code=$?
    [ -z "$other" ] || wait "$other" || code=$?
    return $code
}

spread() { sort -n "$1" | awk -v f="$2" '{v[NR] = $1} END {printf f " (" f " to " f ")", v[int((NR + 1) / 2)], v[1], v[NR]}'; }

for model in gpt cnn; do
    rm -f "$tmp"/*
    for ((i = 0; i < pairs; i++)); do
        for how in gloo none penstock hook optimizer alone; do
            step $model $how "$steps" >"$tmp/now.$how" || { echo "a job of $model, $how failed" >&2; exit 1; }
            cat "$tmp/now.$how" >>"$tmp/ms.$how"
        done
        paste "$tmp"/now.{gloo,none,penstock,hook,optimizer,alone} |
            awk -v t="$tmp" '{
                split("penstock hook optimizer", name)
                for (i = 1; i <= 3; i++) {
                    print $1 / $(i + 2) >>(t "/over." name[i])
                    if ($1 > $2) print ($1 - $(i + 2)) / ($1 - $2) >>(t "/gap." name[i])
                }
                if ($1 > $2) print 1 - ($5 - $6) / ($1 - $2) >>(t "/sent")
            }'
    done
    for how in gloo none penstock hook optimizer alone; do echo "$model   $how   ms $(spread "$tmp/ms.$how" %.1f)"; done
    for how in penstock hook optimizer; do
        echo "$model   $how   times as fast as Gloo $(spread "$tmp/over.$how" %.2f)   of the gap to none $([ ! -e "$tmp/gap.$how" ] || spread "$tmp/gap.$how" %.2f)"
    done
    [ ! -e "$tmp/sent" ] || echo "$model   optimizer   1 - (its time - alone) / (gloo - none) $(spread "$tmp/sent" %.2f)"
done
