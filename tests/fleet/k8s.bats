# k8s.bats - the manifests of deploy/k8s and of `penstock run --emit k8s`: rendered, against schemas and our own rules.
#   K8S_MODULES=DIR      uses DIR/node_modules instead of installing (npm ci of tests/fleet/k8s takes a minute)
#   TRAINER_OPENAPI=FILE Kubeflow Trainer's OpenAPI file (its api/openapi-spec/swagger.json): checks JobSet and Trainer as well
# tests/fleet/rehearsal.bats runs the containers. Neither uses a cluster.

load ../support/job
load ../support/docs

overlays=(overlays/dev overlays/gpu overlays/large jobset trainer)

setup_file() {
    export checks=$BATS_FILE_TMPDIR/checks
    mkdir -p "$checks"
    cp "$BATS_TEST_DIRNAME"/k8s/*.mjs "$BATS_TEST_DIRNAME"/k8s/package*.json "$checks/"
    command -v npm >/dev/null || return 0
    if [ -n "${K8S_MODULES:-}" ]; then
        ln -s "$K8S_MODULES/node_modules" "$checks/node_modules"
    else
        (cd "$checks" && npm ci --ignore-scripts --no-audit --no-fund >npm.log 2>&1) || { cat "$checks/npm.log"; return 1; }
    fi
}

setup() { job_setup; }
teardown() { job_teardown; }

needs_node() {
    command -v node >/dev/null && command -v npm >/dev/null || skip "needs node and npm: apt install nodejs npm"
}

# Debian's kubectl 1.20 does not support replacements.
needs_kubectl() {
    command -v kubectl >/dev/null || skip "needs kubectl 1.27 or newer, which Debian has not"
    render overlays/dev "$tmp/dev.yaml" 2>"$tmp/kubectl.err" || ! grep -q 'cannot unmarshal\|unknown field "replacements"' "$tmp/kubectl.err" ||
        skip "needs kubectl 1.27 or newer: $(kubectl version --client --short 2>/dev/null | head -n 1)"
}

# Renders a folder of deploy/k8s with optional components:  render FOLDER FILE [COMPONENT...]
render() {
    local folder=$root/deploy/k8s/$1 file=$2 component
    if [ $# -gt 2 ]; then
        mkdir -p "$tmp/with"
        {
            printf 'apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n'
            echo "  - $(realpath --relative-to="$tmp/with" "$folder")"
            echo 'components:'
            for component in "${@:3}"; do
                echo "  - $(realpath --relative-to="$tmp/with" "$root/deploy/k8s/components/$component")"
            done
        } >"$tmp/with/kustomization.yaml"
        folder=$tmp/with
    fi
    kubectl kustomize "$folder" >"$file"
}

schema() { (cd "$checks" && node schema.mjs "$@"); }
policy() {
    [ -s "$tmp/settings.md" ] || pen docs settings.md >"$tmp/settings.md"
    (cd "$checks" && node policy.mjs "$tmp/settings.md" "$@")
}

@test "every overlay and form renders, and satisfies the schemas of Kubernetes and our rules" {
    needs_kubectl
    needs_node
    local overlay files=()
    for overlay in "${overlays[@]}"; do
        render "$overlay" "$tmp/${overlay//\//-}.yaml"
        [ -s "$tmp/${overlay//\//-}.yaml" ]
        files+=("$tmp/${overlay//\//-}.yaml")
    done
    schema "${files[@]}"
    policy "${files[@]}"
    schema "$root/deploy/k8s/trainer/train-job.yaml"
}

@test "every component works with the dev overlay, alone and all together" {
    needs_kubectl
    needs_node
    local component
    for component in kueue volcano monitoring offload; do
        render overlays/dev "$tmp/$component.yaml" "$component"
        ! diff -q "$tmp/dev.yaml" "$tmp/$component.yaml" >/dev/null || return 1
    done
    render overlays/dev "$tmp/all.yaml" kueue volcano monitoring offload
    schema "$tmp"/{kueue,volcano,monitoring,offload,all}.yaml
    policy "$tmp"/{kueue,volcano,monitoring,offload,all}.yaml
    grep -q 'kueue.x-k8s.io/queue-name: penstock' "$tmp/all.yaml"
    [ "$(grep -c 'schedulerName: volcano' "$tmp/all.yaml")" = 3 ]
    grep -q 'mountPath: /offload' "$tmp/all.yaml"
}

@test "each mistake planted into good manifests is found, by the rule meant for it" {
    needs_kubectl
    needs_node
    render overlays/dev "$tmp/full.yaml" monitoring volcano
    pen docs settings.md >"$tmp/settings.md"
    (cd "$checks" && node planted.mjs "$tmp/settings.md" "$tmp/full.yaml")
}

@test "values and fields that Kubernetes would refuse are refused by the schemas" {
    needs_kubectl
    needs_node
    local fault faults=('s/^  replicas: 2/  replica: 2/' 's/memory: 1Gi/memory: 1Gib/' 's/completionMode: Indexed/completionMode: Index/'
        's/serviceName:/servicename:/' 's/terminationGracePeriodSeconds:/terminationGraceSeconds:/' 's/maxUnavailable: 1/maxUnavailable: []/')
    for fault in "${faults[@]}"; do
        sed "$fault" "$tmp/dev.yaml" >"$tmp/fault.yaml"
        ! diff -q "$tmp/dev.yaml" "$tmp/fault.yaml" >/dev/null || { echo "$fault changes nothing"; return 1; }
        ! schema "$tmp/fault.yaml" || { echo "not found: $fault"; return 1; }
    done
    schema "$tmp/dev.yaml"
}

@test "JobSets and runtimes with misspelt fields are refused by Trainer's OpenAPI file" {
    needs_kubectl
    needs_node
    [ -n "${TRAINER_OPENAPI:-}" ] || skip "needs Trainer's OpenAPI file: TRAINER_OPENAPI=swagger.json"
    local file fault
    for file in jobset trainer; do
        render "$file" "$tmp/$file.yaml"
        schema "$tmp/$file.yaml"
        for fault in 's/replicatedJobs:/replicatedJob:/' 's/maxRestarts:/maxRestart:/' 's/enableServiceLinks:/enableServiceLink:/'; do
            sed "$fault" "$tmp/$file.yaml" >"$tmp/fault.yaml"
            ! schema "$tmp/fault.yaml" || { echo "not found in $file: $fault"; return 1; }
        done
    done
}

@test "the output of run --emit k8s satisfies schemas and rules, with servers and without" {
    needs_node
    pen run --emit k8s --image train:1 --nproc-per-node 3 --servers 2 --replicas 1 --store /store --job a train --lr 0.1 >"$tmp/a.yaml"
    pen run --emit k8s --image train:1 --nproc-per-node 4 --job b train >"$tmp/b.yaml"
    pen run --emit k8s --image train:1 --nproc-per-node 4 --mode zero2 --store /store --job c train >"$tmp/c.yaml"
    pen run --emit k8s --image train:1 --nproc-per-node 1:2:4 --servers 1:2:3 --lease-ms 20000 --job d train >"$tmp/d.yaml"
    for job in a b c d; do pen keygen --k8s $job-secret | sed '1i---' >>"$tmp/$job.yaml"; done
    schema "$tmp"/{a,b,c,d}.yaml
    policy "$tmp"/{a,b,c,d}.yaml
}

@test "the commands of the page work as written" {
    needs_kubectl
    follow deploy/k8s/README.md fleet k8s
}
