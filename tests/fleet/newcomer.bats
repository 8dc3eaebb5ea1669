# newcomer.bats - the README's promise to a user who has only a bare Debian 12.
#
# The root is bootstrapped with essential packages only and gets a copy of this checkout; the commands are the README's
# first lines. Mounts and processes are in namespaces that end with the test.

load support/world

setup() {
    world_needs mmdebstrap
    world_store
    root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    tmp=$(mktemp -d "${BATS_TMPDIR:-/tmp}/newcomer-XXXXXX")
}

teardown() {
    rm -rf "$tmp" # the mounts ended with the namespace
}

# A clean root with the tree in /penstock:  -> $tmp/debian
clean_root() {
    world_base_tar
    mkdir "$tmp/debian"
    tar -xf "$fleet/base.tar" -C "$tmp/debian"
    mkdir "$tmp/debian/penstock"
    (cd "$root" && git ls-files -co --exclude-standard -z | tar -c --null --ignore-failed-read -T -) | tar -x -C "$tmp/debian/penstock"
    cp -L /etc/resolv.conf "$tmp/debian/etc/resolv.conf"
}

# Runs a command in that root as root, with the PATH of a login.
as_newcomer() {
    unshare --mount --pid --fork --kill-child --propagation private bash -eu -c '
        mount -t proc proc "$0/proc"
        mount --rbind /dev "$0/dev"
        mount -t tmpfs tmpfs "$0/dev/shm"
        exec env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb chroot "$0" bash -eu -c "$1"' "$tmp/debian" "$1" 3>&-
}

# The commands that the README gives for a fresh Debian 12, without their comments.
first_commands() {
    sed -n '/^On a fresh Debian 12/p' "$root/README.md" | grep -o '`apt-get [^`]*`' | tr -d '`'
    echo "cd penstock"
}

@test "on a bare Debian 12 the README's first commands end with a trained model" {
    local begun=$SECONDS
    clean_root
    { first_commands; grep -m1 -oE '^make demo' "$root/README.md"; } >"$tmp/commands"
    cat "$tmp/commands"
    as_newcomer "export DEBIAN_FRONTEND=noninteractive; cd /; $(cat "$tmp/commands")" >"$tmp/out" 2>&1 </dev/null ||
        { tail -n 40 "$tmp/out"; false; }
    cat "$tmp/out"
    grep -qE '^ok +test accuracy 0\.8[89]' "$tmp/out"
    [ -s "$tmp/debian/penstock/build/demo/loss.png" ]
    echo "# $(grep -E '^(setup +done|build |ok )' "$tmp/out" | tr -s ' ' | paste -sd ';'); all of it $((SECONDS - begun)) s" >&3
}

# The two commands for PyTorch, which the guide has too; the second in a new shell.
@test "on a bare Debian 12 one command installs PyTorch and Penstock, and one trains Fashion-MNIST with servers" {
    local begun=$SECONDS
    clean_root
    { first_commands; grep -m1 -oE '^make python' "$root/README.md"; } >"$tmp/install"
    { echo "cd penstock"; grep -m1 -E '^penstock run .*fashion_mnist.py' "$root/README.md"; } >"$tmp/train"
    for line in "make python" "$(tail -n 1 "$tmp/train")"; do grep -qxF "$line" "$root/docs/guides/from-pytorch.md"; done
    as_newcomer "export DEBIAN_FRONTEND=noninteractive; cd /; $(cat "$tmp/install")" >"$tmp/out" 2>&1 </dev/null ||
        { tail -n 40 "$tmp/out"; false; }
    cat "$tmp/out"
    local installed=$SECONDS
    as_newcomer "cd /; $(cat "$tmp/train")" >"$tmp/out" 2>&1 </dev/null || { tail -n 40 "$tmp/out"; false; }
    cat "$tmp/out"
    grep -qE '^\[0\] epoch 1   accuracy 0\.8[0-9]+$' "$tmp/out"
    echo "# installed in $((installed - begun)) s, trained in $((SECONDS - installed)) s" >&3
}
