# host.bats - tests of the kernels without a GPU.

setup() {
    cd "$BATS_TEST_DIRNAME/../.."
    build=${BUILD:-$PWD/build}
    tmp=$(mktemp -d "${TMPDIR:-/tmp}/kernels-XXXXXX")
}

teardown() {
    rm -rf "$tmp"
}

@test "the folds of fold.cu, compiled for the host, give the bits of reduce()" {
    g++ -std=c++17 -O1 -ffp-contract=off -Wno-unknown-pragmas -I. -Iinclude -Itests/gpu -o "$tmp/folds" tests/gpu/kernels_on_host.cpp \
        "$build/lib/libpen_common.a" -lm
    timeout 60 "$tmp/folds"
}

@test "the kernels of gpt2, with threads run by turns on the host, give the CPU's network" {
    network=$build/lib/libgpt2_network.a
    [ -e "$network" ] || skip "gpt2 was not built: no OpenBLAS"
    gpt2=examples/gpt2/cuda
    for file in $gpt2/rows.cu $gpt2/attention.cu $gpt2/attention_plain.cu $gpt2/network.cu tests/gpu/cuda_on_host.cpp \
        tests/gpu/cuda_on_host_now.cpp tests/gpu/gpt2_products_on_host.cpp tests/gpu/gpt2_on_host.cpp; do
        g++ -std=c++20 -O1 -Wall -Wno-unknown-pragmas -I$gpt2 -Itests/gpu -include cuda_on_host.h \
            -x c++ -c "$file" -o "$tmp/$(basename "$file").o" &
    done
    wait
    g++ -o "$tmp/gpt2" "$tmp"/*.o "$network" $(pkg-config --libs openblas) -lpthread -lm
    timeout 60 "$tmp/gpt2"
}
