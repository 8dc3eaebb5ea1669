# linking.bats - what a program sees of the libraries that it links.

load ../support/job

setup() {
    job_setup
    cd "$root"
    export PKG_CONFIG_PATH=$build/lib/pkgconfig
    sanitize=$(sed -n 's/^PENSTOCK_SANITIZE:STRING=\(.\)/-fsanitize=\1/p' "$build/CMakeCache.txt")
}
teardown() { job_teardown; }

@test "only pen_* is seen from outside, in the shared library and in the static one" {
    nm -g --defined-only "$build/lib/libpenstock.a" 2>/dev/null | awk 'NF == 3 {print $3}' | sort >"$tmp/static"
    nm -gD --defined-only "$build/lib/libpenstock.so" | awk '$2 != "A" {print $3}' | sed 's/@.*//' | sort >"$tmp/shared"
    grep -q '^pen_init$' "$tmp/static"
    [ -z "$(grep -v '^pen_[a-z]' "$tmp/static" | grep -vE "${sanitize:+^__(asan|ubsan|tsan|odr)|}^\$")" ]
    cmp "$tmp/static" "$tmp/shared"
}
