# sentences.bats - what the command and the SDK say when something is wrong, word for word, and with which exit code.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# The command ends with code $1 and says exactly $2 on stderr, nothing on stdout:  says CODE TEXT COMMAND...
says() {
    code=0
    MARK=$mark timeout --foreground -k 5 30 "${@:3}" >"$tmp/out" 2>"$tmp/err" </dev/null 3>&- || code=$?
    [ "$code" = "$1" ] || { echo "exit $code, not $1"; cat "$tmp/out" "$tmp/err"; return 1; }
    is_text "$2" <"$tmp/err"
    [ ! -s "$tmp/out" ]
}

# ---- help --------------------------------------------------------------------------------------------------------

@test "--help of everything exits with 0 and says something on stdout only" {
    local words
    for words in "" run scheduler server status snapshot bench "bench push-pull" "bench optim" doctor docs version; do
        "$penstock" $words --help >"$tmp/out" 2>"$tmp/err" || { echo "penstock $words --help"; cat "$tmp/err"; false; }
        [ -s "$tmp/out" ]
        [ ! -s "$tmp/err" ]
    done
    "$examples/fashion_mnist" --help | grep -q -- --loss-log
}

@test "the help of the command names every subcommand, each of which exists" {
    local name
    "$penstock" --help | sed -n 's/^  \([a-z]*\) .*/\1/p' >"$tmp/names"
    [ "$(wc -l <"$tmp/names")" -ge 9 ]
    while read -r name; do "$penstock" "$name" --help >"$tmp/out"; done <"$tmp/names"
}

@test "no command at all is a usage error that shows them" {
    code=0
    "$penstock" >"$tmp/out" 2>"$tmp/err" || code=$?
    [ "$code" = 2 ]
    grep -q "usage: penstock COMMAND" "$tmp/err"
}

@test "version prints ours" {
    "$penstock" version | grep -qE '^penstock [0-9]+\.[0-9]+\.[0-9]+'
    [ "$("$penstock" --version)" = "$("$penstock" version)" ]
}

# ---- typing errors ------------------------------------------------------------------------------------------------

@test "an unknown command, flag, benchmark or setting is answered with the nearest known one" {
    says 2 "penstock: unknown command 'rum'; did you mean 'run'?  (penstock --help)" "$penstock" rum
    says 2 "penstock: unknown flag '--nproc-per-nod'; did you mean '--nproc-per-node'?  (penstock run --help)" \
        "$penstock" run --nproc-per-nod 2 true
    says 2 "penstock: unknown flag '--lease-s'; did you mean '--lease-ms'?  (penstock run --help)" "$penstock" run --lease-s 3 true
    says 2 "penstock: unknown benchmark 'optm'; did you mean 'optim'?" "$penstock" bench optm
    says 2 "penstock: unknown setting 'master_prt'; did you mean 'master_port'?" "$penstock" server --master-prt 3
}

@test "an unknown setting in the environment is named with its variable" {
    local sentence="unknown setting 'lease_s'; did you mean 'lease_ms'?  (from PENSTOCK_LEASE_S)"
    export PENSTOCK_LEASE_S=3
    says 2 "penstock: $sentence" "$penstock" run true
    says 2 "penstock: $sentence" "$penstock" status
    says 2 "penstock: $sentence" "$penstock" server
    says 1 "$sentence" "$examples/linear"
}

@test "values out of range are refused with the range" {
    says 2 "penstock: lease_ms is 3, but must be between 200 and 3600000" "$penstock" run --lease-ms 3 true
    says 2 "penstock: clip is 'tight', which is not a number" "$penstock" run --clip tight true
    says 2 "penstock: mode is 'allreduce'; choose one of auto, local, ps-bsp, ps-ssp, ps-async" "$penstock" run --mode allreduce true
    says 2 "penstock run: --servers is 'x', but must be a whole number from 0 to 10000" "$penstock" run --servers x true
}

# ---- contradictions ------------------------------------------------------------------------------------------------

@test "flags that contradict each other are refused before anything starts" {
    says 2 "penstock: --servers 0 and --mode ps-bsp contradict each other" "$penstock" run --servers 0 --mode ps-bsp true
    says 2 "penstock: --mode local and 2 workers contradict each other" "$penstock" run --mode local --nproc-per-node 2 true
    says 2 "penstock: --node-rank 3 and --nnodes 1 contradict each other" "$penstock" run --node-rank 3 true
    says 2 "penstock: --nnodes 2 needs a --master-port that all machines know" "$penstock" run --nnodes 2 --master-port 0 true
    says 2 "penstock: --resume and --fresh contradict each other" "$penstock" run --resume --fresh --store "$tmp" true
    says 2 "penstock: --resume needs --store DIR" "$penstock" run --resume true
}

@test "settings of a program that contradict each other are refused by the SDK" {
    says 1 "--servers 0 and --mode ps-bsp contradict each other" env PENSTOCK_MODE=ps-bsp PENSTOCK_SERVERS=0 "$examples/linear"
    says 1 "commit=eager and clip=1 contradict each other: clipping needs all gradients before any update" \
        env PENSTOCK_COMMIT=eager PENSTOCK_CLIP=1 "$examples/linear"
    says 1 "resume and fresh contradict each other" env PENSTOCK_RESUME=yes PENSTOCK_FRESH=yes "$examples/linear"
}

@test "half a launcher's environment is refused and the missing half named" {
    says 1 "RANK is set but WORLD_SIZE is not; a job needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, a program on its own none of them" \
        env RANK=0 "$examples/linear"
    says 1 "rank 4 is outside a world of 2; ranks count from 0" \
        env RANK=4 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 "$examples/linear"
}

# ---- the way to a job -----------------------------------------------------------------------------------------------

@test "an address where nothing listens is told from one where something else does" {
    export RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 PENSTOCK_SERVERS=1 PENSTOCK_INIT_TIMEOUT_MS=400
    says 1 "nothing answers as a Penstock scheduler at 127.0.0.1:1 (connection refused: nothing listens there)" "$examples/linear"
    unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT PENSTOCK_SERVERS
    says 1 "penstock: the scheduler at 127.0.0.1:1 has not answered for 0.4 s; is it running, and are MASTER_ADDR and MASTER_PORT right?" \
        "$penstock" server --master-addr 127.0.0.1 --master-port 1
    says 1 "penstock: nothing answers as a Penstock scheduler at 127.0.0.1:1; is the job running, and the address right?" \
        env -u PENSTOCK_INIT_TIMEOUT_MS "$penstock" status --master-port 1 --timeout-ms 300
}

@test "a worker that never comes is named, with those who did" {
    pen run --standalone --no-prefix --servers 1 --nproc-per-node 3 --init-timeout-ms 1500 --grace 1 --job "$job" \
        bash -c '[ $RANK = 1 ] && exec sleep 30; exec "$0"' "$programs/stepper" >"$tmp/out" 2>"$tmp/err" || code=$?
    cat "$tmp/err"
    [ "$code" != 0 ]
    grep -qxF "stepper: 1 of 3 workers has not joined after 1 s: rank 1.  Joined: 0 ($host) 2 ($host).  \`penstock doctor --master-addr 127.0.0.1\` on its host tests the way" "$tmp/err"
    nothing_is_left
}

@test "status with no job, with one, and with two" {
    says 1 "penstock: no job of \`penstock run\` is running here; name one with --master-addr and --master-port" "$penstock" status
    start one --servers 1 --nproc-per-node 2 "$programs/stepper" steps=100000 pause_ms=20
    local one=$launcher
    wait_for_step 2
    pen status >"$tmp/table"
    cat "$tmp/table"
    grep -qE "^job +$job-one +training +mode ps-bsp +step [0-9]+ " "$tmp/table"
    [ "$(grep -cE '^(worker|server) +[0-9]+ ' "$tmp/table")" = 3 ]
    pen status --json | grep -qE '^\{"job":"'"$job"'-one","phase":"training","mode":"ps-bsp",.*"members":\[\{"role":"worker","rank":0,.*\}\]'

    start two --servers 1 --nproc-per-node 1 "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 2
    code=0
    pen status >"$tmp/out" 2>"$tmp/err" || code=$?
    [ "$code" = 1 ]
    grep -qE "^penstock: 2 jobs are running; choose with --master-port:.*  $job-(one|two) at 127.0.0.1:[0-9]+" "$tmp/err"
    kill "$launcher"
    wait_for_end 8
    launcher=$one
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}

@test "doctor looks at this machine, and finds a scheduler or says that none answers" {
    code=0
    "$penstock" doctor >"$tmp/out" 2>&1 || code=$?
    cat "$tmp/out"
    [ "$code" -le 1 ]
    grep -qE '^ok +processor +[0-9]+ cores; inner loops: .*scalar' "$tmp/out"
    code=0
    "$penstock" doctor --master-addr 127.0.0.1 --master-port 1 >"$tmp/out" 2>&1 || code=$?
    [ "$code" = 1 ]
    grep -qE '^look +dials +127\.0\.0\.1:1: Connection refused \(nothing listens there\)$' "$tmp/out"
    start job --servers 1 --nproc-per-node 1 "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 1
    local port
    port=$(sed 's/.*:\([0-9]*\)".*/\1/' "$tmp/penstock/$launched_job.json")
    "$penstock" doctor --master-addr 127.0.0.1 --master-port "$port" >"$tmp/out" 2>&1 || :
    grep -qE "^ok +scheduler +answers at 127\.0\.0\.1:$port" "$tmp/out"
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}

# ---- ranks that disagree ------------------------------------------------------------------------------------------------

# Every worker reads the sentence, and the launcher's report begins with it:  disagree TEXT WORDS...
disagree() {
    code=0
    pen run --standalone --no-prefix --servers 2 --nproc-per-node 2 --job "$job" "$programs/stepper" "${@:2}" >"$tmp/out" 2>"$tmp/err" || code=$?
    cat "$tmp/err"
    [ "$code" = 1 ]
    [ "$(grep -cxF "stepper: $1" "$tmp/err")" = 2 ]
    [ "$(grep -c '^stepper: ' "$tmp/err")" = 2 ]
    grep -B1 -m1 '^$' "$tmp/err" | head -n 1 | is_text "penstock: $1"
    nothing_is_left
}

@test "a tensor of another shape on one rank is named on both, with both shapes" {
    disagree "'fc1.weight' is f32[128,784] on rank 1 ($host) and f32[256,784] on rank 0 ($host); all ranks must register the same" 1:rows=128
}

@test "a setting of another value on one rank is named on both" {
    disagree "setting 'clip' is '0.25' on rank 1 ($host) and '0.5' on rank 0 ($host); all ranks must register the same" 0:clip=0.5 1:clip=0.25
}

@test "a reduction of another length on one rank is named on both" {
    disagree "all_reduce (call 6) differs: rank 1 has 2 f64 SUM 'loss', rank 0 has 1 f64 SUM 'loss'" 1:count=2
}

@test "an update rule without a rate is refused with what to say" {
    code=0
    "$programs/stepper" optim=sgd >"$tmp/out" 2>"$tmp/err" || code=$?
    [ "$code" = 1 ]
    grep -qxF 'stepper: sgd needs a rate: say optim="sgd lr=0.1"' "$tmp/err"
}

# ---- the installed library ------------------------------------------------------------------------------------------------

@test "installed into a prefix, pkg-config and cc build the 30-line program, which prints the same on 1 and 2 ranks" {
    local source=$root/worker/examples/linear.c
    [ "$(sed -e 's,/\*.*\*/,,' -e '/^\/\*/,/\*\//d' "$source" | grep -cvE '^[[:space:]]*$')" -le 30 ]
    cmake --install "$build" --prefix "$tmp/usr" >"$tmp/install"
    export PKG_CONFIG_PATH
    PKG_CONFIG_PATH=$(dirname "$(find "$tmp/usr" -name penstock.pc)")
    cc -std=c99 -Wall -Werror -o "$tmp/linear" "$source" $(pkg-config --cflags --libs penstock)
    unset LD_LIBRARY_PATH
    export LD_LIBRARY_PATH
    LD_LIBRARY_PATH=$(pkg-config --variable=libdir penstock)
    "$tmp/linear" >"$tmp/alone" 2>"$tmp/alone.err"
    [ "$(wc -l <"$tmp/alone")" = 20 ]
    penstock=$(find "$tmp/usr" -path '*bin/penstock')
    pen run --standalone --no-prefix --nproc-per-node 2 --servers 1 --job "$job" "$tmp/linear" >"$tmp/two"
    cmp "$tmp/alone" "$tmp/two"
    is_text "penstock: alone (no RANK in the environment; \`penstock run --nproc-per-node 2 ./linear\` starts two)" <"$tmp/alone.err"
    nothing_is_left
}
