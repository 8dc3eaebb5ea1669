# run.bats - the launcher: the environment of programs, how their exits are reported, and that no process is left.
# run_end.bats tests how soon it ends.

load ../support/job
load ../support/launch

setup() { job_setup; }
teardown() { job_teardown; }

# ---- the environment of programs -----------------------------------------------------------------------------

@test "every worker gets torchrun's environment" {
    ends_with 0 env --nproc-per-node 2 --max-restarts 3 --no-prefix \
        sh -c "env | grep -E '^(RANK|WORLD|LOCAL|GROUP|ROLE|MASTER|TORCH)' | sort >$tmp/env.\$RANK"
    for rank in 0 1; do
        sed -E 's/^MASTER_PORT=[1-9][0-9]*$/MASTER_PORT=P/' "$tmp/env.$rank" | is_text "GROUP_RANK=0
GROUP_WORLD_SIZE=1
LOCAL_RANK=$rank
LOCAL_WORLD_SIZE=2
MASTER_ADDR=127.0.0.1
MASTER_PORT=P
RANK=$rank
ROLE_NAME=default
ROLE_RANK=$rank
ROLE_WORLD_SIZE=2
TORCHELASTIC_MAX_RESTARTS=3
TORCHELASTIC_RESTART_COUNT=0
TORCHELASTIC_RUN_ID=$job-env
WORLD_SIZE=2"
    done
}

@test "two machines of two workers each have ranks 0-1 and 2-3, and both launchers end well" {
    local port node pids=()
    port=$(free_port)
    for node in 1 0; do # machine 1 starts first, and waits
        MARK=$mark "$penstock" run --nnodes 2 --node-rank "$node" --master-port "$port" --nproc-per-node 2 \
            --servers 2 --no-prefix sh -c 'echo $RANK $LOCAL_RANK $GROUP_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $PENSTOCK_MASTER_PORT $MASTER_PORT' \
            >"$tmp/node$node.out" 2>"$tmp/node$node.err" 3>&- &
        pids+=($!)
        sleep 0.3
    done
    for pid in "${pids[@]}"; do wait "$pid" || { cat "$tmp"/node?.err; return 1; }; done
    sort "$tmp/node0.out" "$tmp/node1.out" | is_text "0 0 0 4 2 $port $((port + 1))
1 1 0 4 2 $port $((port + 1))
2 0 1 4 2 $port $((port + 1))
3 1 1 4 2 $port $((port + 1))"
    nothing_is_left
}

@test "a machine whose workers have ended waits for the workers of others" {
    local port=$(free_port) node pids=()
    for node in 0 1; do
        MARK=$mark "$penstock" run --nnodes 2 --node-rank "$node" --master-port "$port" --servers 2 \
            sh -c '[ $RANK = 0 ] || sleep 11' 2>"$tmp/node$node.err" 3>&- &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || { cat "$tmp"/node?.err; return 1; }; done
    tail -n +2 "$tmp/node0.err" | is_text "penstock: the workers here have ended; waiting for those of other machines"
    nothing_is_left
}

@test "flags are spelled with dashes or underscores, with a space or an equals sign" {
    local show='echo $RANK $WORLD_SIZE $MASTER_ADDR $TORCHELASTIC_MAX_RESTARTS $PENSTOCK_LEASE_MS'
    ends_with 0 dashes --nproc-per-node 2 --master-addr localhost --max-restarts 4 --lease-ms 7000 sh -c "$show"
    ends_with 0 underscores --nproc_per_node=2 --master_addr=localhost --max_restarts=4 --lease_ms=7000 sh -c "$show"
    sort "$tmp/dashes.out" | is_text "[0] 0 2 localhost 4 7000
[1] 1 2 localhost 4 7000"
    cmp <(sort "$tmp/dashes.out") <(sort "$tmp/underscores.out")
    ends_with 0 mpirun -np 2 sh -c 'echo $WORLD_SIZE -np 3'
    ends_with 0 short -n 2 sh -c 'echo $WORLD_SIZE -np 3'
    is_text "[0] 2 -np 3
[1] 2 -np 3" < <(sort "$tmp/mpirun.out")
    cmp <(sort "$tmp/mpirun.out") <(sort "$tmp/short.out")
    show='echo "$PENSTOCK_SHARED_MEMORY $PENSTOCK_DETERMINISTIC"'
    ends_with 0 switches --no-prefix --shared-memory no --deterministic yes sh -c "$show"
    ends_with 0 bare --no-prefix --shared-memory=no --deterministic sh -c "$show"
    is_text "no yes" <"$tmp/switches.out"
    is_text "no yes" <"$tmp/bare.out"
}

@test "torchrun's flags may be variables, which flags override; a wrong one is named" {
    local show='echo $RANK $WORLD_SIZE $MASTER_ADDR $TORCHELASTIC_MAX_RESTARTS'
    export PET_NNODES=1 PET_NODE_RANK=0 PET_NPROC_PER_NODE=2 PET_MASTER_ADDR=localhost PET_MASTER_PORT=0 PET_MAX_RESTARTS=4
    ends_with 0 variables sh -c "$show"
    sort "$tmp/variables.out" | is_text "[0] 0 2 localhost 4
[1] 1 2 localhost 4"
    ends_with 0 flags --nproc-per-node 1 --max-restarts 3 sh -c "$show"
    is_text "[0] 0 1 localhost 3" <"$tmp/flags.out"
    ends_with 0 alone --standalone sh -c "$show"
    sort "$tmp/alone.out" | is_text "[0] 0 2 127.0.0.1 4
[1] 1 2 127.0.0.1 4"
    PET_NNODES=some ends_with 2 wrong true
    grep -qF "PET_NNODES is 'some', but must be a whole number from 1 to 100000" "$tmp/wrong.err"
}

@test "the master address may be a name" {
    ends_with 0 name --master-addr localhost --servers 1 --nproc-per-node 2 "$programs/stepper" steps=1
    [ "$(grep -c ' APPLIED ' "$tmp/name.out")" = 2 ]
}

@test "--nproc-per-node auto starts a worker per core, with one thread each" {
    ends_with 0 auto --nproc-per-node auto --no-prefix sh -c 'echo $OMP_NUM_THREADS'
    [ "$(grep -cx 1 "$tmp/auto.out")" = "$(nproc)" ]
    OMP_NUM_THREADS=7 ends_with 0 given --nproc-per-node auto --no-prefix sh -c 'echo $OMP_NUM_THREADS'
    [ "$(grep -cx 7 "$tmp/given.out")" = "$(nproc)" ]
}

@test "arguments after PROG are PROG's, even our own flags" {
    ends_with 0 words --no-prefix echo --servers 9 -- --help 'a  b' ''
    is_text "--servers 9 -- --help a  b " <"$tmp/words.out"
    ends_with 0 dashes --no-prefix -- echo --lease-ms
    is_text "--lease-ms" <"$tmp/dashes.out"
}

@test "examples are found by name" {
    ends_with 0 linear --servers 1 --no-prefix linear
    [ -s "$tmp/linear.out" ]
}

@test "--standalone overrides settings for other machines" {
    ends_with 0 alone --standalone --nnodes 4 --node-rank 3 --master-port 1 sh -c 'echo $RANK $WORLD_SIZE'
    is_text "[0] 0 1" <"$tmp/alone.out"
}

@test "two jobs run side by side, each with its own port" {
    local pids=() name
    for name in left right; do
        MARK=$mark "$penstock" run --standalone --servers 1 --job "$job-$name" --no-prefix \
            sh -c "echo \$MASTER_PORT >$tmp/$name.port.new; mv $tmp/$name.port.new $tmp/$name.port
                   while ! [ -e $tmp/left.port ] || ! [ -e $tmp/right.port ]; do sleep 0.02; done" 2>"$tmp/$name.err" 3>&- &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || { cat "$tmp"/*.err; return 1; }; done
    ! cmp -s "$tmp/left.port" "$tmp/right.port" || return 1
    nothing_is_left
}

# ---- output --------------------------------------------------------------------------------------------------

@test "lines are prefixed with the rank, complete, and on the stream they were written to" {
    ends_with 0 lines --nproc-per-node 2 sh -c 'for i in 1 2 3; do echo out $i; echo err $i >&2; done; printf last'
    for rank in 0 1; do
        grep -F "[$rank]" "$tmp/lines.out" | is_text "[$rank] out 1
[$rank] out 2
[$rank] out 3
[$rank] last"
        [ "$(grep -cE "^\[$rank\] err [123]\$" "$tmp/lines.err")" = 3 ]
    done
    [ "$(wc -l <"$tmp/lines.out")" = 8 ]
}

@test "--no-prefix passes output through, byte for byte" {
    head -c 40000 /dev/urandom | tr -d '\n' | fold -bw 5000 >"$tmp/bytes"
    echo >>"$tmp/bytes"
    ends_with 0 bytes --no-prefix cat "$tmp/bytes"
    cmp "$tmp/bytes" "$tmp/bytes.out"
}

# Names and first words of the files that a job wrote.
files() {
    (cd "$tmp/logs/$job-$1/attempt_0" && grep -H . -- * | sort)
}

two='echo out $RANK; echo err $RANK >&2'

@test "--redirects sends output to files only, --tee to files too, each per local rank" {
    ends_with 0 redirects --nproc-per-node 3 --redirects 1:3,2:1 --log-dir "$tmp/logs" sh -c "$two"
    is_text "[0] out 0" <"$tmp/redirects.out"
    grep -F '[' "$tmp/redirects.err" | sort | is_text "[0] err 0
[2] err 2"
    ends_with 0 tee --nproc-per-node 2 -t 3 -r 1 --log-dir "$tmp/logs" sh -c "$two"
    sort "$tmp/tee.out" | is_text "[0] out 0
[1] out 1"
    for name in redirects tee; do
        files "$name" | grep -E 'worker-[01]' | is_text "worker-0.err:err 0
worker-0.out:out 0
worker-1.err:err 1
worker-1.out:out 1"
    done
}

@test "files are kept only when asked for, under TMPDIR unless --log-dir says where" {
    ends_with 0 none sh -c "$two"
    [ -z "$(find "$tmp" -name '*.out' -not -name none.out)" ]
    ends_with 0 some --tee 2 sh -c "$two"
    (cd "$tmp"/penstock-$job-some-?????? && find . -type f) | is_text "./attempt_0/worker-0.err"
    grep -qx "penstock: output goes to $tmp/penstock-$job-some-......" "$tmp/some.err"
    ends_with 0 closed --log-dir "$tmp/logs" sh -c "$two" # a program's output is for its user only
    [ -z "$(find "$tmp/logs" ! -perm 700 -type d -o ! -perm 600 -type f)" ]
    [ -n "$(find "$tmp/logs" -name 'worker-0.err')" ]
}

@test "folders and files that somebody else made are refused or avoided, and nothing in them is written" {
    local how said
    mkdir -m 700 "$tmp/logs" "$tmp/elsewhere"
    echo mine >"$tmp/victim"
    for how in link theirs open; do
        rm -rf "$tmp/logs/$job-$how"
        case $how in
        link) ln -s "$tmp/elsewhere" "$tmp/logs/$job-link"; said="is a link, which may lead anywhere; remove it" ;;
        theirs)
            [ "$(id -u)" = 0 ] || continue # only root can make a folder of another user
            mkdir "$tmp/logs/$job-theirs" && chown 54321 "$tmp/logs/$job-theirs"
            said="belongs to another user (uid 54321); choose another place"
            ;;
        open) mkdir -m 777 "$tmp/logs/$job-open" && chmod 777 "$tmp/logs/$job-open"; said="others may write to the folder" ;;
        esac
        run pen run --standalone --job "$job-$how" --log-dir "$tmp/logs" true
        [ "$status" != 0 ]
        [[ $output == *"$said"* ]] || { echo "$output"; return 1; }
    done
    [ -z "$(ls "$tmp/elsewhere")" ]

    mkdir -p "$tmp/logs/$job-file/attempt_0" && chmod -R go-w "$tmp/logs/$job-file"
    ln -s "$tmp/victim" "$tmp/logs/$job-file/attempt_0/worker-0.out"
    run pen run --standalone --job "$job-file" --log-dir "$tmp/logs" sh -c 'echo shown'
    [ "$status" = 0 ]
    [[ $output == *"cannot write $tmp/logs/$job-file/attempt_0/worker-0.out: "*"this output is only shown"* ]] || { echo "$output"; return 1; }
    [[ $output == *"[0] shown"* ]]

    mkdir -p "$tmp/$job-usual/attempt_0" # where an earlier version would have written
    ln -s "$tmp/victim" "$tmp/$job-usual/attempt_0/worker-0.out"
    ends_with 0 usual --tee 1 sh -c 'echo written'
    [ "$(cat "$tmp"/penstock-"$job"-usual-*/attempt_0/worker-0.out)" = written ]

    ln -s "$tmp/elsewhere" "$tmp/trace.parts"
    run pen run --standalone --trace "$tmp/trace" true
    [ "$status" = 2 ]
    [[ $output == *"$tmp/trace.parts is a link, which may lead anywhere"* ]]
    rm "$tmp/trace.parts"
    ln -s "$tmp/victim" "$tmp/trace" # the timeline replaces a link
    pen run --standalone --trace "$tmp/trace" "$programs/stepper" steps=1 >"$tmp/traced" 2>&1
    [ ! -L "$tmp/trace" ] && grep -q traceEvents "$tmp/trace"
    [ "$(cat "$tmp/victim")" = mine ]
    [ -z "$(ls "$tmp/elsewhere")" ]
}

@test "--local-ranks-filter shows only the named ranks" {
    ends_with 0 filter --nproc-per-node 3 --local-ranks-filter 0,2 sh -c "$two"
    sort "$tmp/filter.out" | is_text "[0] out 0
[2] out 2"
    ! grep -F '[1]' "$tmp/filter.err" || return 1
}

@test "torchrun's words for the meeting point: --rdzv-endpoint, --rdzv-backend, --rdzv-id, with dashes, underscores and as PET_*" {
    local port=$(free_port)
    pen run --rdzv-backend c10d --rdzv-endpoint "localhost:$port" --rdzv-id exam --nproc-per-node 1 \
        sh -c 'echo $MASTER_ADDR $PENSTOCK_MASTER_PORT $PENSTOCK_JOB' 2>"$tmp/err" | is_text "[0] localhost $port exam"
    pen run --rdzv_backend=static --rdzv_endpoint="127.0.0.1:$port" --rdzv_id=none --job mine \
        sh -c 'echo $MASTER_ADDR $PENSTOCK_MASTER_PORT $PENSTOCK_JOB' 2>"$tmp/err" | is_text "[0] 127.0.0.1 $port mine"
    PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT="127.0.0.1:$port" PET_RDZV_ID=petted pen run --master-addr elsewhere \
        sh -c 'echo $MASTER_ADDR $PENSTOCK_MASTER_PORT $TORCHELASTIC_RUN_ID' 2>"$tmp/err" | is_text "[0] 127.0.0.1 $port petted"
}

@test "--nproc-per-node gpu without a GPU is refused with the reason; cpu and auto then mean the number of cores" {
    [ ! -e /dev/nvidiactl ] || skip "there is a GPU"
    run pen run --nproc-per-node gpu true
    [ "$status" = 2 ]
    [[ ${lines[0]} == "penstock: --nproc-per-node is gpu, but there is no CUDA device ("*"); use a number, cpu or auto" ]]
    local word
    for word in cpu auto; do
        pen run --nproc-per-node $word sh -c 'echo $LOCAL_WORLD_SIZE' 2>"$tmp/err" | sort -u | sed 's/^\[.*\] //' | sort -u | is_text "$(nproc)"
    done
}

@test "--device auto trains on the host where there is no GPU" {
    [ ! -e /dev/nvidiactl ] || skip "there is a GPU"
    ends_with 0 device --nproc-per-node 2 --device auto "$programs/stepper" steps=3
    run pen run --standalone --device cuda "$programs/stepper" steps=3
    [ "$status" = 2 ]
    [[ $output == "penstock: --device is cuda, but there is no CUDA device ("*"); use --device host or auto" ]]
}

# ---- how it ends ---------------------------------------------------------------------------------------------

@test "a program that cannot be run is 127 or 126, and the report says why" {
    ends_with 127 absent no-such-program
    grep -qxF "penstock: worker 0 ended with exit code 127" "$tmp/absent.err"
    report absent | is_text "  cause    worker 0  host H  local rank 0  after T s
           last 1 line of its stderr
             | penstock: cannot run 'no-such-program': No such file or directory
  verdict  worker 0 exited with code 127 before it joined
  rule     on_worker_loss=fail (default)
  exit     127"
    ends_with 126 folder "$tmp"
    report folder | grep -qxF "             | penstock: cannot run '$tmp': Permission denied"
}

@test "a job that the user ends says that it was interrupted, and does not mourn its scheduler" {
    local signal
    for signal in INT TERM; do
        start "$signal" --servers 1 --nproc-per-node 2 "$programs/stepper" steps=100000 pause_ms=20
        wait_for_step 2
        kill -"$signal" "$launcher"
        wait_for_end 8
        [ "$code" = $((128 + $(kill -l "$signal"))) ]
        is_text "penstock: interrupted by SIG$signal; nothing kept (no --store)" < <(grep -v '^penstock: job ' "$tmp/$signal.err")
    done
    nothing_is_left
}

@test "the exit code of a program is the exit code of the job" {
    local n
    for n in 1 2 42 255; do
        ends_with "$n" "code$n" sh -c "exit $n"
        grep -qxF "penstock: worker 0 ended with exit code $n" "$tmp/code$n.err"
    done
}

@test "a signal is exit code 128 + n, and is reported by name" {
    local name
    for name in KILL SEGV ABRT TERM; do
        ends_with $((128 + $(kill -l "$name"))) "$name" sh -c "kill -$name \$\$"
        grep -qE "^penstock: worker 0 was killed by SIG$name( |\$)" "$tmp/$name.err"
    done
}

@test "the first failure is named first, with the last 20 lines of its stderr, then the others" {
    ends_with 3 first --nproc-per-node 2 --tee 2 --log-dir "$tmp/logs" sh -c '
        if [ $RANK = 0 ]; then trap "echo asked to go >&2; exit 9" TERM; sleep 60 & touch '"$tmp"'/up; wait; fi
        while ! [ -e '"$tmp"'/up ]; do sleep 0.02; done
        seq -f "line %g" 30 >&2
        exit 3'
    local cause
    cause=$(grep -vE '^\[[01]\] ' "$tmp/first.err" | grep -F 'worker' | grep -v '^penstock: job' | head -n 1)
    [ "$cause" = "penstock: worker 1 exited with code 3 before it joined" ] # worker 0 takes long to end
    report first | is_text "  cause    worker 1  host H  local rank 1  after T s
           last 20 lines of its stderr (all: $tmp/logs/$job-first/attempt_0/worker-1.err)
$(seq -f '             | line %g' 11 30)
  others   worker 0   ended with exit code 9: asked to go
  rule     on_worker_loss=fail (default)
  kept     nothing (no --store); with --store DIR --snapshot-every 100 a job can --resume
  exit     3"
    nothing_is_left
}

@test "--max-restarts restarts all processes, tells the program the count, and a success on restart is a success" {
    ends_with 0 good --max-restarts 3 --nproc-per-node 2 --servers 1 --no-prefix sh -c \
        'echo $RANK $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 5'
    sort -u "$tmp/good.out" | is_text "0 0
0 1
0 2
1 0
1 1
1 2"
    grep '^penstock: restarting' "$tmp/good.err" | is_text "penstock: restarting, 1 of 3
penstock: restarting, 2 of 3"
    ends_with 7 bad --max-restarts 1 --no-prefix sh -c 'echo try; exit $((6 + TORCHELASTIC_RESTART_COUNT))'
    [ "$(wc -l <"$tmp/bad.out")" = 2 ]
    nothing_is_left
}

@test "a port in use is named, once, and nothing is started" {
    local port
    MARK=$mark "$penstock" scheduler --port 0 2>"$tmp/other" 3>&- &
    local other=$!
    for _ in $(seq 200); do
        port=$(sed -n 's/.*listens at .*:\([0-9]*\)$/\1/p' "$tmp/other")
        [ -n "$port" ] && break
        sleep 0.02
    done
    ends_with 1 busy --master-port "$port" --servers 1 touch "$tmp/started"
    is_text "penstock: the scheduler did not start: port $port is in use (tcp://127.0.0.1:$port); choose another, or 0 for a free one" \
        <"$tmp/busy.err"
    [ ! -e "$tmp/started" ]
    kill "$other"
    wait "$other" || :
    nothing_is_left
}

@test "it works without stdin, stdout and stderr" {
    ends_with 0 stdin --no-prefix cat <&-
    MARK=$mark "$penstock" run --servers 1 sh -c "echo here >$tmp/made; echo out; echo err >&2" <&- >&- 2>&- 3>&-
    is_text here <"$tmp/made"
    code=0
    MARK=$mark "$penstock" run sh -c "exit 4" <&- >&- 2>&- 3>&- || code=$?
    [ "$code" = 4 ]
    nothing_is_left
}

@test "a program of this folder runs by its name alone: an executable, and a Python script; what is neither is told how" {
    cp "$programs/quiet" "$tmp/my_program"
    printf 'import sys\nprint("hi", sys.argv[1:])\n' >"$tmp/train.py"
    cd "$tmp"
    ends_with 0 here --nproc-per-node 1 my_program 3
    if command -v python3 >/dev/null; then
        ends_with 0 script --nproc-per-node 1 --no-prefix train.py --lr 1
        is_text "hi ['--lr', '1']" <"$tmp/script.out"
    fi
    echo text >"$tmp/notes"
    ends_with 126 text --nproc-per-node 1 notes
    grep -qF "penstock: cannot run 'notes': it is not executable; use chmod +x, or name its interpreter first" "$tmp/text.err"
    nothing_is_left
}
