# tables.bash - runs programs/table and compares what its workers read.  table_flags: of the launcher, for each run.

# Runs programs/table:  table NAME WORKERS SERVERS "LAUNCHER_FLAGS" WORDS...
table() {
    local name=$1 workers=$2 servers=$3
    # shellcheck disable=SC2086
    pen run --standalone --no-prefix --job "$job-$name" --nproc-per-node "$workers" --servers "$servers" ${table_flags:-} $4 \
        "$programs/table" "${@:5}" >"$tmp/$name.out" 2>"$tmp/$name.err" ||
        { echo "exit $? of job $name: ${*:2}"; tail "$tmp/$name.out" "$tmp/$name.err"; return 1; }
}

digests() { grep -h digest "$tmp/$1.out" | cut -d' ' -f4- | sort -u; }

# All workers of all these jobs read the same bits.
same() {
    local name
    [ "$(for name in "$@"; do digests "$name"; done | sort -u | wc -l)" = 1 ] ||
        { for name in "$@"; do echo "$name: $(digests "$name")"; done; return 1; }
}
