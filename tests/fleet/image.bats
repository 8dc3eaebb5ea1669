# image.bats - deploy/docker: the image is built as shipped, and a fleet of its containers trains the demo.
#
# Names are those of Kubernetes' headless services (ps-0.ps), served by the DNS of podman's network.

load support/world

setup_file() {
    world_needs buildah mmdebstrap podman
    world_store
    world_image runtime penstock:1.0.0
    world_image demo penstock-demo:1.0.0
    world_open
    pod network create --subnet 10.79.0.0/24 fleet
    "$(realpath "$BUILD")/bin/penstock" keygen "$world_dir/secret"
    chown 10001:10001 "$world_dir/secret"
}

teardown_file() {
    world_close
}

setup() {
    BUILD=${BUILD:-$BATS_TEST_DIRNAME/../../build}
    world_store
    common=(--network fleet "${hardened[@]}" --volume "$world_dir/secret:/etc/penstock/secret:ro"
        --env PENSTOCK_SECRET_FILE=/etc/penstock/secret --env PENSTOCK_SERVERS=2 --env PENSTOCK_WORLD_SIZE=2
        --env PENSTOCK_REPLICAS=1 --env PENSTOCK_MASTER_ADDR=scheduler --env PENSTOCK_MASTER_PORT=29500)
}

teardown() {
    pod rm --force --all --time 0 >/dev/null
}

start_scheduler() {
    pod run --detach --name scheduler --hostname scheduler "${common[@]}" penstock:1.0.0 scheduler --host 0.0.0.0 --port 29500 "$@"
}

# start_server RANK ADDRESS MORE...  (ADDRESS: its last byte; no two tests share one, because neighbours cache them)
start_server() {
    pod run --detach --name "ps-$1" --hostname "ps-$1" --ip "10.79.0.$2" --network-alias "ps-$1.ps" "${common[@]}" penstock:1.0.0 server \
        --rank "$1" --host "ps-$1.ps" "${@:3}"
}

# start_worker RANK MORE...
start_worker() {
    pod run --detach --name "worker-$1" --hostname "worker-$1" --env RANK="$1" --env PENSTOCK_SCHEDULER=external \
        --env OMP_NUM_THREADS=1 --entrypoint tini "${common[@]}" penstock-demo:1.0.0 -g -- fashion_mnist --mode ps-bsp --epochs 1 --json "${@:2}"
}

# Waits at most $2 seconds until container $1 has ended; prints and checks only its exit code, which must be 0.
ends_well() {
    local code
    code=$(inside timeout "$2" $world_podman wait "$1") ||
        { echo "$1 still runs after $2 s"; logs; return 1; }
    [ "$code" = 0 ] || { echo "$1 ended with $code"; logs; return 1; }
}

logs() {
    local name
    for name in $(pod ps --all --format '{{.Names}}'); do
        echo "--- $name"
        pod logs "$name" 2>&1 | tail -n 30
    done
}

# Waits for a line that matches $2 in the log of container $1.
says() {
    local _
    for _ in $(seq 300); do
        pod logs "$1" 2>&1 | grep -qE "$2" && return
        sleep 0.2
    done
    logs
    return 1
}

result() {
    pod logs worker-0 2>/dev/null | sed -n "s/.*\"$1\": *\"\{0,1\}\([^,\"}]*\).*/\1/p"
}

@test "the image has penstock and no compiler, and runs it as user 10001 without a writable path" {
    pod run --rm "${hardened[@]}" penstock:1.0.0 version | grep -q '^penstock 1.0.0'
    run pod run --rm "${hardened[@]}" --entrypoint bash penstock:1.0.0 -c 'id -u; touch /etc/x; touch /x; touch /tmp/x && echo writable
        grep -E "^(CapEff|NoNewPrivs|Seccomp):" /proc/self/status; command -v gcc cc make'
    echo "$output"
    [ "${lines[0]}" = 10001 ]
    [ "$(grep -c 'Read-only file system' <<<"$output")" = 2 ]
    grep -qx writable <<<"$output"
    grep -qE '^CapEff:.0{16}$' <<<"$output"
    grep -qE '^NoNewPrivs:.1$' <<<"$output"
    grep -qE '^Seccomp:.2$' <<<"$output"
    ! grep -qE '/(gcc|cc|make)$' <<<"$output" || return 1
    [ "$(pod inspect --type image --format '{{.Config.User}} {{index .Config.Entrypoint 0}}' penstock:1.0.0)" = "10001:10001 penstock" ]
    echo "# sizes: $(pod images --format '{{.Repository}} {{.Size}};' | tr '\n' ' ')" >&3
}

@test "one scheduler, two servers and two workers in containers train the demo, encrypted, and find each other by name" {
    start_worker 1
    start_worker 0
    start_server 0 100
    start_server 1 101
    start_scheduler
    ends_well worker-0 120
    ends_well worker-1 30
    for name in ps-0 ps-1 scheduler; do ends_well "$name" 30; done
    echo "# test accuracy $(result test_accuracy) after one epoch, parameters $(result params_crc32c)" >&3
    [ "$(result test_accuracy | tr -d .)" -gt 08000 ] || { logs; false; }
    result params_crc32c >"$fleet/undisturbed"
}

@test "a server's container is killed and returns with another address: the same parameters to the last bit" {
    start_scheduler
    start_server 0 110
    start_server 1 111
    start_worker 0 --slow-ms 40
    start_worker 1
    says worker-0 '^.*(step|epoch|loss)'
    pod kill --signal KILL ps-1
    pod rm ps-1
    start_server 1 112
    ends_well worker-0 120
    ends_well worker-1 30
    [ "$(result params_crc32c)" = "$(cat "$fleet/undisturbed")" ] || { logs; false; }
}

@test "SIGTERM ends scheduler, server and worker at once" {
    start_scheduler
    start_server 0 120
    start_worker 0
    says scheduler 'listens at'
    for name in worker-0 ps-0 scheduler; do pod stop --time 20 "$name"; done
    logs
    [ "$(pod inspect --format '{{.State.ExitCode}}' worker-0)" = 143 ]
    [ "$(pod inspect --format '{{.State.ExitCode}}' ps-0)" = 0 ]
    [ "$(pod inspect --format '{{.State.ExitCode}}' scheduler)" = 1 ] # stopped before the job had ended, and says so
    pod logs scheduler 2>&1 | grep -q 'the scheduler was stopped before the job had ended'
}

@test "the health check asks a process that serves one" {
    start_scheduler --http 127.0.0.1:9464
    says scheduler 'listens at'
    pod exec --env PENSTOCK_HTTP=127.0.0.1:9464 scheduler penstock-healthcheck
    ! pod exec --env PENSTOCK_HTTP=127.0.0.1:9465 scheduler penstock-healthcheck || return 1
    pod exec scheduler penstock-healthcheck
}

@test "the commands of deploy/docker/README.md work, with buildah and podman as docker" {
    load ../support/job
    load ../support/docs
    job_setup
    PATH=$BATS_TEST_DIRNAME/support:$PATH LIMIT=900 follow deploy/docker/README.md fleet image
    job_teardown
}
