# host.bats - tests of the kernels without a GPU.

load ../support/bats

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
    objects=()
    for part in rows attention attention_plain network cuda_on_host gpt2_products_on_host; do
        objects+=("$build/examples/gpt2_on_host_$part.o") # as the library of train.bats has them
    done
    g++ -std=c++20 -O1 -Wall -Wno-unknown-pragmas -Iexamples/gpt2/cuda -Itests/gpu -include cuda_on_host.h -o "$tmp/gpt2" \
        -x c++ tests/gpu/cuda_on_host_now.cpp tests/gpu/gpt2_on_host.cpp -x none "${objects[@]}" "$network" \
        $(pkg-config --libs openblas) -lpthread -lm
    timeout 60 "$tmp/gpt2"
}
