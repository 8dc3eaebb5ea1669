# deb.bats - the Debian packages: built, checked by lintian, installed into a bare Debian 12, and used there.

load support/world

setup_file() {
    load support/world
    export root deb_build
    root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    deb_build=$(realpath "${BUILD:-$root/build}")
    [ "$(id -u)" = 0 ] && command -v dh >/dev/null && command -v lintian >/dev/null && command -v mmdebstrap >/dev/null || return 0
    "$root/scripts/deb.sh" "$deb_build" >"$BATS_FILE_TMPDIR/deb.log" 2>&1 || { cat "$BATS_FILE_TMPDIR/deb.log"; return 1; }
}

setup() {
    command -v dh >/dev/null || skip "needs debhelper: apt install debhelper"
    world_needs lintian mmdebstrap
    tmp=$(mktemp -d "${BATS_TMPDIR:-/tmp}/deb-XXXXXX")
}

teardown() {
    [ -z "${tmp:-}" ] || rm -rf "$tmp" # the mounts ended with the namespace
}

debs() {
    ls "$deb_build"/deb/*.deb | grep -v dbgsym
}

@test "make deb makes four packages without a complaint from lintian" {
    [ "$(debs | xargs -n1 basename | cut -d_ -f1 | sort | tr '\n' ' ')" = "libpenstock-dev libpenstock1 penstock python3-penstock " ]
    # The distributor sets the maintainer of the packages (DEBEMAIL), so only that is not checked.
    lintian --allow-root --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog --fail-on error,warning --tag-display-limit 0 "$deb_build"/deb/*.changes >"$tmp/lintian" || { cat "$tmp/lintian"; false; }
    cat "$tmp/lintian"
    ! grep -E '^[EW]: ' "$tmp/lintian" || false
}

@test "mandoc and man accept the manual pages" {
    local page
    command -v mandoc >/dev/null || skip "needs mandoc: apt install mandoc"
    dpkg-deb -x "$deb_build"/deb/penstock_*.deb "$tmp/here"
    [ "$(ls "$tmp"/here/usr/share/man/man1/*.1.gz | wc -l)" -ge 18 ]
    for page in "$tmp"/here/usr/share/man/man[17]/*.gz; do
        gunzip "$page"
        mandoc -T lint -W warning "${page%.gz}"
        [ -z "$(LC_ALL=C.UTF-8 MANROFFSEQ= man --warnings -E UTF-8 -l -Tutf8 -Z "${page%.gz}" 2>&1 >/dev/null)" ]
    done
}

# Runs a command in the bare root as root.
in_root() {
    unshare --mount --pid --fork --kill-child --propagation private bash -eu -c '
        mount -t proc proc "$0/proc"
        mount --rbind /dev "$0/dev"
        mount -t tmpfs tmpfs "$0/dev/shm"
        exec env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb DEBIAN_FRONTEND=noninteractive chroot "$0" bash -eu -c "$1"' \
        "$tmp/bare" "$1" 3>&-
}

@test "they install in a bare Debian 12, and the program of the README builds and trains, alone and with a server" {
    world_store
    world_base_tar
    mkdir "$tmp/bare"
    tar -xf "$fleet/base.tar" -C "$tmp/bare"
    mkdir "$tmp/bare/debs"
    cp $(debs) "$tmp/bare/debs"
    cp -L /etc/resolv.conf "$tmp/bare/etc/resolv.conf"
    sed -n '/<!-- linear.c -->/,/<!-- \/linear.c -->/p' "$root/README.md" | sed '1,2d' | sed '/^```$/,$d' >"$tmp/bare/linear.c"
    in_root "apt-get update && apt-get install -y --no-install-recommends /debs/*.deb gcc libc6-dev pkg-config" >"$tmp/apt" 2>&1 ||
        { tail -n 30 "$tmp/apt"; false; }
    in_root 'cd /tmp && cc -std=c99 -Wall -Werror -o linear /linear.c $(pkg-config --cflags --libs penstock) && ./linear >alone &&
        penstock run --no-prefix --nproc-per-node 2 --servers 1 ./linear >two && cmp alone two && cat two &&
        penstock doctor && penstock version' >"$tmp/out" 2>&1 || { cat "$tmp/out"; false; }
    cat "$tmp/out"
    grep -q '^step 19   loss 0\.' "$tmp/out"
    in_root '. /usr/share/bash-completion/completions/penstock && complete -p penstock' | grep -qx 'complete -F _penstock penstock'
    in_root 'gcc -fsyntax-only /usr/share/doc/libpenstock-dev/examples/linear.c'
    in_root 'apt-get remove -y --purge penstock libpenstock1 libpenstock-dev' >"$tmp/apt" 2>&1
    [ -z "$(cd "$tmp/bare" && find usr -name '*penstock*')" ]
}
