# docs.bash - runs what a page of the documentation says; after job.bash.  docs.awk has the words.

# Pages that people read, from the root of the tree.
doc_pages() {
    (cd "$root" && git ls-files -co --exclude-standard '*.md')
}

# Does all commands of a page in a folder of its own, where the tree and the build are:  follow PAGE [fleet [NAME]]
# (NAME: only those that the page leaves to tests/fleet/NAME.bats.)
follow() {
    local page=$1 here entry code=0
    here=$(mktemp -d "$tmp/page-XXXXXX")
    mkdir "$here/build"
    for entry in "$root"/*; do [ "$entry" = "$root/build" ] || ln -s "$entry" "$here/"; done
    for entry in "$build"/*; do ln -s "$entry" "$here/build/"; done
    (cd "$root" && awk -v want=script -v fleet="${2:+1}" -v name="${3:-}" -f tests/support/docs.awk "$page") >"$tmp/script"
    [ -s "$tmp/script" ] || { echo "$page has nothing to run"; return 1; }
    sed -i "s/\b295\([0-9][0-9]\)\b/$((200 + RANDOM % 100))\1/g" "$tmp/script" # other ports each time: two tests may run at once
    cat "$root/tests/support/docs_page.bash" "$tmp/script" >"$here/.page"
    (cd "$here" && PAGE=$page MARK=$mark timeout --foreground -k 5 "${LIMIT:-240}" bash -eu .page 3>&-) || code=$?
    [ "$code" = 0 ] || { echo "$page:$(cat "$here/.at"): exit $code"; tail -n 40 "$here/.printed"; }
    return "$code"
}
