# install.bats - an installation is enough to build and run programs; setup.sh asks for missing packages.

load ../support/job

setup() {
    job_setup
    unset LD_LIBRARY_PATH
    cd "$root"
    source=examples/linear.c
    sanitize=$(sed -n 's/^PENSTOCK_SANITIZE:STRING=\(.\)/-fsanitize=\1/p' "$build/CMakeCache.txt")
    flags=(-std=c99 -Wall -Werror ${sanitize:+"$sanitize"})
}
teardown() { job_teardown; }

# Installs into $tmp/usr and lets pkg-config find it.
install_here() {
    cmake --install "$build" --prefix "$tmp/usr" >"$tmp/install.log"
    export PKG_CONFIG_PATH
    PKG_CONFIG_PATH=$(dirname "$(find "$tmp/usr" -name penstock.pc)")
}

libdir() { pkg-config --variable=libdir penstock; }

# The program trains the same alone and as two workers of the installed launcher.
trains() {
    "$1" >"$tmp/alone" 2>"$tmp/alone.err"
    [ "$(wc -l <"$tmp/alone")" = 20 ]
    tail -n 1 "$tmp/alone" | grep -qE '^step 19   loss 0\.[0-9]+$'
    penstock=$(find "$tmp/usr" -path '*bin/penstock')
    pen run --standalone --no-prefix --nproc-per-node 2 --servers 1 --job "$job" "$1" >"$tmp/two" 2>"$tmp/two.err"
    cmp "$tmp/alone" "$tmp/two"
    nothing_is_left
}

@test "a program builds against the installed shared library by pkg-config, in C and C++" {
    install_here
    cc "${flags[@]}" -o "$tmp/linear" "$source" $(pkg-config --cflags --libs penstock)
    export LD_LIBRARY_PATH
    LD_LIBRARY_PATH=$(libdir)
    [ "$(realpath "$(ldd "$tmp/linear" | sed -n 's/.*libpenstock\.so\.1 => \(.*\) (.*/\1/p')")" = \
        "$(realpath "$(libdir)/libpenstock.so.1")" ]
    trains "$tmp/linear"
    echo '#include <penstock.h>
int main() { return pen_version() >> 16 == PEN_VERSION_MAJOR ? 0 : 1; }' >"$tmp/version.cc"
    c++ -Wall -Werror ${sanitize:+"$sanitize"} -o "$tmp/version" "$tmp/version.cc" $(pkg-config --cflags --libs penstock)
    "$tmp/version"
}

@test "the Python package finds the installed library beside it" {
    [ -z "$sanitize" ] || skip "Python is not linked with the sanitizer"
    install_here
    package=$(dirname "$(find "$tmp/usr" -path '*penstock/__init__.py' -not -path '*/torch/*')")
    [ -e "$package/py.typed" ] && [ -e "$package/torch/backend.py" ]
    PYTHONPATH=$(dirname "$package") /usr/bin/python3 examples/python/linear.py >"$tmp/python" 2>"$tmp/python.err"
    cc "${flags[@]}" -o "$tmp/linear" "$source" $(pkg-config --cflags --libs penstock)
    LD_LIBRARY_PATH=$(libdir) "$tmp/linear" >"$tmp/c"
    cmp "$tmp/python" "$tmp/c"
}

@test "a program builds against the installed static library" {
    install_here
    cc "${flags[@]}" -o "$tmp/linear" "$source" $(pkg-config --cflags --libs penstock-static)
    [ -z "$(ldd "$tmp/linear" | grep libpenstock)" ]
    trains "$tmp/linear"
}

@test "a CMake project finds the installed package, and refuses another major version" {
    install_here
    mkdir "$tmp/project"
    cp "$source" "$tmp/project"
    cat >"$tmp/project/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(mine C)
find_package(penstock 1.0 REQUIRED)
add_executable(linear linear.c)
target_compile_options(linear PRIVATE $sanitize)
target_link_options(linear PRIVATE $sanitize)
target_link_libraries(linear PRIVATE penstock::penstock)
add_executable(whole linear.c)
target_compile_options(whole PRIVATE $sanitize)
target_link_options(whole PRIVATE $sanitize)
target_link_libraries(whole PRIVATE penstock::static)
END
    cmake -S "$tmp/project" -B "$tmp/made" -DCMAKE_PREFIX_PATH="$tmp/usr" >"$tmp/cmake.log"
    cmake --build "$tmp/made" >>"$tmp/cmake.log"
    trains "$tmp/made/linear"
    [ -z "$(ldd "$tmp/made/whole" | grep libpenstock)" ]
    trains "$tmp/made/whole"
    sed -i 's/penstock 1.0/penstock 2.0/' "$tmp/project/CMakeLists.txt"
    ! cmake -S "$tmp/project" -B "$tmp/other" -DCMAKE_PREFIX_PATH="$tmp/usr" >"$tmp/cmake.log" 2>&1 || return 1
}

@test "the header is the only one installed and compiles alone" {
    install_here
    (cd "$tmp/usr/include" && find . -type f) | is_text ./penstock.h
    cc -std=c99 -pedantic -Wall -Wextra -Werror -fsyntax-only -x c "$tmp/usr/include/penstock.h"
    ! grep -rF "$root" "$tmp/usr/include" "$PKG_CONFIG_PATH" "$(libdir)/cmake" || return 1
}

@test "an installation can be moved" {
    install_here
    mv "$tmp/usr" "$tmp/elsewhere"
    PKG_CONFIG_PATH=${PKG_CONFIG_PATH/#$tmp\/usr/$tmp/elsewhere}
    cc "${flags[@]}" -o "$tmp/linear" "$source" $(pkg-config --cflags --libs penstock)
    LD_LIBRARY_PATH=$(libdir) "$tmp/linear" 2>/dev/null | grep -q .
}

@test "build/env sets the paths of command, examples, library and package" {
    env -i PATH=/usr/bin:/bin HOME="$tmp" bash -euc '
        . '"$build"'/env
        penstock version | grep -q .
        linear 2>/dev/null | grep -q .
        cc '"${flags[*]}"' -o '"$tmp"'/linear examples/linear.c $(pkg-config --cflags --libs penstock)
        '"$tmp"'/linear 2>/dev/null | grep -q .'
}

# A dpkg-query that has all packages except these, and one that provides what $provided lists:  without PACKAGE...
without() {
    local package
    mkdir -p "$tmp/bin"
    {
        echo '#!/bin/sh'
        for package in $(sed 's/#.*//; s/\[.*\]//' packages.txt); do
            [[ " $* " == *" $package "* ]] || echo "echo 'installed $package, '"
        done
        echo "echo 'installed elsewhere, ${provided:-}'"
        echo "echo 'deinstalled ${1:-none}, '"
    } >"$tmp/bin/dpkg-query"
    chmod +x "$tmp/bin/dpkg-query"
}

@test "setup.sh installs nothing when nothing is missing, and with DRY_RUN=1 prints the command" {
    without
    PATH=$tmp/bin:$PATH DRY_RUN=1 scripts/setup.sh | is_text "setup   nothing to install"
    without libzmq3-dev gnuplot-nox
    PATH=$tmp/bin:$PATH DRY_RUN=1 scripts/setup.sh >"$tmp/out"
    sed -E 's/^(sudo)? *apt-get/apt-get/; s/ *$//' "$tmp/out" | is_text "setup   missing 2 Debian packages:
          libzmq3-dev gnuplot-nox
apt-get install -y --no-install-recommends libzmq3-dev gnuplot-nox"
}

@test "setup.sh does not request a package that another one provides" {
    provided='libzmq-dev, libzmq3-dev (= 4.3.4), gnuplot-nox' without libzmq3-dev gnuplot-nox
    PATH=$tmp/bin:$PATH DRY_RUN=1 scripts/setup.sh | is_text "setup   nothing to install"
}

@test "setup.sh requests what Debian has for one processor on that one only" {
    local processor
    without libipsec-mb-dev libxxhash-dev
    for processor in amd64 arm64; do
        printf '#!/bin/sh\necho %s\n' $processor >"$tmp/bin/dpkg"
        chmod +x "$tmp/bin/dpkg"
        PATH=$tmp/bin:$PATH DRY_RUN=1 scripts/setup.sh | sed -n 's/.*recommends //p'
    done | is_text "libipsec-mb-dev libxxhash-dev
libxxhash-dev"
}

@test "setup.sh on another system lists the packages it would have installed" {
    local tool package
    mkdir "$tmp/only"
    for tool in bash sed dirname; do ln -s "$(command -v "$tool")" "$tmp/only/$tool"; done
    code=0
    PATH=$tmp/only bash scripts/setup.sh 2>"$tmp/err" || code=$?
    [ "$code" = 1 ]
    head -n 1 "$tmp/err" | is_text "setup   this is not Debian: install these libraries yourself, then run make SETUP=no:"
    for package in $(sed 's/#.*//; /\[/d' packages.txt); do grep -qwF -- "$package" "$tmp/err"; done
}
