# world.bash - an isolated place for the containers of a test, which leaves nothing behind.
#
# DESIGN
#   podman writes bridges, firewall rules and mounts into its namespaces. So it runs in a "world": separate mount,
#   network, PID and IPC namespaces, held by one process that ends with its input, that is, with the test, however that
#   ends. The kernel then ends every process in there and removes mounts and networks. Images stay in $BUILD/fleet; a
#   world only reads them, and the next run builds on them.
#   crun refuses hybrid cgroups and limits above the hard ones: hence no cgroups (no limits of memory and processors) and
#   --ulimit.

# The first of these programs that is missing skips the test by name.
world_needs() {
    local program
    [ "$(id -u)" = 0 ] || skip "needs root: containers are made in namespaces of their own"
    for program in "$@"; do
        command -v "$program" >/dev/null || skip "needs $program: apt install $(world_package "$program")"
    done
}

world_package() {
    case $1 in
    podman) echo "podman crun netavark aardvark-dns" ;;
    *) echo "$1" ;;
    esac
}

# The folder of the images:  -> $fleet
world_store() {
    fleet=$(realpath "${BUILD:-$BATS_TEST_DIRNAME/../../build}")/fleet
    mkdir -p "$fleet"
}

# Runs a command that mounts, such as an image build, in a separate mount namespace.
world_apart() {
    unshare --mount --propagation private "$@"
}

# A bootstrapped Debian as a tar file:  -> $fleet/base.tar
world_base_tar() {
    [ -s "$fleet/base.tar" ] && return
    mmdebstrap --mode=root --variant=minbase bookworm "$fleet/base.part.tar" >"$fleet/base.log" 2>&1 ||
        { tail -n 5 "$fleet/base.log"; return 1; }
    mv "$fleet/base.part.tar" "$fleet/base.tar"
}

world_buildah() {
    mkdir -p "$fleet/tmp" # for caches of the Dockerfile's mounts
    TMPDIR=$fleet/tmp world_apart buildah --root "$fleet/containers" --runroot "$fleet/run" --storage-driver overlay "$@"
}

# The Dockerfile's base image, made here instead of fetched.
world_base_image() {
    world_base_tar || return
    world_buildah images --quiet debian:bookworm-slim 2>/dev/null | grep -q . && return
    mkdir -p "$fleet/base"
    printf 'FROM scratch\nADD base.tar /\nCMD ["/bin/bash"]\n' >"$fleet/base/Dockerfile"
    ln -f "$fleet/base.tar" "$fleet/base/base.tar"
    world_buildah bud --isolation chroot -t docker.io/library/debian:bookworm-slim "$fleet/base" >"$fleet/base.log" 2>&1
}

# Builds a target of the shipped Dockerfile unchanged:  world_image TARGET NAME [MORE_FLAGS...]
world_image() {
    local root; root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    world_base_image || { tail -n 20 "$fleet/base.log"; return 1; }
    world_buildah bud --isolation chroot --pull-never --layers --format docker --target "$1" -t "$2" "${@:3}" \
        -f "$root/deploy/docker/Dockerfile" "$root" >"$fleet/$1.log" 2>&1 || { tail -n 40 "$fleet/$1.log"; return 1; }
}

# Opens a world; call it from setup_file or the test.  -> $world, the process that holds it
world_open() {
    world_dir=$(mktemp -d "${BATS_TMPDIR:-/tmp}/world-XXXXXX")
    mkfifo "$world_dir/alive"
    unshare --fork --pid --mount-proc --mount --net --ipc --kill-child --propagation private \
        bash "$(dirname "${BASH_SOURCE[0]}")/world_init.bash" "$world_dir" <"$world_dir/alive" >"$world_dir/log" 2>&1 3>&- &
    world_unshare=$!
    exec {world_alive}>"$world_dir/alive"
    until [ -s "$world_dir/ready" ]; do
        kill -0 "$world_unshare" 2>/dev/null || { cat "$world_dir/log"; return 1; }
        sleep 0.05
    done
    world_podman="podman --cgroup-manager cgroupfs --runtime crun --network-backend netavark --storage-driver overlay"
    world_podman+=" --root $world_dir/containers --runroot /run/containers --storage-opt additionalimagestore=$fleet/containers"
    world=$(pgrep -P "$world_unshare")
    export world world_dir world_unshare world_alive world_podman fleet
}

# Ends every process in it.
world_close() {
    [ -n "${world_unshare:-}" ] || return 0
    exec {world_alive}>&-
    kill -9 "$world_unshare" 2>/dev/null || :
    wait "$world_unshare" 2>/dev/null || :
    rm -rf "$world_dir"
    unset world_unshare
}

# Runs a command in the world.
inside() {
    nsenter --target "$world" --mount --net --pid --ipc -- env -C "$PWD" "$@" 3>&- {world_alive}>&-
}

pod() {
    inside $world_podman "$@"
}

# Flags of every test container: no capabilities, and nothing writable except mounts.
hardened=(--pull=never --cgroups=disabled --no-healthcheck --ulimit nofile=1024:1024 --ulimit nproc=4096:4096 --user 10001:10001
    --cap-drop=all --security-opt no-new-privileges --read-only --read-only-tmpfs=false --tmpfs /tmp:rw,size=64m)
