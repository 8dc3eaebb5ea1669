# linking.bats - programs linked in other ways, with other flags, or with names like ours, train to the same bits.

load ../support/job

setup() {
    job_setup
    cd "$root"
    export PKG_CONFIG_PATH=$build/lib/pkgconfig
    source=tests/cluster/programs/odd_program.c
    sanitize=$(sed -n 's/^PENSTOCK_SANITIZE:STRING=\(.\)/-fsanitize=\1/p' "$build/CMakeCache.txt")
}
teardown() { job_teardown; }

# Compiles it:  compile NAME PACKAGE FLAGS...
compile() {
    cc ${sanitize:+"$sanitize"} "${@:3}" -o "$tmp/$1" "$source" $(pkg-config --cflags --libs "$2")
}

# Its digest alone, without servers and with one server:  digests NAME [up]
digests() {
    local name=$1
    "$tmp/$name" "${@:2}" >"$tmp/$name.alone"
    pen run --standalone --no-prefix --nproc-per-node 2 --job "$job" "$tmp/$name" "${@:2}" >"$tmp/$name.ddp"
    pen run --standalone --no-prefix --nproc-per-node 2 --servers 1 --job "$job" "$tmp/$name" "${@:2}" >"$tmp/$name.ps"
    grep -qxE '[0-9a-f]{8}' "$tmp/$name.ddp"
    cmp "$tmp/$name.ddp" "$tmp/$name.ps"
}

@test "a program that flushes denormal numbers or rounds up, and has names of ours, trains to the same bits as a plain one" {
    local how name
    compile plain penstock -O2
    compile fast penstock -Ofast
    compile fast_static penstock-static -Ofast
    [ -z "$(ldd "$tmp/fast_static" | grep libpenstock)" ]
    digests plain
    cat "$tmp/plain.alone" "$tmp/plain.ddp" >"$tmp/want"
    for how in fast fast_static "fast_static up"; do
        name=${how% up}
        digests $how
        cat "$tmp/$name.alone" "$tmp/$name.ddp" | cmp - "$tmp/want" || { echo "$how differs"; return 1; }
    done
}

@test "a worker loads ZeroMQ, TLS and an HTTP server only if its job needs them" {
    local loads=(env LD_DEBUG=files LD_DEBUG_OUTPUT="$tmp/loads")
    local late='calling init: .*/lib(zmq|ssl|crypto|microhttpd|gnutls|stdc\+\+)\.so'
    pen run --standalone --nproc-per-node 2 --servers 1 --job "$job" "${loads[@]}" "$build/bin/examples/linear"
    [ "$(grep -lE 'calling init: .*/libpenstock\.so' "$tmp"/loads.* | wc -l)" = 2 ]
    ! grep -hE "$late" "$tmp"/loads.* || false
    rm "$tmp"/loads.*
    pen run --standalone --nproc-per-node 2 --transport zmq --job "$job-zmq" "${loads[@]}" "$build/bin/examples/linear"
    [ "$(grep -hE "$late" "$tmp"/loads.* | grep -c libzmq)" = 2 ]
}

@test "only pen_* is seen from outside, in the shared library and in the static one" {
    nm -g --defined-only "$build/lib/libpenstock.a" 2>/dev/null | awk 'NF == 3 {print $3}' | sort >"$tmp/static"
    nm -gD --defined-only "$build/lib/libpenstock.so" | awk '$2 != "A" {print $3}' | sed 's/@.*//' | sort >"$tmp/shared"
    grep -q '^pen_init$' "$tmp/static"
    [ -z "$(grep -v '^pen_[a-z]' "$tmp/static" | grep -vE "${sanitize:+^__(asan|ubsan|tsan|odr)|}^\$")" ]
    cmp "$tmp/static" "$tmp/shared"
}
