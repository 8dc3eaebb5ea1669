#!/usr/bin/env bash
# loss.sh - kills workers at random moments:  tests/bench/loss.sh [KILLS [SEED [PROGRAM...]]]
#
# Runs KILLS (20) jobs of each program, for fail and continue with and without servers, and for wait with servers. The
# programs are README's loop (examples/linear.c), those of docs/guides/first-model.md as printed there, and
# fashion_mnist, each with enough steps for a few seconds.
# An undisturbed run gives the duration. In each other run, one of three workers gets SIGKILL at a moment drawn
# uniformly from that time; a kill after a worker's goodbye is drawn again. Each job must end as its rule says, and no
# survivor may stand still longer than the lease and 3 s: from the kill to its next step, from there to the next, and
# from its last one to the end of the job, as measured by the job's timeline (--trace). The seed is printed, and repeats
# the same draws. BUILD names the build folder.
BATS_TEST_DIRNAME=$(cd "$(dirname "$0")/.." && pwd)/cluster
. "$BATS_TEST_DIRNAME/../support/job.bash"
kills=${1:-20} seed=${2:-$((EPOCHSECONDS % 32768))} ranks=3 lease_s=10 bad=0
all=("${@:3}")
[ "${#all[@]}" -gt 0 ] || all=(linear hello circle circle16 fashion_mnist)
RANDOM=$seed
echo "loss    seed $seed"

# Compiles the programs of the guide:  -> $tmp/{hello,circle,circle16}
extract() {
    local name
    for name in hello circle circle16; do
        awk -v opens="\`\`\`c $name.c" '/^```/ { on = $0 == opens; next } on' "$root/docs/guides/first-model.md" >"$tmp/$name.c"
        cc -std=c99 -O2 -Wall -Wextra -Werror -I"$root/include" -o "$tmp/$name" "$tmp/$name.c" -L"$build/lib" -lpenstock -lm || exit 1
    done
}

# The words that start a program, flags of `penstock run` first:  choose PROGRAM
choose() {
    case $1 in
    linear) program=(--steps 3000 "$examples/linear") ;;
    hello) program=("$tmp/hello") ;;
    circle | circle16) program=(--steps 3000 "$tmp/$1") ;;
    fashion_mnist) program=("${fashion[@]}" --steps 300) ;;
    *) echo "no program $1"; exit 2 ;;
    esac
}

now_ms() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

# Starts a job and waits for the process of a worker:  begin RULE SERVERS RANK   -> $pid, empty if the job has ended
begin() {
    rm -rf "$tmp/kill.json" "$tmp/kill.json.parts"
    start kill --nproc-per-node $ranks --servers "$2" --on-worker-loss "$1" --trace "$tmp/kill.json" --trace-events 256k \
        --max-restarts $([ "$1" = wait ] && echo 2 || echo 0) "${program[@]}"
    pid=
    while kill -0 "$launcher" 2>/dev/null && ! pid=$(member worker "$3" 2>/dev/null); do sleep 0.005; done
}

# The run time of a worker of an undisturbed job:  -> $run_ms
measure() {
    local begun
    begin "$1" "$2" 0
    begun=$(now_ms)
    while kill -0 "$pid" 2>/dev/null; do sleep 0.005; done
    run_ms=$(($(now_ms) - begun))
    wait_for_end 120 && [ "$code" = 0 ] || { echo "loss    $1, $2 servers: ended with $code, and nobody was killed"; cat "$tmp/kill.err"; exit 1; }
}

# The longest time in ms that a survivor stood still, from the kill at $2 us to the job's end at $3 us:
#   stood PID_OF_THE_DEAD KILL END
stood() {
    awk -v dead="$1" -v kill="$2" -v end="$3" '
        function field(name,    at) {
            at = index($0, "\"" name "\":")
            return at ? substr($0, at + length(name) + 3) + 0 : -1
        }
        /"began_unix_ns"/ { began = substr($0, index($0, "\"began_unix_ns\":") + 16, 16) + 0 } # ns, without its last 3 digits
        /"system_pid"/ && /"name":"worker / && field("system_pid") != dead { last[field("pid")] = kill }
        /"ph":"X"/ && /"name":"step"/ && (field("pid") in last) {
            ends[n++] = sprintf("%.0f", began + field("ts") + field("dur")); whose[n - 1] = field("pid")
        }
        END {
            for (i = 0; i < n; i++) { # by time, for each process
                w = whose[i]
                if (ends[i] <= last[w]) continue
                if (ends[i] - last[w] > worst) worst = ends[i] - last[w]
                last[w] = ends[i]
            }
            for (w in last) if (end - last[w] > worst) worst = end - last[w]
            printf "%d\n", worst / 1000
        }' "$tmp/kill.json"
}

# The kill hit a process in its last instructions: no member noticed.
has_said_goodbye() {
    [ "$code" -eq 0 ] || { ! grep -q '^  verdict' "$tmp/kill.err"; return; }
    ! grep -qE "^penstock: worker $1 .*(is gone|left|before it joined|restarting it)" "$tmp/kill.err"
}

# One job and one kill:  strike RULE SERVERS   -> $said, $code, $stood_ms
strike() {
    local rule=$1 rank=$((RANDOM % ranks)) killed_us
    at_ms=$(((RANDOM * 32768 + RANDOM) % (run_ms + 1)))
    begin "$rule" "$2" "$rank"
    sleep "$(printf '%d.%03d' $((at_ms / 1000)) $((at_ms % 1000)))"
    said=nothing stood_ms=0
    [ -n "$pid" ] && grep -qs '^State:[[:space:]]*[^Z]' "/proc/$pid/status" && kill -9 "$pid" 2>/dev/null && said=killed
    killed_us=${EPOCHREALTIME/[.,]/}
    wait_for_end 60 >/dev/null || { stood_ms=60000 code="nothing: it still runs"; kill -9 "$launcher"; return 1; }
    has_said_goodbye "$rank" && said=nothing
    [ $said = killed ] || { [ "$code" -eq 0 ] || ! grep -q '^  verdict' "$tmp/kill.err"; return; }
    stood_ms=$(((${EPOCHREALTIME/[.,]/} - killed_us) / 1000))
    [ "$code" -ne 0 ] || stood_ms=$(stood "$pid" "$killed_us" "${EPOCHREALTIME/[.,]/}")
    [ "$stood_ms" -le $(((lease_s + 3) * 1000)) ] || return 1
    case $rule in
    fail) [ "$code" -ne 0 ] ;;
    # a kill before pen_commit() has returned ends a job with servers
    *) [ "$code" -eq 0 ] || grep -qE "before (it joined|its first step)|pen_init|pen_commit" "$tmp/kill.err" ;;
    esac
}

job_setup
trap job_teardown EXIT
extract
for name in "${all[@]}"; do
    choose "$name"
    for how in "fail 0" "fail 2" "continue 0" "continue 2" "wait 2"; do
        read -r rule servers <<<"$how"
        measure "$rule" "$servers"
        failed=0 worst=0 late=0
        for ((turn = 0; turn - late < kills && turn < 3 * kills; turn++)); do # a kill that came too late is drawn again
            if ! strike "$rule" "$servers"; then
                failed=$((failed + 1))
                echo "        $name, $rule, $servers servers, turn $turn, at $at_ms ms: ended with $code, stood for $stood_ms ms"
                sed 's/^/          /' "$tmp/kill.err" | head -20
            fi
            [ $said = killed ] || late=$((late + 1))
            [ "$stood_ms" -le "$worst" ] || worst=$stood_ms
        done
        printf 'loss    %-13s %-8s %d servers, a run of %5d ms: %d killed, %d had ended, %d not as the rule says; nobody stood longer than %d ms\n' \
            "$name" "$rule" "$servers" "$run_ms" $((turn - late)) "$late" "$failed" "$worst"
        bad=$((bad + failed))
    done
done
[ "$bad" = 0 ]
