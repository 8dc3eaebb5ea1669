# hosts_docs.bats - runs what the documentation shows for several machines: every `sh run on HOST` block of every page,
# word for word, on hosts with the names of the page (support/hosts.bash).

load ../support/job
load ../support/docs
load ../support/hosts

setup() {
    job_setup
    can_have_bridge >"$tmp/cannot" || skip "$(cat "$tmp/cannot")"
    hosts_start 2
}
teardown() { job_teardown; }

@test "README's lines for two machines: they train, encrypted, to the parameters of one machine" {
    follow_on_hosts README.md
    hosts_stop
    nothing_is_left 5
}

@test "what the guides and all other pages show for several machines" {
    local page n=0
    for page in $(hosts_pages); do
        [ "$page" != README.md ] || continue
        follow_on_hosts "$page" || return 1
        n=$((n + 1))
    done
    [ "$n" -ge 4 ]
    hosts_stop
    nothing_is_left 5
}

@test "a page whose commands fail on one of its hosts, or print something else, is found" {
    printf '```sh run on node0\nhostname\n```\n\n```sh run on node1\nhostname; sleep 0.1; echo 1 >x\n```\n\n```output\nnode0\nnode1\n```\n\n```sh run on node0\nscp node1:x y && cat y\n```\n\n```output\n1\n```\n' >"$tmp/good.md"
    follow_on_hosts "$tmp/good.md"
    printf '```sh run on node0\ntrue\n```\n\n```sh run on node1\nfalse\n```\n' >"$tmp/failing.md"
    run follow_on_hosts "$tmp/failing.md"
    [ "$status" != 0 ]
    printf '```sh run on node0\nhostname\n```\n\n```output\nnode1\n```\n' >"$tmp/wrong.md"
    run follow_on_hosts "$tmp/wrong.md"
    [ "$status" != 0 ]
    [[ $output == *"this is not printed:  node1"* ]]
    printf '```sh run\nfalse\n```\n\n```sh run on node0\ntrue\n```\n\n<!-- run: same_parameters 1 -->\n' >"$tmp/unseen.md"
    run follow_on_hosts "$tmp/unseen.md"
    [ "$status" != 0 ]
}
