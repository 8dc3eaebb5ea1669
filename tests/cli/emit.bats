# emit.bats - the output of `penstock run --emit k8s` and `penstock keygen --k8s`. tests/fleet/k8s.bats has the schemas.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

emit() {
    pen run --emit k8s "$@" >"$tmp/out" 2>"$tmp/err"
}

# The lines after line $2 of the manifest with kind $1 and name $3, flattened.
manifest() {
    awk -v kind="$1" -v name="$2" 'BEGIN {RS = "---\n"} $0 ~ "(^|\n)kind: " kind "\n" && $0 ~ "\n  name: " name "\n"' "$tmp/out"
}

@test "the manifests have the name, numbers, settings, image and program of the command line" {
    emit --image registry/train:1 --nproc-per-node 3 --nnodes 2 --master-port 29500 --servers 4 --replicas 1 --mode ps-ssp --lease-ms 20000 \
        --on-worker-loss wait --max-restarts 5 --job My_Job train --lr 0.1 "two words"
    local settings
    settings=$(manifest ConfigMap my-job-settings)
    for line in 'PENSTOCK_WORLD_SIZE: "6"' 'PET_NNODES: "2"' 'PET_NPROC_PER_NODE: "3"' 'PENSTOCK_SERVERS: "4"' 'PENSTOCK_REPLICAS: "1"' 'PENSTOCK_MODE: "ps-ssp"' \
        'PENSTOCK_LEASE_MS: "20000"' 'PENSTOCK_ON_WORKER_LOSS: "wait"' 'PENSTOCK_JOB: "my-job"'; do
        grep -qF "$line" <<<"$settings" || { echo "no $line in"; echo "$settings"; return 1; }
    done
    manifest StatefulSet my-job-server | grep -q '^  replicas: 4$'
    manifest Job my-job-worker | grep -qF 'command: ["tini", "-g", "--", "penstock", "run", "--max-restarts", "5", "train", "--lr", "0.1", "two words"]'
    manifest Job my-job-worker | grep -q '^  completions: 2$'
    manifest Job my-job-worker | grep -q '^  backoffLimitPerIndex: 5$'
    manifest Job my-job-worker | grep -qF 'limits: {cpu: "6", memory: "3Gi"'
    manifest Job my-job-worker | grep -qF 'emptyDir: {medium: Memory, sizeLimit: "768Mi"}'
    [ "$(grep -c 'image: "registry/train:1"' "$tmp/out")" = 3 ]
    ! grep -q 'penstock-[a-z]' "$tmp/out" || return 1
    is_text "penstock: run once before:  penstock keygen --k8s my-job-secret | kubectl apply -f -" <"$tmp/err"
    ! grep -q store "$tmp/out" || return 1
}

@test "a job without servers has no manifest for them, and the workers mount the store if there is one" {
    emit --image i:1 --nproc-per-node 2 --store /anywhere train
    [ -z "$(manifest StatefulSet train-server)" ]
    [ -z "$(manifest PodDisruptionBudget train-server)" ]
    [ -n "$(manifest StatefulSet train-scheduler)" ]
    manifest Job train-worker | grep -qF '{name: "store", persistentVolumeClaim: {claimName: "train-store"}}'
    manifest Job train-worker | grep -qF '{name: "PENSTOCK_STORE", value: "/store"}'
    [ -n "$(manifest PersistentVolumeClaim train-store)" ]
}

@test "with --device cuda the workers of a pod have a GPU each; a number is needed, because nobody can count elsewhere" {
    emit --image i:1 --nproc-per-node 4 --nnodes 2 --master-port 29500 --device cuda train
    [ "$(manifest Job train-worker | grep -c 'nvidia.com/gpu: "4"')" = 2 ]
    manifest ConfigMap train-settings | grep -qF 'PENSTOCK_DEVICE: "cuda"'
    local word
    for word in gpu auto; do
        run emit --image i:1 --nproc-per-node $word train
        [ "$status" = 2 ]
        is_text "penstock: --emit k8s cannot count the devices of another machine; set --nproc-per-node N" <"$tmp/err"
    done
}

@test "an elastic job has pods of MIN:N:MAX workers, whose launchers start more when it grows" {
    emit --image i:1 --nproc-per-node 1:2:4 --servers 2 train
    manifest ConfigMap train-settings | grep -qF 'PET_NPROC_PER_NODE: "1:2:4"'
    manifest ConfigMap train-settings | grep -qF 'PENSTOCK_WORLD_SIZE: "2"'
    manifest Job train-worker | grep -q '^  completions: 1$'
}

@test "manifests without an image, and targets other than Kubernetes, are refused with a sentence" {
    run emit --nproc-per-node 2 train
    [ "$status" = 2 ]
    is_text "penstock: --emit k8s needs --image NAME: an image with train, based on the penstock image" <"$tmp/err"
    run pen run --emit nomad train
    [ "$status" = 2 ]
    [[ $output == *"--emit is 'nomad', but must be k8s"* ]]
}

@test "keygen --k8s prints a Secret that penstock reads, a new secret each time, and refuses bad names" {
    pen keygen --k8s job-secret >"$tmp/one"
    pen keygen --k8s job-secret >"$tmp/two"
    ! diff -q "$tmp/one" "$tmp/two" || return 1
    grep -q '^kind: Secret$' "$tmp/one"
    grep -q '^  name: job-secret$' "$tmp/one"
    grep -qE '^  http-token: "[A-Za-z0-9_-]{48}"$' "$tmp/one"
    pen keygen --k8s | grep -qx '  name: penstock-secret'
    (umask 077; sed -n 's/^  secret: "\(.*\)"$/\1/p' "$tmp/one" >"$tmp/file")
    [[ $(pen keygen --show "$tmp/file") =~ ^[0-9a-f]{16}$ ]]
    run pen keygen --k8s Bad_Name
    [ "$status" = 2 ]
    [ "$output" = "penstock: invalid Secret name 'Bad_Name'; use lower-case letters, digits and dashes" ]
}
