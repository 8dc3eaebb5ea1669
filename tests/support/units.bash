# units.bash - jobs of programs/units, and a comparison of their results; load it after job.bash.

unit_flags=() # of the launcher, in every job
unit_words=() # of the program

# Runs a test program on some workers to its end:  run_program PROGRAM WORKERS NAME LAUNCHER_FLAGS... -- WORDS...
#   -> $tmp/NAME.{out,err}
run_program() {
    local program=$1 workers=$2 name=$3 flags
    take_flags "${@:4}"
    shift $((${#flags[@]} + 4))
    pen run --standalone --no-prefix --job "$job-$name" --nproc-per-node "$workers" "${unit_flags[@]}" "${flags[@]}" \
        "$programs/$program" "${unit_words[@]}" "$@" >"$tmp/$name.out" 2>"$tmp/$name.err" ||
        { echo "exit $? of job $name:"; cat "$tmp/$name.out" "$tmp/$name.err"; return 1; }
}

units() { run_program units 2 "$@"; } # NAME LAUNCHER_FLAGS... -- WORDS...

# Checks that every step's result, on rank 0 and on rank 1, is equal in all these jobs.
same_steps() {
    local name rank
    for name in "$@"; do
        for rank in 0 1; do
            grep -q "^rank $rank " "$tmp/$1.out"
            diff <(grep "^rank $rank " "$tmp/$1.out") <(grep "^rank $rank " "$tmp/$name.out") ||
                { echo "rank $rank: $1 and $name differ"; return 1; }
        done
    done
}
