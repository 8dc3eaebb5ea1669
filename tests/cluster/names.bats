# names.bats - a process resolves host names while it talks to others: no connection waits for another's lookup.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

@test "a name server that does not answer delays only the connection that needs it" {
    local mine=(unshare -mn --propagation private) questions longest
    [ "$(id -u)" = 0 ] || mine=(unshare -Urmn --propagation private)
    "${mine[@]}" true 2>/dev/null || skip "needs the right to make a network of its own"
    echo "nameserver 127.0.0.1" >"$tmp/resolv.conf"
    echo "hosts: files dns" >"$tmp/nsswitch.conf"
    read -r questions longest < <("${mine[@]}" sh -ec '
        ip link set lo up
        for file in resolv.conf nsswitch.conf; do mount --bind "$1/$file" "/etc/$file"; done
        exec "$2" 4' own "$tmp" "$BUILD/tests/programs/names")
    echo "the name server was asked $questions times; at most $longest ms between two messages"
    [ "$questions" -ge 1 ]
    [ "$longest" -lt 1000 ]
}
