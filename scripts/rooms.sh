#!/usr/bin/env bash
# rooms.sh - how crowded folders are, and which of their files call each other in circles:  scripts/rooms.sh [BUILD]
#
# A line for each folder outside tests with more than 25 sources, headers counted, and one for each circle: files of
# which each calls, perhaps through others of them, all others.  Calls are what the linker sees in the objects of BUILD:
# a function that one file defines and another needs.  Ends with the totals.
#
# scripts/rooms.sh --names [BUILD] prints these functions: "needs" or "defines", FOLDER, FILE, FUNCTION.
set -eu
cd "$(dirname "$0")/.."
only=""
[ "${1:-}" != --names ] || { only=names; shift; }
build=${1:-build}
sources() { git ls-files -c '*.c' '*.h' '*.cu' '*.cuh' '*.inc' '*.proto' | grep -v '^tests/'; }

# The objects of what we compile, one for each source.
objects() {
    local source
    sources | grep '\.c$' | grep -v '^examples/' | while read -r source; do
        compgen -G "$build/${source%%/*}/CMakeFiles/*.dir/${source#*/}.o" | head -n 1
    done
}

# Each function of them, as above.
names() {
    objects | xargs nm -A -g --format=posix | sed -nE "s#^$build/([^/]*)/CMakeFiles/[^/]*/(.*/)?([^/]*)\.o: #\\1/\\2 \\3 #p" | awk '
        {sub("/$", "", $1)}
        $4 == "U" {print "needs", $1, $2, $3}
        $4 == "T" {print "defines", $1, $2, $3}'
}

[ -z "$only" ] || { names; exit; }
{ sources | sed 's/^/source /'; names; } | awk '
    $1 == "source" {sub("/[^/]*$", "", $2); n_sources[$2]++}
    $1 == "defines" {home[$4] = $2 "/" $3; n_homes[$4]++}
    $1 == "needs" {from[n] = $2 "/" $3; needed[n++] = $4}
    # Leaves each file that nobody left calls, or that calls nobody left, out.
    function trim(    pair, p, went) {
        do {
            went = 0
            split("", has_in); split("", has_out)
            for (pair in calls) {split(pair, p, SUBSEP); has_out[p[1]] = 1; has_in[p[2]] = 1}
            for (pair in calls) {
                split(pair, p, SUBSEP)
                if (!has_in[p[1]] || !has_out[p[2]]) {delete calls[pair]; went = 1}
            }
        } while (went)
    }
    END {
        for (folder in n_sources) if (n_sources[folder] > 25) {print "room   " n_sources[folder] " sources in " folder; rooms++}
        for (i = 0; i < n; i++)
            if (n_homes[needed[i]] == 1 && home[needed[i]] != from[i]) calls[from[i], home[needed[i]]] = 1
        trim()
        for (f in has_in) file[n_files++] = f
        for (k = 0; k < n_files; k++) for (i = 0; i < n_files; i++) if (calls[file[i], file[k]])
            for (j = 0; j < n_files; j++) if (calls[file[k], file[j]]) calls[file[i], file[j]] = 1
        for (i = 0; i < n_files; i++) {
            if (done[i] || !calls[file[i], file[i]]) continue
            text = ""; size = 0
            for (j = i; j < n_files; j++)
                if (calls[file[i], file[j]] && calls[file[j], file[i]]) {done[j] = 1; size++; text = text " " file[j]}
            printf "circle %d files:%s\n", size, text
            circles++
            if (size > most) most = size
        }
        printf "total  %d rooms of more than 25 sources, %d circles, the largest of %d files\n", rooms, circles, most
    }' | sort
