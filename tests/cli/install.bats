# install.bats - what `make install` puts into a prefix is whole: command, library, header, pkg-config file.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

@test "installed into a prefix, pkg-config and cc build the 30-line program, which prints the same on 1 and 2 ranks" {
    local source=$root/worker/examples/linear.c
    [ "$(sed -e 's,/\*.*\*/,,' -e '/^\/\*/,/\*\//d' "$source" | grep -cvE '^[[:space:]]*$')" -le 30 ]
    cmake --install "$build" --prefix "$tmp/usr" >"$tmp/install"
    export PKG_CONFIG_PATH LD_LIBRARY_PATH
    PKG_CONFIG_PATH=$(dirname "$(find "$tmp/usr" -name penstock.pc)")
    LD_LIBRARY_PATH=$(pkg-config --variable=libdir penstock)
    cc -std=c99 -Wall -Werror -o "$tmp/linear" "$source" $(pkg-config --cflags --libs penstock)
    "$tmp/linear" >"$tmp/alone" 2>"$tmp/alone.err"
    [ "$(wc -l <"$tmp/alone")" = 20 ]
    penstock=$(find "$tmp/usr" -path '*bin/penstock')
    pen run --standalone --no-prefix --nproc-per-node 2 --servers 1 --job "$job" "$tmp/linear" >"$tmp/two"
    cmp "$tmp/alone" "$tmp/two"
    nothing_is_left
}

@test "the static library links the same program" {
    local private
    cmake --install "$build" --prefix "$tmp/usr" >"$tmp/install"
    export PKG_CONFIG_PATH
    PKG_CONFIG_PATH=$(dirname "$(find "$tmp/usr" -name penstock.pc)")
    private=$(pkg-config --static --libs-only-l penstock | sed 's/-lpenstock//')
    cc -std=c99 -o "$tmp/linear" "$root/worker/examples/linear.c" $(pkg-config --cflags penstock) \
        "$(pkg-config --variable=libdir penstock)/libpenstock.a" $private
    env -u LD_LIBRARY_PATH "$tmp/linear" 2>"$tmp/err" | tail -n 1 | grep -qE '^step 19   loss 0\.[0-9]+$'
}
