#!/usr/bin/env bash
# loss.sh - workers are killed at moments drawn from a seed:  tests/bench/loss.sh [KILLS [SEED]]
#
# For fail and continue, with and without servers, and wait with servers: KILLS (20) jobs each of a loop as README's, linear
# and fashion_mnist in turn.  In each a worker gets SIGKILL between its start and what would be its end.  Each must end as its
# rule says, and nobody may stand longer than the lease and 3 s after the kill without the sentence.  One line for each; the
# seed is printed, and gives the same moments again.  BUILD names the build folder.
BATS_TEST_DIRNAME=$(cd "$(dirname "$0")/.." && pwd)/cluster
. "$BATS_TEST_DIRNAME/../support/job.bash"
kills=${1:-20} seed=${2:-$((EPOCHSECONDS % 32768))} ranks=3 lease_s=10 bad=0
RANDOM=$seed
echo "loss    seed $seed"

# The program of this turn, and how long it runs:  choose TURN
choose() {
    case $(($1 % 3)) in
    0) program=("$programs/leaver" 60) most_ms=1800 ;;
    1) program=("$examples/linear") most_ms=100 ;;
    2) program=("${fashion[@]}" --steps 300) most_ms=3000 ;;
    esac
}

# One job and one kill:  strike RULE SERVERS TURN
strike() {
    local rule=$1 rank=$((RANDOM % ranks)) at_ms pid said
    choose "$3"
    at_ms=$((RANDOM % most_ms))
    start kill --nproc-per-node $ranks --servers "$2" --on-worker-loss "$rule" --max-restarts $([ "$rule" = wait ] && echo 2 || echo 0) "${program[@]}"
    for _ in $(seq 500); do
        pid=$(member worker $rank 2>/dev/null) && [ -n "$pid" ] && break
        kill -0 "$launcher" 2>/dev/null || break
        sleep 0.01
    done
    sleep "$(printf '%d.%03d' $((at_ms / 1000)) $((at_ms % 1000)))"
    said=nothing
    [ -n "$pid" ] && kill -9 "$pid" 2>/dev/null && said=killed
    took_ms=0
    wait_for_end 120 >/dev/null || { echo "loss    $rule $2 servers, ${program[0]##*/}, rank $rank at $at_ms ms: still runs"; return 1; }
    case $said/$rule in
    nothing/*) [ "$code" -eq 0 ] ;; # it had ended
    killed/fail) [ "$code" -ne 0 ] && grep -qE "worker $rank .*(is gone|left|was killed|exited|before it joined)" "$tmp/kill.err" && [ "$took_ms" -le $(((lease_s + 3) * 1000)) ] ;;
    # before pen_commit() has ended the job cannot go on with servers
    killed/continue) [ "$code" -eq 0 ] || grep -qE "before (it joined|its first step)|pen_init|pen_commit" "$tmp/kill.err" ;;
    killed/wait) [ "$code" -eq 0 ] || grep -qE "before (it joined|its first step)|pen_init|pen_commit" "$tmp/kill.err" ;;
    esac
}

job_setup
trap job_teardown EXIT
for how in "fail 0" "fail 2" "continue 0" "continue 2" "wait 2"; do
    read -r rule servers <<<"$how"
    failed=0 worst=0
    for ((turn = 0; turn < kills; turn++)); do
        if strike "$rule" "$servers" "$turn"; then
            [ "$took_ms" -le "$worst" ] || worst=$took_ms
        else
            failed=$((failed + 1))
            echo "        $rule, $servers servers, turn $turn: ended with $code after $took_ms ms"
            sed 's/^/          /' "$tmp/kill.err" | head -20
        fi
    done
    echo "loss    $rule, $servers servers: $kills kills, $failed not as the rule says; the longest took $worst ms to its end"
    bad=$((bad + failed))
done
[ "$bad" = 0 ]
