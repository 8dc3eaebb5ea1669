#!/usr/bin/env bash
# gpt2_quality.sh - the quality that gpt2 reaches in five minutes on two cores:  tests/bench/gpt2_quality.sh
#
# Trains gpt2 --preset tiny on Debian's bible-kjv-text with two workers and two servers, kills it with SIGKILL in the
# middle, resumes it, and trains it once more undisturbed. Then checks: the bits per byte on the held-out tenth are at
# most those of an order-3 byte model (Witten-Bell) that learned the same text; at least 70 % of the sampled words of
# four letters or more are in the text; no run of 64 bytes is copied from it; the undisturbed run ended within 300 s;
# the parameters of both runs are equal. Prints a line for each, and ends with 0 if all hold.
#   BUILD=DIR  the build (build)      CORES=0,1  the cores to use (all)      FLAGS="..."  more flags for gpt2
set -u
BATS_TEST_DIRNAME=$(cd "$(dirname "$0")" && pwd)
. "$BATS_TEST_DIRNAME/../support/job.bash"
job_setup
trap job_teardown EXIT
export LIMIT=1200 PENSTOCK_LOG_LEVEL=error
[ -z "${CORES:-}" ] || taskset -cp "$CORES" $$ >/dev/null
flags=(--preset tiny ${FLAGS:-})
failed=0

# One line:  holds WHAT FIGURE OPERATOR BOUND
holds() {
    local verdict=ok
    awk -v a="$2" -v b="$4" "BEGIN {exit !(a != \"\" && a $3 b)}" || { verdict=FAILED; failed=1; }
    printf '%-6s  %-48s %10s %s %s\n' "$verdict" "$1" "$2" "$3" "$4"
}

begun=$EPOCHREALTIME
pen run --standalone --job "$job-whole" --servers 2 --nproc-per-node 2 "$examples/gpt2" "${flags[@]}" \
    --out "$tmp/whole.json" --sample-out "$tmp/sample" || exit 1
took=$(awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN {printf "%.1f", b - a}')

steps=$(value whole steps)
start cut --servers 2 --nproc-per-node 2 --store "$tmp/store" --snapshot-every $((steps / 20)) "$examples/gpt2" "${flags[@]}"
until [ "$(status_value snapshot)" -ge $((steps / 10)) ] 2>/dev/null; do
    kill -0 "$launcher" || exit 1
    sleep 0.2
done
kill -9 "$launcher"
wait_for_end 10
pen run --standalone --job "$job-rest" --servers 2 --nproc-per-node 2 --store "$tmp/store" --resume "$examples/gpt2" "${flags[@]}" \
    --out "$tmp/rest.json" --sample 0 >/dev/null || exit 1

judged=$("$programs/gpt2_judge" - "$tmp/sample" 2>"$tmp/run")
of() { echo "$judged" | sed "s/.*\"$1\": \([0-9.]*\).*/\1/"; }
echo
holds "bits a byte held out, of an order-3 model" "$(value whole held_bits_per_byte)" "<=" "$(of bits_per_byte)"
holds "part of $(of words) sampled words that is in the text" "$(awk -v a="$(of words_known)" -v b="$(of words)" 'BEGIN {printf "%.3f", a / b}')" ">=" 0.7
holds "bytes of the longest copied run" "$(of longest_run)" "<" 64
holds "seconds, start to end" "$took" "<=" 300
holds "resumed from step $(value rest from_step): same parameters, 1 is yes" "$([ "$(crc whole)" = "$(crc rest)" ] && echo 1 || echo 0)" "==" 1
echo "        $(value whole tokens_per_s) tokens/s, $(value whole parameters) parameters, $(nproc) cores; $(cat "$tmp/run")"
exit $failed
