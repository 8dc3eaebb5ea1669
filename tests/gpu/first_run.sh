#!/usr/bin/env bash
# first_run.sh - the first ten minutes on a GPU:  first_run.sh [--dry-run] [RESULTS.json]
#                                                 first_run.sh --pack FOLDER
# Runs programs that were built before, the cheapest proof first: the image loads and copies; the bits of each kernel;
# memory and events of two processes; the order of streams; a fused update; bandwidth; kernels under compute-sanitizer;
# jobs on device memory, compared with the same jobs on the host; gpt2. Each has 30 s. Prints a line for each, and writes
# them to RESULTS.json (first_run.json); ends with 1 if one failed.
#   --dry-run   on the fake driver (tests/gpu/driver), and says what that does not prove
#   --pack      copies what it needs, with libraries, into a folder for a machine without a compiler and our packages:
#               carry the folder there and start FOLDER/first_run.sh
#   BUILD=DIR   the build (build; beside this script, if that has bin/penstock)
#   LIMIT=30    seconds for each
#   ONLY=WORDS  the proofs whose names match this extended regular expression
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=${BUILD:-$([ -x "$here/bin/penstock" ] && echo "$here" || echo "$here/../../build")}
build=$(cd "$build" && pwd) || exit 2
limit=${LIMIT:-30}
programs=(kernels probe collectives stream_order update bandwidth)

pack() {
    local to=$1 file library late
    mapfile -t late <"$build/late_libraries"
    mkdir -p "$to/bin" "$to/lib" "$to/tests/gpu/driver" "$to/tests/programs"
    cp "$here/first_run.sh" "$to"
    cp "$build/bin/penstock" "$to/bin"
    cp -d "$build"/lib/libpenstock.so* "$to/lib"
    cp "${programs[@]/#/$build/tests/gpu/}" "$to/tests/gpu"
    cp "$build"/tests/programs/{on_device,units} "$to/tests/programs"
    cp "$build"/tests/gpu/driver/libcuda.so.1 "$to/tests/gpu/driver"
    [ ! -x "$build/tests/gpu/gpt2" ] || cp "$build/tests/gpu/gpt2" "$to/tests/gpu"
    for file in "$to"/bin/penstock "$to"/lib/libpenstock.so "$to"/tests/gpu/* "$to"/tests/programs/*; do
        [ -f "$file" ] && [ ! -L "$file" ] || continue
        strip --strip-debug "$file" 2>/dev/null || :
        ldd "$file" "${late[@]}" 2>/dev/null | awk '$3 ~ /^\// {print $3}'
        printf '%s\n' "${late[@]}"
    done | sort -u | while read -r library; do
        case ${library##*/} in
        libc.so* | libm.so* | libdl.so* | libpthread.so* | librt.so* | libresolv.so* | ld-linux* | libpenstock.so* | libcuda.so*) ;;
        *) cp -L "$library" "$to/lib" ;;
        esac
    done
    echo "$to: $(du -sh "$to" | cut -f1), needs glibc $(ldd --version | sed -n '1s/.* //p') or newer and a driver for CUDA" \
        "$("$build/bin/penstock" doctor 2>/dev/null | sed -n 's/.*built with CUDA \([0-9.]*\).*/\1/p' | head -n 1)"
}

dry=no
case ${1:-} in
--pack) [ -n "${2:-}" ] || { echo "usage: first_run.sh --pack FOLDER" >&2; exit 2; }; pack "$2"; exit ;;
--dry-run) dry=yes; shift ;;
-*) echo "usage: first_run.sh [--dry-run] [RESULTS.json] | --pack FOLDER" >&2; exit 2 ;;
esac
results=${1:-first_run.json}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PENSTOCK_LOG_LEVEL=${PENSTOCK_LOG_LEVEL:-error}
[ $dry = no ] || LD_LIBRARY_PATH=$build/tests/gpu/driver:$LD_LIBRARY_PATH
gpu=$build/tests/gpu job=$build/tests/programs
failed=0 passed=0 missing=0 rows=()

quoted() { # as a JSON string
    printf '"%s"' "$(printf '%s' "$1" | tr '\n\t' '  ' | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g')"
}

limited() { timeout --kill-after=5 "$limit" "$@"; }

# A proof and its line:  proof NAME PROGRAM_OR_FUNCTION WORDS...
proof() {
    local name=$1 begun=${EPOCHREALTIME/[.,]/} code=0 state took last
    [[ $name =~ ${ONLY:-.} ]] || return
    shift
    case $(type -t "$1") in
    function) "$@" >"$tmp/out" 2>&1 || code=$? ;;
    *) limited "$@" >"$tmp/out" 2>&1 || code=$? ;;
    esac
    took=$(((${EPOCHREALTIME/[.,]/} - begun) / 1000))
    last=$(grep -v '^ *$' "$tmp/out" | tail -n "${LINES_SHOWN:-1}" | paste -sd ';' | cut -c1-240)
    case $code in
    0) state=ok passed=$((passed + 1)) ;;
    77) state=skipped missing=$((missing + 1)) ;;
    124 | 137) state=failed failed=$((failed + 1)) last="not ended after $limit s; $last" ;;
    *) state=failed failed=$((failed + 1)) last="exit code $code; $last" ;;
    esac
    printf '%-7s %6d ms  %-34s %s\n' $state $took "$name" "$last"
    [ $state != failed ] || sed 's/^/        | /' "$tmp/out" | tail -n 12
    rows+=("{\"name\":$(quoted "$name"),\"state\":\"$state\",\"ms\":$took,\"line\":$(quoted "$last")}")
}

# A job of two workers whose lines are kept:  run_job NAME FLAGS... -- PROGRAM WORDS...
run_job() {
    local name=$1 flags=()
    shift
    while [ "$1" != -- ]; do flags+=("$1"); shift; done
    shift
    limited "$build/bin/penstock" run --standalone --no-prefix --nproc-per-node 2 "${flags[@]}" "$@" \
        >"$tmp/$name.lines" 2>"$tmp/$name.err" || { local code=$?; cat "$tmp/$name.lines" "$tmp/$name.err"; return $code; }
}

# Each mode on device memory has the steps of ps-bsp on the host:  same_steps MODE FLAGS...
same_steps() {
    local mode=$1
    shift
    run_job "device-$mode" "$@" -- "$job/units" mode="$mode" device=cuda "${words[@]}" || return
    grep ' step ' "$tmp/host.lines" | sort >"$tmp/right"
    grep ' step ' "$tmp/device-$mode.lines" | sort | diff "$tmp/right" - || return 1
    [ -s "$tmp/right" ] && echo "$(wc -l <"$tmp/right") results have the bits of the host"
}

# Both ranks have the same sums, and the devices carried them.
sums() {
    PENSTOCK_LOG_LEVEL=notice run_job sums -- "$job/on_device" reduce device=cuda || return
    ! grep 'through the host' "$tmp/sums.err" || return 1
    diff <(sed -n 's/^rank 0 //p' "$tmp/sums.lines") <(sed -n 's/^rank 1 //p' "$tmp/sums.lines") || return 1
    [ -s "$tmp/sums.lines" ] && echo "$(wc -l <"$tmp/sums.lines") sums, equal on both ranks"
}

host_steps() { run_job host --servers 1 -- "$job/units" mode=ps-bsp "${words[@]}" && echo "the same steps on the host"; }

sanitized() {
    command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not here"; return 77; }
    limited compute-sanitizer --error-exitcode 1 "$@"
}

gpt2_check() {
    [ -x "$gpu/gpt2" ] || { echo "not built: cmake --build build --target gpu_gpt2 (needs cuBLASLt)"; return 77; }
    limited "$gpu/gpt2" check
}

words=(steps=3 rows=40 clip=60 own=0 lazy=1)
mib=256 updates=67108864 share=1
[ $dry = no ] || mib=2 updates=100000 share=9

device=$(timeout 20 "$build/bin/penstock" doctor 2>/dev/null | grep -i -m1 'cuda' | sed 's/^ *//')
echo "first run$([ $dry = no ] || echo ', on the fake driver: nothing here has touched a GPU')   ${device:-no device}"
[ $dry = yes ] || nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || :

proof "the image loads"                "$gpu/kernels" touch
proof "copies"                         "$gpu/kernels" copy
proof "bits of folds"                  "$gpu/kernels" fold $share
proof "bits of sums"                   "$gpu/kernels" sum $share
proof "bits of norms and decisions"    "$gpu/kernels" step
proof "bits of update rules"           "$gpu/kernels" update
proof "waits of kernels end"           "$gpu/kernels" flag
proof "streams and events"             "$gpu/kernels" stream
LINES_SHOWN=4 proof "memory of another process" "$gpu/probe"
proof "2 processes, hostflag"          "$gpu/collectives" 2 hostflag 1 $share
proof "2 processes, stream"            "$gpu/collectives" 2 stream 1 $share
proof "order of streams, hostflag"     "$gpu/stream_order" 2 hostflag 1
proof "order of streams, stream"       "$gpu/stream_order" 2 stream 1
proof "2 devices, spin"                env CUDA_ON_HOST_DEVICES=2 "$gpu/collectives" 2 spin 2 $share
proof "order of streams, spin"         env CUDA_ON_HOST_DEVICES=2 "$gpu/stream_order" 2 spin 2
proof "fused AdamW beside a copy"      "$gpu/update" 0 $updates
LINES_SHOWN=4 proof "bandwidth, 2 processes" "$gpu/bandwidth" 2 0 $mib
LINES_SHOWN=4 proof "bandwidth, 4 processes" "$gpu/bandwidth" 4 0 $mib
proof "sanitizer: copies"              sanitized "$gpu/kernels" copy
proof "sanitizer: waits"               sanitized "$gpu/kernels" flag
proof "sanitizer: decisions"           sanitized "$gpu/kernels" step
proof "a job: collectives"             sums
proof "a job on the host"              host_steps
for mode in allreduce zero1 zero2 zero3; do
    proof "a job: $mode"               same_steps $mode
done
proof "a job: ps-bsp, one server"      same_steps ps-bsp --servers 1
proof "a job: ps-hier, one server"     same_steps ps-hier --servers 1
proof "gpt2 against the CPU"           gpt2_check

echo "$passed passed, $failed failed, $missing skipped"
if [ $dry = yes ]; then
    echo "Not proven by this: machine code and PTX, the device's memory model, page tables and IPC of the real driver, links, speed."
fi
{
    printf '{"date":"%s","dry_run":%s,"device":%s,"passed":%d,"failed":%d,"skipped":%d,"proofs":[' "$(date -u +%FT%TZ)" \
        "$([ $dry = yes ] && echo true || echo false)" "$(quoted "${device:-}")" $passed $failed $missing
    (IFS=,; printf '%s' "${rows[*]}")
    echo ']}'
} >"$results"
[ $failed = 0 ]
