#!/usr/bin/env bash
# run.sh - builds the libFuzzer targets with clang and runs each for some seconds; speaks TAP.
#   tests/fuzz/run.sh BUILD_DIR [SECONDS]     10 seconds each by default
#   FUZZ_TARGETS=config,store                only these
#   FUZZ_SEED=1                              the same inputs each time; otherwise random
#   tests/fuzz/run.sh BUILD_DIR --corpus      writes tests/fuzz/corpus/{wire_*,secret,store}/ again
# A failing input is kept in BUILD_DIR/failed/; run BUILD_DIR/fuzz_<target> on it to reproduce the failure.
set -u
cd "$(dirname "$0")/../.."
mkdir -p "${1:?usage: tests/fuzz/run.sh BUILD_DIR [SECONDS]}"
build=$(realpath "$1")
seconds=${2:-10}
targets=${FUZZ_TARGETS:-wire_data,wire_control,wire_peer,config,secret,local,store,http,lend,node,socket,tls,safetensors,documents,rows,handler}
targets=${targets//,/ }
clang=$(command -v clang || command -v clang-14)

skip_all() { # why
    local n=0
    for target in $targets; do echo "ok $((++n)) - fuzz $target # SKIP $1"; done
    exit 0
}
[ -n "$clang" ] || skip_all "clang is not installed"
echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n ? 0 : 0; }' >"$build/probe.c"
"$clang" -fsanitize=fuzzer,address "$build/probe.c" -o "$build/probe" 2>/dev/null || skip_all "clang has no libFuzzer"

# Each source is compiled once for all programs.
objects=$(mktemp -d "$build/objects-XXXXXX")
trap 'rm -r "$objects"' EXIT

compile() { # output, sanitizers, sources...
    local output=$1 sanitizers=$2 source object more all=()
    shift 2
    for source in "$@"; do
        object=$objects/${source//\//_}.o
        all+=("$object")
        case $source in # with the flags of each kernel level, and the libraries that CMake finds
        */tls.c) more='-DPENSTOCK_SSL="libssl.so.3"' ;;
        */tls_gcm.c)
            more='-DPENSTOCK_SSL="libssl.so.3"'
            [ ! -e /usr/include/intel-ipsec-mb.h ] || more="$more -DPENSTOCK_IPSEC_MB=\"libIPSec_MB.so.1\"" ;;
        *_avx2.c) more="-mavx2 -mf16c -mno-fma" ;;
        *_avx512.c) more="-mavx512f -mavx512bw -mavx512dq -mavx512vl" ;;
        *) more= ;;
        esac
        [ -e "$object" ] ||
            "$clang" -std=c11 -D_GNU_SOURCE -O1 -g -w $more -fsanitize="$sanitizers" -fno-sanitize-recover=all -ffp-contract=off \
                -I. -Iinclude -I"$build" -c "$source" -o "$object" || return 1
    done
    "$clang" -fsanitize="$sanitizers" "${all[@]}" -o "$output" $(pkg-config --libs libprotobuf-c libisal libxxhash libsodium lmdb jansson yaml-0.1) -pthread -lm
}

for name in control data peer; do protoc-c --c_out="$build" -I proto $name.proto || exit 1; done
common="common/base/why.c common/base/clock.c common/base/log.c common/base/crc.c common/base/config.c common/base/utf8.c common/system/file_limit.c common/system/own_files.c common/containers/hash.c common/containers/arrays.c"
wire="$(ls proto/wire/wire*.c | tr '\n' ' ') $build/control.pb-c.c $build/data.pb-c.c $build/peer.pb-c.c tests/support/wire_difference.c $common"
store=$(ls common/snapshot/store*.c | tr '\n' ' ')

if [ "$seconds" = --corpus ]; then
    mkdir -p tests/fuzz/corpus/wire_{data,control,peer}
    compile "$build/make_corpus" address,undefined tests/fuzz/make_corpus.c tests/support/wire_samples.c $wire || exit 1
    mkdir -p tests/fuzz/corpus/{secret,store}
    compile "$build/make_seeds" address,undefined tests/fuzz/make_seeds.c $store common/net/auth/secret.c $common || exit 1
    "$build/make_corpus" tests/fuzz/corpus && "$build/make_seeds" tests/fuzz/corpus
    exit
fi

failed=0
mkdir -p "$build/failed"
for target in $targets; do
    max_bytes=4096
    case $target in
    wire_data | wire_peer) sources=$wire ;;
    wire_control) sources="$wire proto/plan.c proto/plan_compare.c" ;;
    config) sources=$common ;;
    http) sources="common/net/http_gate.c common/net/metrics.c common/base/stat.c $common" ;;
    secret) sources="common/net/auth/secret.c $common" ;;
    local) sources="common/net/local_socket.c common/system/user_folder.c $common" ;;
    store) sources="$store $common" max_bytes=65536 ;;
    lend) sources="common/net/transport/lend.c common/system/own_pid.c common/system/segment.c common/containers/buf.c $common" ;;
    node) sources="$(ls worker/collective/shm/*.c common/compute/optim/*.c common/compute/simd/*.c | tr '\n' ' ') worker/collective/call.c common/system/own_pid.c common/system/segment.c proto/plan.c $common" ;;
    socket) sources="common/net/transport/transport_socket_line.c common/net/transport/tls.c common/net/transport/tls_gcm.c common/system/library.c common/containers/buf.c $common" ;;
    tls) sources="common/net/transport/tls.c common/net/transport/tls_gcm.c common/system/library.c common/containers/buf.c $common" ;;
    safetensors) sources="common/snapshot/safetensors.c common/snapshot/store_files.c $(ls common/compute/simd/*.c | tr '\n' ' ') $common" ;;
    documents) sources="$(ls common/config_files/*.c common/compute/optim/*.c common/compute/simd/*.c | tr '\n' ' ') cli/emit/yaml_tree.c $common" ;;
    rows) sources="proto/rows.c server/shard/table/row_store.c common/compute/init.c common/containers/buf.c $(ls common/compute/optim/*.c common/compute/simd/*.c | tr '\n' ' ') $common" ;;
    handler) sources="proto/rows.c server/shard/handler/handler_part.c  common/containers/buf.c proto/plan.c $(ls common/compute/optim/*.c common/compute/simd/*.c | tr '\n' ' ') $common" ;;
    esac
    program=$build/fuzz_$target log=$build/fuzz_$target.log
    if ! compile "$program" fuzzer,address,undefined "tests/fuzz/fuzz_$target.c" $sources 2>"$log"; then
        echo "not ok fuzz $target: does not compile"
        sed 's/^/# /' "$log" | head -30
        failed=1
        continue
    fi
    mkdir -p "$build/corpus/$target" # new inputs are kept here for the next run
    if "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=$max_bytes -seed="${FUZZ_SEED:-0}" -print_final_stats=1 \
        -artifact_prefix="$build/failed/$target-" "$build/corpus/$target" "tests/fuzz/corpus/$target" >"$log" 2>&1; then
        echo "ok fuzz $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") runs"
    else
        echo "not ok fuzz $target"
        grep -vE '^#[0-9]' "$log" | tail -40 | sed 's/^/# /'
        failed=1
    fi
done
exit $failed
