# sentences.bats - what users read when something is wrong: a table of commands, sentences and exit codes.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# The command prints exactly this on stderr and nothing on stdout:  says CODE SENTENCE ARGS...
# If `run` refuses something, --print-config refuses it with the same words; also=no skips that check.
says() {
    code=0
    pen "${@:3}" >"$tmp/out" 2>"$tmp/err" || code=$?
    [ "$code" = "$1" ] || { echo "exit $code, not $1: penstock ${*:3}"; cat "$tmp/out" "$tmp/err"; return 1; }
    is_text "$2" <"$tmp/err" || { echo "by: penstock ${*:3}"; return 1; }
    [ ! -s "$tmp/out" ]
    [ "$3" != run ] || [[ " $* " == *" --print-config "* ]] || [ "${also:-yes}" = no ] ||
        says "$1" "$2" run --print-config "${@:4}"
}

# A program gets exactly this error, started by hand:  told SENTENCE PROGRAM...
told() {
    "${@:2}" >"$tmp/out" 2>"$tmp/err" || :
    grep -vE '^penstock: alone ' "$tmp/err" | is_text "$1" || { echo "by: ${*:2}"; return 1; }
}

# Runs a job that fails, with log files:  disagree WORDS OF RUN...
disagree() {
    rm -rf "$tmp/logs"
    pen run --job apart --log-dir "$tmp/logs" --tee 3 "$@" 2>"$tmp/err" || :
}

# The launcher reports the sentence once, and both ranks have it in their logs:  both_heard PROGRAM SENTENCE
both_heard() {
    local r
    for r in 0 1; do grep -vF 'penstock:' "$tmp/logs/apart/attempt_0/worker-$r.err" | is_text "$1: $2"; done
    [ "$(grep -cF "$2" "$tmp/err")" -eq 1 ]
    grep -qxF "penstock: $2" "$tmp/err"
}

# Rank $1 of the job reports exactly this:  heard RANK SENTENCE
heard() {
    grep -F "[$1] " "$tmp/err" | grep -vF 'penstock:' | is_text "[$1] $2"
}

# A port that another process listens on until the test ends:  -> $port
listen() {
    MARK=$mark "$penstock" scheduler --port 0 2>"$tmp/listener" 3>&- &
    listener=$!
    for _ in $(seq 200); do
        port=$(sed -n 's/.*listens at .*:\([0-9]*\)$/\1/p' "$tmp/listener")
        [ -n "$port" ] && return
        sleep 0.02
    done
    return 1
}

# ---- commands and flags --------------------------------------------------------------------------------------

@test "an unknown command, page or benchmark is answered with the nearest one" {
    says 2 "penstock: unknown command 'rnu'; did you mean 'run'?  (penstock --help)" rnu
    says 2 "penstock: unknown command '--stats'; did you mean 'status'?  (penstock --help)" --stats
    says 2 "penstock: unknown page 'setings.md'; did you mean 'settings.md'?" docs setings.md
    says 2 "penstock: unknown benchmark 'push-pul'; did you mean 'push-pull'?" bench push-pul
}

@test "an unknown flag is answered with the nearest one" {
    says 2 "penstock: unknown flag '--nproc-per-nod'; did you mean '--nproc-per-node'?  (penstock run --help)" \
        run --nproc_per_nod 2 true
    says 2 "penstock: unknown flag '--lease-s'; did you mean '--lease-ms'?  (penstock run --help)" run --lease-s=3 true
    says 2 "penstock: unknown flag '--default_ds.yml'; use --config default_ds.yml for a configuration file" \
        run --default_ds.yml true
    says 2 "penstock: unknown setting 'jsn'; did you mean 'json'?" status --jsn
    says 2 "penstock: unknown setting 'world'; did you mean 'world_size'?" scheduler --world 3
    says 2 "penstock: unknown setting 'sevrers'; did you mean 'servers'?" bench push-pull --sevrers 2
}

@test "impossible numbers of members or copies are refused before anything starts" {
    says 2 "penstock: --replicas 2 needs at least 3 servers, one for each copy, but got 2" \
        run --servers 2 --replicas 2 true
    says 2 "penstock: MIN:MAX needs servers, which keep the state for new workers, but got no --servers; add servers, or use fixed numbers" \
        run --nproc-per-node 2:4 true
    says 2 "penstock: --nnodes 3 and --nproc-per-node 2:4 contradict each other: several machines need a fixed number of workers each; use --nnodes MIN:MAX" \
        run --servers 2 --nnodes 3 --nproc-per-node 2:4 true
    says 2 "penstock: --on-worker-loss wait needs servers, which keep the state of a dead worker, but got no --servers; use continue or fail" \
        run --on-worker-loss wait true
    says 2 "penstock run: --nproc-per-node is '3:2', but must be MIN:MAX or MIN:N:MAX in rising order" run --nproc-per-node 3:2 true
    says 2 "penstock run: --servers is 'a', but must be a whole number from 0 to 10000" run --servers 2:a:3 true
}

@test "settings that are yes or no take their value after a blank in every command" {
    pen bench all-reduce --limit no --ranks 2 --bytes 4k --seconds 0.05 >"$tmp/bench"
    ! grep -q " of the limit" "$tmp/bench" || return 1
    pen run --shared-memory no --resume no --print-config true >"$tmp/config"
    tr -d ' \n' <"$tmp/config" | grep -q '"shared_memory":{"source":"flag","value":false}'
    ! grep -q '"resume"' "$tmp/config" || return 1
    pen run --shared-memory off true
    says 2 "penstock: resume is 'perhaps'; choose yes or no" run --resume=perhaps true
}

@test "penstock --help names every benchmark" {
    local bench
    pen --help | sed -n '/^  bench /,/^  keygen /p' >"$tmp/benches"
    pen bench --help | awk '/^  / {print $1}' >"$tmp/names"
    [ "$(wc -l <"$tmp/names")" -gt 10 ]
    while read -r bench; do grep -qE "[ ]$bench(,|\$)" "$tmp/benches" || { echo "$bench"; cat "$tmp/benches"; false; }; done <"$tmp/names"
}

@test "unexpected arguments are an error, not ignored" {
    says 2 "penstock: unexpected argument 'now'" status now
    says 2 "penstock: unknown snapshot command 'now'; did you mean 'list'?" snapshot now
    says 2 "penstock: unexpected argument 'now'" server now
    says 2 "penstock: unexpected argument 'now'" scheduler now
    says 2 "penstock: unexpected argument 'now'" doctor now
}

@test "a value out of range is an error that names the range" {
    says 2 "penstock run: --nproc-per-node is '0', but must be a whole number from 1 to 1024" run --nproc-per-node 0 true
    says 2 "penstock run: --servers is '2x', but must be a whole number from 0 to 10000" run --servers 2x true
    says 2 "penstock: lease_ms is 1, but must be between 200 and 3600000" run --lease-ms 1 true
    says 2 "penstock: bucket_bytes is 100, but must be 0 or at least 4096" run --bucket-bytes 100 true
    says 2 "penstock: lease_ms is 'long', which is not a whole number" run --lease-ms long true
    says 2 "penstock: master_port is 99999, but must be between 0 and 65535" status --master-port 99999
    says 2 "penstock: --lease-ms needs a value" run --lease-ms
    says 2 "penstock run: invalid output '7'; use 0 to 3, or LOCALRANK:0-3,..." run --tee 7 true
    says 2 "penstock run: --rdzv-backend is 'etcd', but must be c10d or static" run --rdzv_backend etcd true
    PET_RDZV_BACKEND=x says 2 "penstock run: PET_RDZV_BACKEND is 'x', but must be c10d or static" run true
    says 2 "penstock: --rdzv-endpoint is 'a:b', but must be HOST or HOST:PORT with a port from 0 to 65535" run --rdzv-endpoint a:b true
    says 2 "penstock: missing node rank (3 machines); set --node-rank I, 1 to 2, on all but no-such-host.invalid" \
        run --nnodes 3 --rdzv-backend c10d --rdzv-endpoint no-such-host.invalid:1 true
    says 2 "penstock run: --local-ranks-filter is 'a', but must be like 0,2" run --local-ranks-filter a true
}

@test "flags that contradict each other are named, both" {
    says 2 "penstock: --servers 0 and --mode ps-bsp contradict each other" run --servers 0 --mode ps-bsp true
    says 2 "penstock: --mode ps-bsp needs servers; set --servers 1 or more" run --mode ps-bsp true
    PENSTOCK_MODE=ps-bsp says 2 "penstock: mode=ps-bsp needs servers, and there are none: start the job with --servers 1, or use mode=allreduce" \
        run true
    says 2 "penstock: --servers 2 and --mode local contradict each other" run --servers 2 --mode local true
    says 2 "penstock: --mode local and 2 workers contradict each other" run --mode local --nproc-per-node 2 true
    says 2 "penstock: --node-rank 3 and --nnodes 2 contradict each other" run --node-rank 3 --nnodes 2 true
    says 2 "penstock: --nnodes 2 needs the same --master-port on all machines" run --nnodes 2 --master-port 0 true
    says 2 "penstock: --resume needs --store DIR" run --resume true
    says 2 "penstock: --resume and --fresh contradict each other" run --resume --fresh --store "$tmp" true
}

@test "run without a program prints its usage" {
    also=no says 2 "penstock run: missing PROG; use penstock run [FLAGS] PROG [ARGS]
Try \`penstock run --help' or \`penstock run --usage' for more information." run --servers 1
}

@test "an unknown setting in the environment is refused before anything starts" {
    PENSTOCK_LEASE_S=3 says 2 "penstock: unknown setting 'lease_s'; did you mean 'lease_ms'?  (from PENSTOCK_LEASE_S)" \
        run --servers 1 touch "$tmp/started"
    PENSTOCK_LEASE_MS=3 says 2 \
        "penstock: lease_ms is 3, but must be between 200 and 3600000  (from PENSTOCK_LEASE_MS)" run touch "$tmp/started"
    [ ! -e "$tmp/started" ]
    PENSTOCK_LEASE_S=3 says 2 "penstock: unknown setting 'lease_s'; did you mean 'lease_ms'?  (from PENSTOCK_LEASE_S)" \
        scheduler
    PENSTOCK_LEASE_S=3 told \
        "stepper: unknown setting 'lease_s'; did you mean 'lease_ms'?  (from PENSTOCK_LEASE_S)" "$programs/stepper"
}

# ---- help ----------------------------------------------------------------------------------------------------

# --help of a command ends with 0 and names these flags:  helps "COMMAND" FLAG...
helps() {
    local flag
    # shellcheck disable=SC2086
    pen $1 --help >"$tmp/help" 2>"$tmp/err"
    [ -s "$tmp/help" ]
    [ ! -s "$tmp/err" ]
    for flag in "${@:2}"; do
        grep -qE -- "(^|[ ,])$flag([ =,]|\$)" "$tmp/help" || { echo "penstock $1 --help does not name $flag"; return 1; }
    done
}

# Flags for the settings of $1 (worker, server, scheduler) from the generated page.
settings_of() {
    pen docs settings.md | sed -n "s/^| \`\(--[a-z_]*\)\` | [^|]* | \([a-z, ]*\b\)*$1\b.*/\1/p"
}

@test "--help of every command succeeds and names every flag" {
    # shellcheck disable=SC2046
    helps "" run config memory status snapshot bench doctor scheduler server docs version
    helps run --nproc-per-node --servers --mode --nnodes --node-rank --master-addr --master-port --standalone --job \
        --max-restarts --grace --store --resume --fresh --log-dir --redirects -r --tee -t --local-ranks-filter --no-prefix \
        --settings --config --ds-config --print-config --hidden-size --lr --weight-decay --warmup-steps --total-steps
    helps status --master-addr --master-port --timeout-ms --json
    helps snapshot --master-addr --master-port --timeout-ms --json
    helps doctor --master-addr --master-port
    helps bench push-pull optim
    helps "bench push-pull" --servers --ranks --bytes --keys --pairs --seconds --commit --limit --json
    helps "bench optim" --rule --elements --threads --simd --pairs --json
    helps config --num-processes --mixed-precision --zero-stage --fsdp-sharding-strategy
    helps memory --params --world --servers --mode --precision --optim --per-node --bucket --live --json
    helps docs settings.md status.md stats.md optim.md families.md member.dot
    for role in server scheduler; do
        [ "$(settings_of "$role" | wc -l)" -ge 5 ]
        helps "$role" $(settings_of "$role")
    done
    pen run --settings >"$tmp/settings"
    for role in worker server scheduler; do
        [ "$(settings_of "$role" | wc -l)" -ge 5 ]
        for flag in $(settings_of "$role"); do grep -qE "^ *$flag " "$tmp/settings" || { echo "$flag"; return 1; }; done
    done
}

@test "the version is that of the header" {
    local version
    version=$(sed -n 's/^#define PEN_VERSION_\(MAJOR\|MINOR\|PATCH\) *\([0-9]*\).*/\2/p' "$root/include/penstock.h" | paste -sd.)
    pen version | head -n 1 | grep -qE "^penstock ${version//./\\.}(  commit [0-9a-f]+)?\$"
    cmp <(pen version) <(pen --version)
}

# ---- schedulers ----------------------------------------------------------------------------------------------

@test "status without a job, and of an address without a scheduler" {
    says 1 "penstock: no job of \`penstock run\` is running here; set --master-addr and --master-port" status
    says 1 "penstock: no job of \`penstock run\` is running here; set --master-addr and --master-port" snapshot
    says 1 "penstock: no Penstock scheduler answers at 127.0.0.1:1; check that the job is running and the address is right" \
        status --master-port 1 --timeout-ms 300
    says 1 "penstock: no Penstock scheduler answers at 127.0.0.1:1; check that the job is running and the address is right" \
        snapshot --master-port 1 --timeout-ms 300
}

@test "a server without a scheduler says what it waits for, and at the end what to do; a stopped scheduler says so once" {
    says 1 "penstock: waiting for the scheduler at 127.0.0.1:1, up to 1.2 s
penstock: the scheduler at 127.0.0.1:1 has not answered for 1.2 s; start it there, or set its address with --master-addr and --master-port; \`penstock doctor --master-addr 127.0.0.1\` tests the connection" \
        server --master-port 1 --init-timeout-ms 1200
    listen
    kill -INT "$listener"
    code=0
    wait "$listener" || code=$?
    [ "$code" = 1 ]
    grep -v "listens at" "$tmp/listener" | is_text "penstock: the scheduler was stopped before the job had ended"
}

@test "status with two jobs lists both" {
    local name launchers=()
    for name in a b; do
        start "$name" sleep 60
        launchers+=("$launcher")
        for _ in $(seq 200); do [ -s "$tmp/penstock/$job-$name.json" ] && break; sleep 0.02; done
    done
    code=0
    pen status 2>"$tmp/err" || code=$?
    [ "$code" = 1 ]
    grep -qE "^penstock: 2 jobs are running; choose one with --job:(  $job-[ab] at 127\.0\.0\.1:[0-9]+){2}\$" "$tmp/err"
    kill "${launchers[@]}"
    wait "${launchers[@]}" || :
    nothing_is_left
}

# The doctor's findings about the scheduler.
doctor() {
    code=0
    pen doctor --master-addr "$1" --master-port "$2" >"$tmp/doctor" || code=$?
    sed -n '/^job$/,/^$/{/^  bad/p;/^ *->/p;/^  ok.*answers/p}' "$tmp/doctor"
}

@test "the doctor distinguishes a closed port, a stranger and a scheduler" {
    doctor 127.0.0.1 1 | is_text "  bad   scheduler       the scheduler: 127.0.0.1 (127.0.0.1) port 1: Connection refused
                        -> nothing listens there: check that the job has started, and the port"
    doctor no-such-host.invalid 1 | grep -qE "^  bad   scheduler +the scheduler: 'no-such-host.invalid' does not resolve: "
    listen
    doctor localhost "$port" | is_text "  ok    scheduler       answers at localhost:$port"
    kill -STOP "$listener" # the kernel still accepts its connections
    doctor 127.0.0.1 "$port" | is_text "  bad   scheduler       no Penstock scheduler answers at 127.0.0.1:$port; check that the job is running and the address is right
                        -> check that it is a scheduler of this version with the same secret (--secret-file)"
    [ "$(pen doctor >/dev/null; echo $?)" = 0 ]
    [ "$(pen doctor --master-addr 127.0.0.1 --master-port 1 >/dev/null; echo $?)" = 1 ]
}

# ---- programs ------------------------------------------------------------------------------------------------

# A rank of a job whose scheduler is elsewhere.
rank() {
    env RANK="$1" WORLD_SIZE="$2" MASTER_ADDR=127.0.0.1 MASTER_PORT="$3" PENSTOCK_SERVERS=1 "${@:4}"
}

@test "a program alone says so, once" {
    "$programs/stepper" steps=1 >"$tmp/out" 2>"$tmp/err"
    is_text "penstock: alone (no RANK in the environment; \`penstock run --nproc-per-node 2 ./stepper\` starts two)" <"$tmp/err"
}

@test "an incomplete environment is refused, and the missing variable is named" {
    local tail="a job needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, a program on its own none of them"
    told "stepper: RANK is set but WORLD_SIZE is not; $tail" env RANK=0 "$programs/stepper"
    told "stepper: WORLD_SIZE is set but RANK is not; $tail" env WORLD_SIZE=2 "$programs/stepper"
    told "stepper: RANK is set but MASTER_ADDR is not; $tail" env RANK=0 WORLD_SIZE=2 MASTER_PORT=1 "$programs/stepper"
    told "stepper: MASTER_ADDR is set but MASTER_PORT is not; $tail" \
        env RANK=0 WORLD_SIZE=2 MASTER_ADDR=a "$programs/stepper"
    told "stepper: rank 2 is outside a world of 2; ranks count from 0" rank 2 2 1 "$programs/stepper"
}

@test "a missing scheduler is distinguished from a stranger at its port" {
    told "stepper: nothing answers as a Penstock scheduler at 127.0.0.1:1 (connection refused: nothing listens there)" \
        rank 1 2 1 "$programs/stepper" init_timeout_ms=500
    listen
    kill -STOP "$listener"
    told "stepper: nothing answers as a Penstock scheduler at 127.0.0.1:$port (its socket is there, but it does not answer: is it stopped?)" \
        rank 1 2 "$port" "$programs/stepper" init_timeout_ms=500
    XDG_RUNTIME_DIR=$(mktemp -d "$tmp/other-XXXXXX") told "stepper: nothing answers as a Penstock scheduler at 127.0.0.1:$port (a process of another user or container has that port); set PENSTOCK_SECRET_FILE for all if it is this job's scheduler" \
        rank 1 2 "$port" "$programs/stepper" init_timeout_ms=500
}

@test "three of four ranks join: all three report the missing one" {
    MARK=$mark "$penstock" scheduler --world-size 4 --servers 1 --port 0 --init-timeout-ms 2000 2>"$tmp/scheduler" 3>&- &
    for _ in $(seq 200); do
        port=$(sed -n 's/.*listens at .*:\([0-9]*\)$/\1/p' "$tmp/scheduler")
        [ -n "$port" ] && break
        sleep 0.02
    done
    MARK=$mark "$penstock" server --master-port "$port" 2>"$tmp/server" 3>&- &
    for r in 2 0 1; do
        MARK=$mark rank "$r" 4 "$port" env PENSTOCK_SCHEDULER=external "$programs/stepper" 2>"$tmp/rank$r" 3>&- &
    done
    wait
    local sentence="1 of 4 workers has not joined after 2 s: rank 3.  Joined: 0 ($host) 1 ($host) 2 ($host)."
    for r in 0 1 2; do
        is_text "stepper: $sentence  \`penstock doctor --master-addr 127.0.0.1\` on its host tests the connection" <"$tmp/rank$r"
    done
    nothing_is_left
}

@test "ranks that disagree report both shapes and both ranks" {
    local shape="'fc1.weight' is f32[128,784] on rank 1 ($host) and f32[256,784] on rank 0 ($host); all ranks must register the same"
    disagree --servers 1 --nproc-per-node 2 "$programs/stepper" 1:rows=128
    both_heard stepper "$shape"

    disagree --servers 1 --nproc-per-node 2 "$programs/mistake" size
    for r in 0 1; do heard $r "mistake: all_reduce (call 1) differs: rank 1 has 9 f64 SUM 'loss', rank 0 has 8 f64 SUM 'loss'"; done

    disagree --nproc-per-node 2 sh -c '[ $RANK = 0 ] || export PENSTOCK_BUCKET_BYTES=8k; exec "$0" steps=1' "$programs/stepper"
    both_heard stepper "setting 'bucket_bytes' is '8192' on rank 1 ($host) and '0' on rank 0 ($host); all ranks must register the same"
}

@test "mistakes in a program are reported with their remedy" {
    told 'stepper: sgd needs a rate: say optim="sgd lr=0.1"' "$programs/stepper" optim=sgd
    told "mistake: pen_register: nothing can be added after pen_commit; the order is: register, then commit, then step" \
        "$programs/mistake" late
    told "mistake: pen_step_begin: pen_commit has not been called; the order is: register, then commit, then step" \
        "$programs/mistake" early
    told "mistake: pen_tensor_desc has garbage in reserved[0]; initialise it with {0}" "$programs/mistake" garbage
    told "mistake: step 0 has not seen 'fc2.bias' from this rank; call pen_ready() on it, or register it with PEN_ZERO_IF_UNUSED" \
        "$programs/mistake" unready
    told "mistake: unknown setting 'optm'; did you mean 'optim'?" "$programs/mistake" late optm=sgd
    told "mistake: lease_ms is 3, but must be between 200 and 3600000" "$programs/mistake" late lease_ms=3
}

@test "mistakes are reported alike with servers" {
    pen run --servers 1 "$programs/mistake" unready 2>"$tmp/err"
    heard 0 "mistake: step 0 has not seen 'fc2.bias' from this rank; call pen_ready() on it, or register it with PEN_ZERO_IF_UNUSED"
    pen run --servers 1 "$programs/mistake" clip clip=1 2>"$tmp/err"
    heard 0 "mistake: pen_push_pull('fc2.weight'): clipping needs all gradients before any update; use pen_ready() and pen_step_end()"
}

@test "a name of a job that others cannot be shown is refused where it is said" {
    run pen run --standalone --job $'caf\xe9' true
    [ "$status" = 2 ]
    [[ $output == "penstock: invalid job name 'caf"* ]]
    run env PENSTOCK_JOB=$'caf\xe9' "$penstock" scheduler
    [ "$status" = 1 ]
    [ "$output" = "penstock: job 'caf?' contains invalid UTF-8 or control characters (shown as '?'); choose another name" ]
    run env PENSTOCK_JOB=$'caf\xe9' "$programs/stepper" steps=1
    [ "$status" != 0 ]
    [[ $output == *"job 'caf?' contains invalid UTF-8"* ]]
}

@test "every role reports a limit of open files that is too low for any job, and no other member is blamed" {
    local sentence="the limit of open files is 32, but a process of a job needs at least 64 (connections are files); "
    sentence+="raise it: ulimit -n 1024, or LimitNOFILE= of a systemd unit"
    run bash -c "ulimit -n 32; '$penstock' run --standalone --nproc-per-node 2 true"
    [ "$status" = 1 ]
    [ "$output" = "penstock: $sentence" ]
    run bash -c "ulimit -n 32; RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 '$programs/stepper' steps=1"
    [ "$status" != 0 ]
    [[ $output == *"$sentence"* ]]
    run bash -c "ulimit -Sn 32; ulimit -Hn 32; '$penstock' scheduler --world-size 1"
    [ "$status" != 0 ]
    [[ $output == *"$sentence"* ]]
    run bash -c "ulimit -n 32; '$penstock' server --master-port 1"
    [ "$status" != 0 ]
    [[ $output == *"$sentence"* ]]
}
