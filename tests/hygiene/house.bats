# house.bats - the rules of the house that a compiler does not check.

load ../support/bats

setup() {
    cd "$BATS_TEST_DIRNAME/../.."
    build=${BUILD:-$PWD/build}
    tmp=$(mktemp -d "${TMPDIR:-/tmp}/hygiene-XXXXXX")
}

teardown() {
    rm -rf "$tmp"
}

sources() { git ls-files -co --exclude-standard '*.c' '*.h' '*.inc' '*.cu'; }

# Fails if a file of folder $1 includes any of the folders that follow.
no_include() {
    local folder=$1
    shift
    for other in "$@"; do
        run grep -rnE "#include \"$other/" "$folder" --include='*.c' --include='*.h' --include='*.inc'
        [ -z "$output" ] || { echo "$folder/ may not include $other/:"; echo "$output"; return 1; }
    done
}

@test "includes point from cli to worker, server and scheduler, to membership, to proto, to common, never sideways" {
    no_include common proto membership scheduler server worker cli
    no_include proto membership scheduler server worker cli
    no_include membership scheduler server worker cli
    no_include scheduler server worker cli
    no_include server scheduler worker cli
    no_include worker scheduler server cli
}

# The current numbers; a change that lowers them writes the lower ones here.
@test "no more folders are crowded, and no more files call each other in circles, than scripts/rooms.sh has found" {
    scripts/rooms.sh "$build" >"$tmp/rooms"
    read -r rooms _ circles _ <<<"$(grep '^total' "$tmp/rooms" | tr -dc '0-9 ')"
    [ "$rooms" = 0 ] && [ "$circles" = 0 ] || { cat "$tmp/rooms"; return 1; }
}

# Roles and ranks pass through it as numbers and names. Two parts deal with them: the keys of each process, and the
# meaning of a launcher's variables.
@test "common/ decides nothing by role: except for keys and launchers its code names none" {
    run bash -c "git ls-files -co --exclude-standard 'common/*.c' 'common/*.h' 'common/*.inc' 'common/*.cu' |
        grep -vE '^common/net/auth/|^common/launch/' |
        xargs grep -lE 'PEN_(WORKER|SERVER|SCHEDULER)|GUARD_|LAUNCH_|WIRE_|\"(worker|server|scheduler)\"' | while read -r file; do
            gcc -fpreprocessed -dD -E -P -x c \"\$file\" 2>/dev/null |
                grep -nE '\bPEN_(WORKER|SERVER|SCHEDULER)\b|\bGUARD_[A-Z]+\b|\bLAUNCH_(WORKER|SERVER|SCHEDULER)\b|\bWIRE_[A-Z]|\"(worker|server|scheduler)\"' |
                sed \"s|^|\$file: |\"
        done"
    [ -z "$output" ] || { echo "$output"; false; }
}

# Another function uses it if an object has its name, or if its own file names it more than once.
@test "a function that only tests call is declared in a header *_test.h, which says so" {
    scripts/rooms.sh --names "$build" >"$tmp/names"
    awk '$1 == "defines" {file[$4] = $2 "/" $3} $1 == "needs" {needed[$4] = 1}
         END {for (f in file) if (!needed[f] && f !~ /^pen_/ && f != "main") print file[f], f}' "$tmp/names" >"$tmp/alone"
    while read -r file name; do
        [ "$(find "${file%%/*}" -name "$(basename "$file")" -exec grep -ohw "$name" {} + | wc -l)" -gt 1 ] ||
            git ls-files -co --exclude-standard '*_test.h' | xargs grep -qw "$name" || { echo "only tests call $name() of $file"; bad=1; }
    done <"$tmp/alone"
    [ -z "${bad:-}" ]
}

@test "the only project header that examples include is penstock.h" {
    no_include examples common proto membership scheduler server worker cli
}

@test "every public function that computes does so in our floating-point environment" {
    local name none=" pen_version pen_status_info pen_last_error pen_log_set pen_abort pen_spawn pen_rank pen_size pen_group_ranks "
    for name in $(nm -D --defined-only "$build/lib/libpenstock.so" | sed -n 's/.* T \(pen_[a-z_]*\)@.*/\1/p'); do
        [[ $none != *" $name "* ]] || continue
        grep -rhA6 --include='*.c' -E "^[a-z].*[ *]$name\(" worker server | grep -A1 '^{' | grep -q '^    FP_ENV_OURS();$' ||
            { echo "$name() does not begin with FP_ENV_OURS();"; return 1; }
    done
}

@test "zmq.h, lmdb.h, OpenSSL, the generated headers and CUDA have one door each" {
    [ "$(grep -rlE '#include <zmq\.h>' common proto membership scheduler server worker cli)" = common/net/transport/transport_zmq.h ]
    [ -z "$(grep -rlE '#include "common/net/transport/transport_zmq\.h"' common proto membership scheduler server worker cli | grep -v '^common/net/transport/transport_zmq')" ]
    [ "$(grep -rlE '#include <sodium' common proto membership scheduler server worker cli)" = common/net/auth/secret.c ]
    [ "$(grep -rlE '#include <openssl' common proto membership scheduler server worker cli | sort | paste -sd' ')" = "common/net/transport/tls.c common/net/transport/tls_gcm.c" ]
    [ "$(grep -rlE '#include <intel-ipsec-mb\.h>' common proto membership scheduler server worker cli)" = common/net/transport/tls_gcm.c ]
    [ "$(grep -rlE '#include "common/net/transport/tls_gcm\.h"' common proto membership scheduler server worker cli | sort | paste -sd' ')" = "common/net/transport/tls.c common/net/transport/tls_gcm.c" ]
    [ "$(grep -rlE '#include <lmdb\.h>' common proto membership scheduler server worker cli)" = common/snapshot/store_env.c ]
    [ "$(grep -rlE '#include <uthash' common proto membership scheduler server worker cli)" = common/containers/hash.h ]
    [ "$(grep -rlE '#include <microhttpd' common proto membership scheduler server worker cli)" = common/net/http.c ]
    [ -z "$(grep -rlE '\.pb-c\.h' common scheduler server worker cli --include='*.c' --include='*.h')" ]
    [ "$(grep -rlE '#include <cuda' common proto membership scheduler server worker cli)" = common/compute/device/device_cuda.h ]
    [ -z "$(grep -rlE '#include "common/compute/device/device_cuda\.h"' common proto membership scheduler server worker cli | grep -v '^common/compute/device/device_cuda')" ]
}

@test "workers copy to and from a device by device_copy() only, which counts the bytes" {
    run grep -rnE '(->|\.)copy\(' worker --include='*.c' --include='*.h'
    [ -z "$output" ] || { echo "$output"; false; }
    [ "$(grep -rlE '\bops->copy\(' common --include='*.c' | grep -v /simd/)" = common/compute/device/device.c ]
}

@test "only common/base/config.c reads the environment" {
    run grep -rnE '\b(secure_)?getenv *\(' common proto membership scheduler server worker cli --include='*.c'
    [ "$(echo "$output" | grep -v '^common/base/config.c:')" = "" ]
}

@test "the library never aborts, exits or writes to stdout" {
    run grep -nE '\b(abort|exit|_exit|printf|puts|putchar) *\(' $(find worker proto membership scheduler common -name "*.c" | grep -v worker/api/api_spawn.c)
    [ "$(echo "$output" | grep -vE '(sn|vsn|f|d)printf|:[0-9]+:( \*|/\*|.*(->|\.)abort)' | grep .)" = "" ] || { echo "$output"; false; }
}

@test "every header compiles alone, the public one as C99 and as C++ with -Iinclude only" {
    git ls-files -co --exclude-standard 'common/*.h' 'proto/*.h' 'membership/*.h' 'scheduler/*.h' 'server/*.h' 'worker/*.h' 'cli/*.h' |
        grep -v '^examples' | xargs -P "$(nproc)" -I {} sh -c 'echo "#include \"{}\"" |
            gcc -std=c11 -D_GNU_SOURCE -I. -Iinclude -Wall -Wextra -Werror -fsyntax-only -x c - || { echo "{}"; exit 1; }'
    echo '#include "penstock.h"' | gcc -std=c99 -pedantic -Wall -Wextra -Werror -Iinclude -fsyntax-only -x c -
    echo '#include "penstock.h"' | g++ -std=c++11 -pedantic -Wall -Wextra -Werror -Iinclude -fsyntax-only -x c++ -
}

@test "libpenstock.so exports exactly the functions of penstock.h" {
    nm -D --defined-only "$build/lib/libpenstock.so" | awk '$2 ~ /[TDBR]/ {print $3}' | sed 's/@.*//' | sort >"$tmp/exported"
    awk '/^PEN_(API|MUST)/ {s = $0; sub(/ *\(.*/, "", s); n = split(s, w, /[ *]+/); print w[n]}' include/penstock.h | sort >"$tmp/declared"
    diff "$tmp/declared" "$tmp/exported"
    [ "$(wc -l <"$tmp/declared")" -ge 80 ]
}

# An error must not send its reader to a function that does not exist.
@test "every pen_ name in a sentence or a page is one of penstock.h" {
    grep -oE '\bpen_[a-z0-9_]+' include/penstock.h | sort -u >"$tmp/there"
    git ls-files -co --exclude-standard '*.c' '*.h' '*.inc' | grep -v '^tests/' | xargs grep -ohE '"([^"\]|\\.)*"' |
        grep -oE '\bpen_[a-z0-9_]*[a-z0-9]\b' >"$tmp/named"
    [ "$(wc -l <"$tmp/named")" -gt 300 ]
    git ls-files -co --exclude-standard '*.md' | grep -v '^tests/' | xargs grep -ohE '`[^`]*`' | grep -oE '\bpen_[a-z0-9_]*[a-z0-9]\b' >>"$tmp/named"
    comm -13 "$tmp/there" <(sort -u "$tmp/named") >"$tmp/invented"
    [ ! -s "$tmp/invented" ] || { cat "$tmp/invented"; false; }
}

@test "sizes of the public structs match the ABI table" {
    bash tests/hygiene/abi.sh "$tmp" >"$tmp/abi"
    diff tests/hygiene/abi.txt "$tmp/abi"
}

@test "the generated pages of docs/ are up to date" {
    scripts/docs.sh "$build" "$tmp/docs"
    for page in "$tmp"/docs/*; do
        diff "docs/$(basename "$page")" "$page" || { echo "say: make docs"; return 1; }
    done
}

@test "every folder of sources has a README" {
    for folder in common proto membership scheduler server worker cli tests include docs examples deploy; do
        [ -f "$folder/README.md" ] || { echo "$folder has none"; return 1; }
    done
}

@test "the first line of every source has its name and says what it is" {
    # shellcheck disable=SC2046
    run awk 'FNR == 1 { n = split(FILENAME, part, "/") }
             FNR == 1 && (index($0, "/* " part[n] " - ") != 1 || / - see [a-z_]*\.h\. \*\/$/) { print FILENAME ": " $0 }' $(sources)
    [ -z "$output" ] || { echo "$output"; return 1; }
}

@test "nothing in the tree looks unfinished" {
    run bash -c "git ls-files -co --exclude-standard '*.c' '*.h' '*.inc' '*.sh' '*.md' '*.txt' Makefile | grep -v '^tests/hygiene/' | xargs grep -nE '\b(TODO|FIXME|XXX|HACK)\b'"
    [ -z "$output" ] || { echo "$output"; false; }
}

@test "the tree is formatted by the pinned clang-format" {
    sources | grep -v golden_ | xargs clang-format-14 --dry-run -Werror
}

@test "every C test has an assertion" {
    for file in $(git ls-files -co --exclude-standard 'tests/*_test.c'); do
        awk -v file="$file" '
            /^[a-z].*[a-z_0-9]+\(.*[^;]$/ {name = $0; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name); body[name] = ""}
            name != "" {body[name] = body[name] "\n" $0}
            /^}/ {name = ""}
            END {
                for (f in body) if (body[f] ~ /assert_|fail_msg|_walk\(|check_|expect_/) good[f] = 1
                for (round = 0; round < 6; round++)
                    for (f in body)
                        for (g in good)
                            if (!(f in good) && body[f] ~ ("[^a-z_0-9]" g "[^a-z_0-9]")) {good[f] = 1; break}
                for (f in body)
                    if (f ~ /^(test|sim)_/ && !(f in good)) {print file ": " f " asserts nothing"; bad = 1}
                exit bad
            }' "$file" $(grep -o '"tests/unit/[a-z_]*\.h"' "$file" | tr -d '"') || return 1
    done
}

@test "every negation in a test can fail: bash continues after '! command' alone" {
    run bash -c "grep -nE '^ +! ' tests/*/*.bats tests/support/*.bash | grep -vE '\|\| |&& break'"
    [ -z "$output" ] || { echo "$output"; echo "say: ! command || return 1"; false; }
}

@test "no path of one machine is in the tree" {
    run bash -c "git ls-files -co --exclude-standard | grep -v '^tests/hygiene/' | xargs grep -nE '(/home/|/root/|/work/)[a-z]'"
    [ -z "$output" ] || { echo "$output"; false; }
}

@test "every source that the fuzzers compile is in the tree" {
    for file in $(grep -ohE '\b(common|proto|server|worker|scheduler|cli|tests)/[a-z_0-9/]+\.c\b' tests/fuzz/run.sh | sort -u); do
        [ -e "$file" ] || { echo "$file is not there"; return 1; }
    done
}

@test "every file the tour names is in the tree" {
    git ls-files -co --exclude-standard | sed 's|^|/|' >"$tmp/files"
    grep -ohE '`[a-z_/]+(/[a-zA-Z_0-9.]+)*\.(c|h|inc|md|bats|sh)`' docs/tour.md docs/design/*.md README.md */README.md | tr -d '`' |
        grep -vE '_x\.|^(lmdb|zmq|sodium|openssl)\.h' | sort -u >"$tmp/named"
    [ "$(wc -l <"$tmp/named")" -ge 100 ]
    awk 'NR == FNR { for (at = $0; at != ""; sub("^/[^/]*", "", at)) ends[substr(at, 2)]; next }
         !($0 in ends) { print $0 " is not there"; bad = 1 }
         END { exit bad }' "$tmp/files" "$tmp/named"
}

# The current numbers; a change that lowers them writes the lower ones here.
@test "the ways of a gradient, an update, a death and a start pass no more functions and files than now" {
    scripts/ways.py >"$tmp/ways"
    while read -r way functions files; do
        grep -E "^$way +[0-9]+ functions in [0-9]+ files$" "$tmp/ways" | tr -dc '0-9 ' | {
            read -r has_functions has_files
            [ "$has_functions" -le "$functions" ] && [ "$has_files" -le "$files" ]
        } || { grep "^$way" "$tmp/ways"; return 1; }
    done <<<"push 14 4
update 14 6
death 13 4
start 18 4"
}

# Rows of the walk: | 3 | `file`: `function`, `function`; `file`: `function` | ...
@test "the tour names each function between pen_ready and the transport, in its file, and their number" {
    scripts/ways.py --list push >"$tmp/way"
    grep -oE '`[a-z_/]+\.c`: `[a-z_]+`(, `[a-z_]+`)*' docs/tour.md | tr -d '`:,' | while read -r file functions; do
        for function in $functions; do
            grep -qE "^(static )?[a-z].*[ *]$function\(" "$file" || { echo "$function is not in $file" >&2; exit 1; }
            echo "    $file: $function"
        done
    done >"$tmp/walk"
    grep '^ ' "$tmp/way" | grep -vxF -f "$tmp/walk" && { echo "the tour does not name these"; return 1; }
    grep -q "passes $(sed -n '1s/^push *//p' "$tmp/way") " docs/tour.md
}

# The words of the second walk's table that are no file are functions of the files of their row.
@test "the tour's walk from pen_all_reduce to the socket is at most 18 functions in 10 files, each in a file of its row" {
    sed -n '/^A part on its way/,/^That is/p' docs/tour.md | grep '^| `' >"$tmp/rows"
    while read -r row; do
        grep -oE '`[a-z_/]+\.c`' <<<"$row" | tr -d '`' >"$tmp/files"
        cat "$tmp/files" >>"$tmp/walked"
        for function in $(cut -d'|' -f3 <<<"$row" | grep -oE '`[a-z_]+`' | tr -d '`' | grep -vx sendmsg); do
            xargs grep -qE "^(static )?[a-z].*[ *]$function\(" <"$tmp/files" || { echo "$function: $row"; return 1; }
            echo "$function" >>"$tmp/functions"
        done
    done <"$tmp/rows"
    [ "$(wc -l <"$tmp/functions")" -le 18 ] && [ "$(wc -l <"$tmp/functions")" -ge 12 ]
    [ "$(sort -u "$tmp/walked" | wc -l)" -le 10 ] && [ "$(head -n 1 "$tmp/functions")" = pen_all_reduce ]
}

@test "the program of the README is examples/linear.c, of at most 30 lines" {
    sed -n '/<!-- linear.c -->/,/<!-- \/linear.c -->/p' README.md | sed '1,2d' | sed '/^```$/,$d' >"$tmp/linear.c"
    diff "$tmp/linear.c" examples/linear.c
    lines=$(gcc -fpreprocessed -dD -E -P "$tmp/linear.c" 2>/dev/null | grep -cv '^ *$')
    [ "$lines" -le 30 ] || { echo "$lines lines"; return 1; }
    gcc -std=c99 -Wall -Werror -Iinclude -o "$tmp/linear" "$tmp/linear.c" -L"$build/lib" -lpenstock -Wl,-rpath,"$build/lib"
    alone=$("$tmp/linear" 2>/dev/null)
    two=$("$build/bin/penstock" run --standalone --no-prefix --nproc-per-node 2 --servers 1 "$tmp/linear" 2>/dev/null)
    [ -n "$alone" ]
    [ "$alone" = "$two" ]
}
