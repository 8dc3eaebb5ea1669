# rehearsal.bats - every overlay of deploy/k8s is rehearsed with containers (rehearse.py documents the limits).
#
# In each, the scheduler must have seen the workers of a pod read each other's memory.
#
# Test machines are small: large and gpu are scaled down; each difference to the overlay is printed and listed here.

load support/world

setup_file() {
    world_needs buildah mmdebstrap podman kubectl
    python3 -c 'import yaml' 2>/dev/null || skip "needs python3-yaml: apt install python3-yaml"
    kubectl kustomize "$BATS_TEST_DIRNAME/../../deploy/k8s/overlays/dev" >/dev/null 2>&1 ||
        skip "needs a kubectl that renders today's kustomizations (1.21 or later)"
    world_store
    world_image runtime penstock:1.0.0
    world_image demo penstock-demo:1.0.0
}

setup() {
    BUILD=${BUILD:-$BATS_TEST_DIRNAME/../../build}
    world_store
    penstock=$(realpath "$BUILD")/bin/penstock
    world_open
}

teardown() {
    world_close
}

# Renders an overlay and rehearses it:  rehearse FOLDER FLAGS_OF_REHEARSE...
rehearse() {
    local dir=$world_dir/rehearsal code=0
    mkdir "$dir"
    kubectl kustomize "$BATS_TEST_DIRNAME/../../deploy/k8s/$1" >"$world_dir/fleet.yaml"
    "$penstock" keygen --k8s >"$world_dir/secret.yaml"
    inside python3 "$BATS_TEST_DIRNAME/rehearse.py" --dir "$dir" "${@:2}" \
        --podman "$world_podman" \
        "$world_dir/fleet.yaml" "$world_dir/secret.yaml" >"$fleet/rehearsal-$BATS_TEST_NUMBER.log" 2>&1 || code=$?
    cat "$fleet/rehearsal-$BATS_TEST_NUMBER.log"
    [ "$code" = 0 ]
    grep -q '^rehearse: passed$' "$fleet/rehearsal-$BATS_TEST_NUMBER.log"
    grep -q 'ok  *test accuracy 0\.8' "$fleet/rehearsal-$BATS_TEST_NUMBER.log"
}

# Long enough for the disturbances: one rank is slow.
slow=(--more "Job/penstock-worker=--slow-ms 150")

@test "overlay dev, one pod of two workers that share memory: starts in any order, survives a lost server and a rolling restart, completes, and drains" {
    rehearse overlays/dev "${slow[@]}" --replace penstock-server-1 --restart penstock-server-0
}

@test "overlay gpu, without GPUs and with 2 of 4 workers in each pod: the same" {
    rehearse overlays/gpu "${slow[@]}" --replace penstock-server-1 --restart penstock-server-0 \
        --setting PET_NPROC_PER_NODE=2 --setting PENSTOCK_WORLD_SIZE=4
}

@test "overlay large, with 3 of 8 servers and 2 of 4 pods of 2 workers: the same" {
    rehearse overlays/large "${slow[@]}" --replace penstock-server-2 --restart penstock-server-1 \
        --scale StatefulSet/penstock-server=3 --setting PENSTOCK_SERVERS=3 --scale Job/penstock-worker=2 \
        --setting PET_NNODES=2 --setting PET_NPROC_PER_NODE=2 --setting PENSTOCK_WORLD_SIZE=4
}
