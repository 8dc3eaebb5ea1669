# page.bats - the live page as the scheduler serves it; fleet/page.bats tests what a browser shows.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# get PATH: asks the scheduler of the started job; -> $tmp/head, $tmp/body
get() {
    local at
    at=$(sed -n 's|.*"http": *"http://\([^"]*\)".*|\1|p' "$tmp/penstock/$launched_job.json")
    exec 9<>"/dev/tcp/${at%:*}/${at##*:}"
    printf 'GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$1" "$at" >&9
    timeout 10 cat <&9 >"$tmp/answer"
    exec 9>&-
    sed '/^\r$/,$d' "$tmp/answer" | tr -d '\r' >"$tmp/head"
    sed '1,/^\r$/d' "$tmp/answer" >"$tmp/body"
}

@test "the scheduler serves one page without outside references, and the data that the page asks for" {
    start one --servers 2 --nproc-per-node 2 "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 2
    get /
    cat "$tmp/head"
    head -n 1 "$tmp/head" | grep -q ' 200 '
    grep -qi '^content-type: text/html; charset=utf-8$' "$tmp/head"
    grep -qi "^content-security-policy: default-src 'none'; .*connect-src 'self'" "$tmp/head"
    cmp "$root/scheduler/shell/page/page.html" "$tmp/body"
    # The SVG namespace is a name, not an address to load.
    run grep -nE 'https?://|src=|url\(|@import|//[a-z]+\.' <(sed 's|http://www\.w3\.org/2000/svg||' "$tmp/body")
    [ -z "$output" ] || { echo "$output"; false; }
    run grep -oE 'href="[^"]*"' "$tmp/body"
    [ "$(sort -u <<<"$output")" = $'href="#fleet"\nhref="data:,"' ]

    get /history
    grep -qE '^\[\{"t":[0-9.]+,"step":-?[0-9]+,"push":' "$tmp/body"
    get /status
    grep -qE '"shard_bytes":\[[0-9]+,[0-9]+\]' "$tmp/body"
    grep -qE '"events":\[\{"number":1,"at_s":[0-9.]+,"level":"info","text":"[^"]+ has connected"' "$tmp/body"
    grep -q "\"text\":\"server 1 ($host) is active\"" "$tmp/body"
    grep -q "\"scheduler\":{\"host\":\"$host\"," "$tmp/body"
    for _ in $(seq 50); do
        get /stuck
        ! grep -q '"without_record":\[{' "$tmp/body" && break
        sleep 0.1
    done
    cat "$tmp/body"
    grep -q '"without_record":\[\]' "$tmp/body"
    grep -q "\"rank\":1,\"host\":\"$host\"" "$tmp/body"
    kill "$launcher"
    wait_for_end 8
    nothing_is_left
}

@test "a metric named __proto__ is a plain metric in the page's memory, and pollutes no other object" {
    command -v node >/dev/null || skip "needs node: apt install nodejs"
    node -e '
        const page = require("fs").readFileSync(process.argv[1], "utf8");
        const body = /function take\(status\) \{[\s\S]*?\n\}\n/.exec(page)[0];
        const metrics = JSON.parse("{\"__proto__\": 0.5, \"loss\": 1}");
        const worker = { role: "worker", rank: 0, stats: {}, metrics };
        let kept;
        new Function("nameOf", "slowest", "mean", "keep", "LINES_MAX", "status", body + "take(status)")(
            m => m.role, () => [], values => values[0], s => { kept = s; }, 4, { uptime_s: 1, step: 1, members: [worker] });
        const polluted = ({})["worker 0"] !== undefined || ({}).mean !== undefined;
        process.exit(!polluted && Object.keys(kept.metric).join() === "__proto__,loss" ? 0 : 1);
    ' "$root/scheduler/shell/page/page.html"
}
