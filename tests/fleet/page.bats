# page.bats - the live page of a running training, in a real browser.
#
# PAGE_SHOTS names a folder that keeps the screenshots; else they are deleted. Those in docs/ are reduced by pngquant.

load ../support/job

playwright=playwright-core@1.65.0

setup_file() {
    command -v npm >/dev/null && command -v chromium >/dev/null || return 0
    cp "$BATS_TEST_DIRNAME/support/page.mjs" "$BATS_FILE_TMPDIR/"
    (cd "$BATS_FILE_TMPDIR" && timeout 120 npm install --no-save --no-audit --no-fund "$playwright") >"$BATS_FILE_TMPDIR/npm.log" 2>&1 || :
}

setup() {
    command -v node >/dev/null && command -v npm >/dev/null || skip "needs node and npm: apt install npm"
    command -v chromium >/dev/null || skip "needs chromium: apt install chromium"
    [ -d "$BATS_FILE_TMPDIR/node_modules/playwright-core" ] || skip "needs $playwright of npm, which could not be installed"
    job_setup
    shots=${PAGE_SHOTS:-$tmp}
}

teardown() {
    [ -z "${tmp:-}" ] || job_teardown
}

# The address of the started job's page.
page_url() {
    sed -n 's/.*"http": *"\([^"]*\)".*/\1/p' "$tmp/penstock/$launched_job.json"
}

train_with_page() {
    start one --servers 3 --replicas 1 --nproc-per-node 2 "$@" "$examples/fashion_mnist" --epochs 1000
    wait_for_step 20
}

look() {
    local url=$1
    (cd "$BATS_FILE_TMPDIR" && HOME=$tmp timeout 150 node page.mjs "$url" "$shots" 1 "$(member server 1)" 3>&-) >"$tmp/seen" 2>&1 ||
        { cat "$tmp/seen" "$tmp/one.err"; return 1; }
    sed 's/^/# /' "$tmp/seen" >&3
}

@test "the page shows a job, its metrics and, within 2 s, a killed server, to eyes, keyboards and screen readers" {
    train_with_page
    look "$(page_url)/"
    grep -qE '^shown +[0-9]+ ms after server 1 was killed' "$tmp/seen"
    for picture in page-light.png page-dark.png; do
        [ "$(stat -c %s "$shots/$picture")" -gt 10000 ]
    done
    kill "$launcher"
    wait_for_end 20
    nothing_is_left 10
}

@test "off loopback the page asks for the token once, and then works with its cookie" {
    head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$tmp/token"
    chmod 600 "$tmp/token"
    train_with_page --http "0.0.0.0:$(free_port)" --http-token-file "$tmp/token"
    local port
    port=$(page_url | sed 's/.*://')
    look "http://127.0.0.1:$port/?token=$(cat "$tmp/token")"
    kill "$launcher"
    wait_for_end 20
    nothing_is_left 10
}
