#!/usr/bin/env bash
# install.sh - what `make python` installs, with sudo where it must:  scripts/install.sh BUILD_DIR PREFIX
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
prefix=$2
sudo=""
mkdir -p "$prefix" 2>/dev/null || :
if [ ! -w "$prefix" ]; then
    command -v sudo >/dev/null || { echo "install no right to write $prefix; run it as root, or give PREFIX=DIR" >&2; exit 1; }
    sudo=sudo
fi
$sudo cmake --install "$build" >"$build/install.log" || { tail -n 5 "$build/install.log" >&2; exit 1; }
[ "$prefix" != /usr/local ] || $sudo ldconfig # programs in C find the library by its name
echo "install $prefix: the command penstock, libpenstock, the Python package"
