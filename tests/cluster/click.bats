# click.bats - the click model: how near it comes to the best possible AUC, on any number of servers, through a kill, and resumed.

load ../support/job
load ../support/scale

setup() { job_setup; }
teardown() { job_teardown; }

click() { # NAME SERVERS "LAUNCHER_FLAGS"
    # shellcheck disable=SC2086
    pen run --standalone --no-prefix --nproc-per-node 2 --servers "$2" --steps 800 $3 "$examples/click" >"$tmp/$1.out" 2>"$tmp/$1.err" ||
        { cat "$tmp/$1.err"; return 1; }
}

auc() { sed -n "s/^step $2 .*AUC \([0-9.]*\) .*/\1/p" "$tmp/$1.out"; }

# Both within 1e-3 of each other.
near() { awk -v a="$1" -v b="$2" 'BEGIN {exit !(a > 0 && a - b < 1e-3 && b - a < 1e-3)}' || { echo "AUC $1 and $2"; return 1; }; }

@test "the click model comes within 0.005 of the best possible AUC, on 1 and 3 servers and after a kill" {
    local best
    click one 1
    click three 3
    best=$(sed -n 's/.*best possible \([0-9.]*\).*/\1/p' "$tmp/one.out" | tail -1)
    awk -v a="$(auc one 800)" -v best="$best" 'BEGIN {exit !(a > best - 0.005 && a <= best)}' || { cat "$tmp/one.out"; return 1; }
    near "$(auc one 800)" "$(auc three 800)"
    start hurt --no-prefix --nproc-per-node 2 --servers 2 --replicas 1 --steps 800 "$examples/click"
    for ((i = 0; i < 300; i++)); do grep -q "^step 250 " "$tmp/hurt.out" && break || sleep 0.1; done
    kill -9 "$(member server 1)"
    wait_for_end 60
    [ "$code" = 0 ] || { cat "$tmp/hurt.err"; return 1; }
    near "$(auc one 800)" "$(auc hurt 800)"
    nothing_is_left
}

@test "the click model resumes from a snapshot, on another number of servers" {
    click whole 2
    click half 2 "--steps 400 --store $tmp/store --snapshot-every 400"
    click rest 3 "--store $tmp/store --resume"
    grep -q '^step 500 ' "$tmp/rest.out"
    ! grep -q '^step 250 ' "$tmp/rest.out" || return 1
    near "$(auc whole 800)" "$(auc rest 800)"
    nothing_is_left
}
