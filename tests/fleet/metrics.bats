# metrics.bats - a job that trains, scraped by Debian's Prometheus: every rule and every query of the dashboard answers.

load ../support/job
load ../support/docs

setup() {
    command -v prometheus >/dev/null && command -v promtool >/dev/null || skip "needs prometheus: apt install prometheus"
    [ -x /usr/bin/python3 ] || skip "needs Debian's python3: apt install python3"
    job_setup
    deploy=$root/deploy/prometheus
    metrics="/usr/bin/python3 $BATS_TEST_DIRNAME/support/metrics.py"
}

teardown() {
    [ -z "${tmp:-}" ] || job_teardown
}

# Prometheus with the files of deploy/; it scrapes once a second, at the port of this test.
start_prometheus() {
    cp "$deploy/rules.yml" "$tmp/"
    sed "s/127.0.0.1:9464/127.0.0.1:$1/; s/: 5s/: 1s/" "$deploy/prometheus.yml" >"$tmp/prometheus.yml"
    at=127.0.0.1:$(free_port)
    MARK=$mark prometheus --config.file="$tmp/prometheus.yml" --storage.tsdb.path="$tmp/data" --web.listen-address="$at" \
        >"$tmp/prometheus.log" 2>&1 3>&- &
    prometheus=$!
}

page() { # PATH, other arguments of curl: works without curl
    python3 -c 'import sys, urllib.request as u; sys.stdout.write(u.urlopen(u.Request(sys.argv[1], headers=dict(a.split(": ") for a in sys.argv[2:])), timeout=10).read().decode())' "$@"
}

@test "promtool accepts configuration and rules, and each alert fires on its cause" {
    promtool check config "$deploy/prometheus.yml"
    promtool check rules "$deploy/rules.yml"
    promtool test rules "$deploy/rules_test.yml"
    sed 's/) > 0\.3/) > 0.6/' "$deploy/rules.yml" >"$tmp/rules.yml"
    cp "$deploy/rules_test.yml" "$tmp/"
    run promtool test rules "$tmp/rules_test.yml"
    [ "$status" -ne 0 ]
}

@test "the commands of deploy/prometheus/README.md run" {
    follow deploy/prometheus/README.md fleet metrics
    nothing_is_left 10
}

@test "the dashboard's panels have distinct numbers, and each query names a datasource variable" {
    python3 - "$root/deploy/grafana/penstock.json" <<'END'
import json, sys
board = json.load(open(sys.argv[1]))
ids = [panel["id"] for panel in board["panels"]]
assert len(ids) == len(set(ids)) >= 15
assert all(t["datasource"]["uid"] == "${datasource}" for p in board["panels"] for t in p["targets"])
assert board["templating"]["list"][0]["name"] == "datasource"
END
}

@test "Prometheus finds all processes of a job through its scheduler, and every rule and dashboard query has an answer" {
    local port
    port=$(free_port)
    start watched --http "127.0.0.1:$port" --servers 2 --replicas 1 --nproc-per-node 2 --store "$tmp/store" --snapshot-every 20 \
        "$examples/fashion_mnist" --epochs 1000
    start_prometheus "$port"
    $metrics wait "http://$at" 5 60 || { cat "$tmp/prometheus.log" "$tmp/watched.err"; false; }

    page "http://127.0.0.1:$port/targets" >"$tmp/targets"
    for target in $(grep -oE '127\.0\.0\.1:[0-9]+' "$tmp/targets"); do
        page "http://$target/metrics" >"$tmp/page"
        promtool check metrics <"$tmp/page"
        page "http://$target/metrics" "Accept: application/openmetrics-text" >"$tmp/open"
        [ "$(tail -n 1 "$tmp/open")" = "# EOF" ]
        $metrics strict <"$tmp/open"
    done

    for _ in $(seq 40); do # rates need two scrapes of all metrics, including snapshots
        $metrics ask "http://$at" "$root/deploy/grafana/penstock.json" >"$tmp/asked" && break
        sleep 1
    done
    cat "$tmp/asked"
    grep -qE '^([0-9]+) expressions asked, \1 answered$' "$tmp/asked"

    kill -STOP "$(member worker 1)" # the others wait for it, and the scheduler gets no heartbeats
    $metrics firing "http://$at" PenstockMemberSilent 30
    kill "$launcher"
    wait_for_end 30
    kill "$prometheus"
    nothing_is_left 20
}
