# docs.bash - runs the commands of a documentation page; load it after job.bash.  docs.awk explains the blocks.

# Pages that people read, from the root of the tree.
doc_pages() {
    (cd "$root" && git ls-files -co --exclude-standard '*.md')
}

# A folder as a reader has it, with the tree and the build.
reader_folder() {
    mkdir -p "$1/build"
    find "$root" -mindepth 1 -maxdepth 1 -not -name build -not -name '.*' -exec ln -s -t "$1" {} +
    ln -s -t "$1/build" "$build"/*
}

# Runs all commands of a page in a folder of its own:  follow PAGE [fleet [NAME] | torch]
# (NAME: only those marked for tests/fleet/NAME.bats.)
follow() {
    local page=$1 here code=0
    here=$(mktemp -d "$tmp/page-XXXXXX")
    reader_folder "$here"
    (cd "$root" && awk -v want=script -v more="${2:-}" -v name="${3:-}" -f tests/support/docs.awk "$page") >"$tmp/script"
    [ -s "$tmp/script" ] || { echo "$page has nothing to run"; return 1; }
    sed -i "s/\b295\([0-9][0-9]\)\b/$((200 + RANDOM % 100))\1/g" "$tmp/script" # other ports each time: two tests may run at once
    cat "$root/tests/support/docs_page.bash" "$tmp/script" >"$here/.page"
    (cd "$here" && PAGE=$page MARK=$mark timeout --foreground -k 5 "${LIMIT:-240}" bash -eu .page 3>&-) || code=$?
    [ "$code" = 0 ] || { echo "$page:$(cat "$here/.at"): exit $code"; tail -n 40 "$here/.printed"; }
    return "$code"
}

# Pages with commands for several hosts.
hosts_pages() {
    local page
    for page in $(doc_pages); do
        ! grep -qE '^```sh run on ' "$root/$page" || echo "$page"
    done
}

# Runs a page's commands on several hosts, which are up; on each the reader has a folder:  follow_on_hosts PAGE
follow_on_hosts() {
    local page=$1 here host code=0
    here=$(mktemp -d "$tmp/page-XXXXXX")
    for host in . $(cd "$root" && sed -n 's/^```sh run on \(node[0-7]\)$/\1/p' "$page" | sort -u); do reader_folder "$here/$host"; done
    {
        declare -p tmp mark root "${!node@}"
        cat "$root/tests/support/hosts.bash" "$root/tests/support/docs_page.bash" "$root/tests/support/docs_hosts.bash"
        (cd "$root" && awk -v want=script -v hosts=1 -f tests/support/docs.awk "$page")
    } >"$here/.page"
    (cd "$here" && PAGE=$page MARK=$mark timeout --foreground -k 5 "${LIMIT:-240}" bash -eu .page 3>&-) || code=$?
    [ "$code" = 0 ] || { echo "$page:$(cat "$here/.at"): exit $code"; tail -n 40 "$here/.printed"; }
    return "$code"
}
