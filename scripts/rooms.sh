#!/usr/bin/env bash
# rooms.sh - folders with too many sources, and call cycles between files of a folder:  scripts/rooms.sh [BUILD]
#
# Prints a line for each folder outside tests with more than 25 sources, and one for each cycle: files of one folder
# that all call each other, directly or through other files of the cycle.  A call is a function that one object of
# BUILD defines and another needs.  Ends with the totals.
#
# scripts/rooms.sh --names [BUILD] prints these functions: "needs" or "defines", FOLDER, FILE, FUNCTION.
set -eu
cd "$(dirname "$0")/.."
only=""
[ "${1:-}" != --names ] || { only=names; shift; }
build=${1:-build}
sources() { git ls-files -c '*.c' '*.cu' | grep -v '^tests/'; }

# Our objects, one for each source.
objects() {
    local source
    sources | grep '\.c$' | grep -v '^examples/' | while read -r source; do
        compgen -G "$build/${source%%/*}/CMakeFiles/*.dir/${source#*/}.o" | head -n 1
    done
}

# Their functions, as above.
names() {
    objects | xargs nm -A -g --format=posix | sed -nE "s#^$build/([^/]*)/CMakeFiles/[^/]*/(.*/)?([^/]*)\.o: #\\1/\\2 \\3 #p" | awk '
        {sub("/$", "", $1)}
        $4 == "U" {print "needs", $1, $2, $3}
        $4 == "T" {print "defines", $1, $2, $3}'
}

[ -z "$only" ] || { names; exit; }
{ sources | sed 's/^/source /'; names; } | awk '
    $1 == "source" {sub("/[^/]*$", "", $2); n_sources[$2]++}
    $1 == "defines" {home[$2, $4] = $3}
    $1 == "needs" {need[n++] = $2 SUBSEP $3 SUBSEP $4}
    END {
        for (folder in n_sources) if (n_sources[folder] > 25) {print "room   " n_sources[folder] " sources in " folder; rooms++}
        for (i = 0; i < n; i++) {
            split(need[i], p, SUBSEP)
            to = home[p[1], p[3]]
            if (to == "" || to == p[2]) continue
            calls[p[1], p[2], to] = 1
            if (!seen[p[1], p[2]]++) file[p[1], n_files[p[1]]++] = p[2]
            if (!seen[p[1], to]++) file[p[1], n_files[p[1]]++] = to
        }
        for (f in n_files) {
            for (k = 0; k < n_files[f]; k++) for (i = 0; i < n_files[f]; i++) if (calls[f, file[f, i], file[f, k]])
                for (j = 0; j < n_files[f]; j++) if (calls[f, file[f, k], file[f, j]]) calls[f, file[f, i], file[f, j]] = 1
            for (i = 0; i < n_files[f]; i++) {
                if (done[f, i] || !calls[f, file[f, i], file[f, i]]) continue
                text = ""; size = 0
                for (j = i; j < n_files[f]; j++)
                    if (calls[f, file[f, i], file[f, j]] && calls[f, file[f, j], file[f, i]]) {
                        done[f, j] = 1; size++; text = text " " file[f, j]
                    }
                printf "circle %d files in %s:%s\n", size, f, text
                circles++
                if (size > most) most = size
            }
        }
        printf "total  %d rooms of more than 25 sources, %d circles, the largest of %d files\n", rooms, circles, most
    }' | sort
