# docs.bats - the documentation: its kinds of blocks, its links, and a section for every status.

load ../support/bats

setup() {
    cd "$BATS_TEST_DIRNAME/../.."
    tmp=$(mktemp -d "${TMPDIR:-/tmp}/hygiene-XXXXXX")
}

teardown() {
    rm -rf "$tmp"
}

pages() { git ls-files -co --exclude-standard '*.md'; }

@test "every block of the documentation states its kind, and every command is run or says why not" {
    run awk -v want=problems -f tests/support/docs.awk $(pages)
    [ -z "$output" ] || { echo "$output"; false; }
    # The rule itself: each of these pages has one fault.
    local fault faults=('```\nls\n```' '```sh\nls\n```' '```bash\nls\n```' '```sh needs luck\nls\n```' '```sh needs hosts\nls\n```' '```sh run on mars\nls\n```' '```sh run fleet none\nls\n```'
        '```output\nx\n```' '```c\nint main(void)\n```' '```c a/b.c\nint x;\n```' '    penstock run x' '```text\nx' '```elvish\nx\n```')
    for fault in "${faults[@]}"; do
        printf "$fault\n" >"$tmp/page.md"
        [ "$(awk -v want=problems -f tests/support/docs.awk "$tmp/page.md" | wc -l)" = 1 ] || { echo "missed: $fault"; return 1; }
    done
}

# The anchor of a heading in a link.
headings() {
    sed '/^```/,/^```/d' "$1" | sed -n 's/^#\{1,6\} //p' | tr 'A-Z ' 'a-z-' | sed 's/[^a-z0-9_-]//g'
}

@test "every link between pages leads to a file, and to an existing heading" {
    local page link file bad=0
    for page in $(pages); do
        for link in $(sed '/^```/,/^```/d' "$page" | grep -oE '\]\([^) ]+' | cut -c 3- | grep -vE '^[a-z]+:'); do
            file=$page
            [ "${link%%#*}" = "" ] || file=$(dirname "$page")/${link%%#*}
            [ -e "$file" ] || { echo "$page: $link is not there"; bad=1; continue; }
            [[ $link != *#* ]] || headings "$file" | grep -qxF -- "${link#*#}" || { echo "$page: $link: no such heading"; bad=1; }
        done
    done
    [ "$bad" = 0 ]
}

@test "every function that the guides call is in the header" {
    local name bad=0
    for name in $(sed -E 's/\]\([^)]*\)//g' docs/guides/*.md | grep -oE '\b(pen|PEN)_[a-zA-Z0-9_]+\b' | sort -u); do
        grep -qE "\b$name\b" include/penstock.h || grep -qE "X\(${name#PEN_}," include/penstock.h || { echo "$name"; bad=1; }
    done
    [ "$bad" = 0 ]
}

@test "the guide to failures has a section for every status, in the header's order and words" {
    sed -nE 's/^ +X\(([A-Z_]+), *(-?[0-9]+), *[A-Z]+, *"(.*)"\).*/\1 \2 \3/p' include/penstock.h >"$tmp/header"
    [ "$(wc -l <"$tmp/header")" -ge 21 ]
    awk '/^### `PEN_/ {gsub(/[`(),]/, ""); name = substr($2, 5); value = $3; getline; getline; sub(/^\*/, ""); sub(/\*$/, ""); print name, value, $0}' \
        docs/guides/failures.md | diff "$tmp/header" -
}

@test "sentences that the guides quote are sentences that tests expect" {
    local line piece bad=0
    cat tests/cli/*.bats tests/cluster/*.bats >"$tmp/tests"
    cat tests/unit/*_test.c tests/conformance/*_test.c | tr '\n' ' ' | sed 's/" *"//g; s/\\"/"/g' >>"$tmp/tests" # joins split literals
    awk '/^```text golden/ {on = 1; next} /^```/ {on = 0} on' docs/guides/*.md >"$tmp/golden"
    [ -s "$tmp/golden" ]
    while IFS= read -r line; do
        while IFS= read -r piece; do # the text between the dots
            [ -z "$piece" ] || grep -qF -- "$piece" "$tmp/tests" || { echo "no test asks for:  $piece"; bad=1; }
        done <<<"${line//.../$'\n'}"
    done <"$tmp/golden"
    [ "$bad" = 0 ]
}

@test "no recipe reads the number of a process out of a table: penstock status --pid says it" {
    ! grep -rnE 'penstock (status|top)[^|]*\| *(awk|cut|sed|grep -o)' README.md docs deploy || return 1
}

@test "no line of a page is longer than 120 columns, except in tables and code" {
    long=$(pages | xargs awk 'FNR == 1 {code = 0} /^ *```/ {code = !code} code || /^ *\|/ || /^    / {next}
        length($0) > 120 {print FILENAME ":" FNR}')
    [ -z "$long" ] || { echo "$long"; return 1; }
}

@test "the picture of the architecture was drawn from the current text" {
    grep -qE "drawn from architecture.dot $(cksum <docs/architecture.dot | cut -d' ' -f1);" docs/architecture.svg ||
        { echo "say: scripts/picture.sh"; return 1; }
}

@test "the README has at most 150 lines" {
    [ "$(wc -l <README.md)" -le 150 ]
}
