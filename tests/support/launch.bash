# launch.bash - jobs that run to their end, and their launcher's output; load it after job.bash.

# Runs a job to its end:  launch NAME ARGS_OF_RUN...   -> $code, $took_ms, $tmp/NAME.{out,err}
launch() {
    local begun=${EPOCHREALTIME/[.,]/}
    code=0
    pen run --job "$job-$1" "${@:2}" >"$tmp/$1.out" 2>"$tmp/$1.err" || code=$?
    took_ms=$(((${EPOCHREALTIME/[.,]/} - begun) / 1000))
}

# The same, and the job must end with code $1:  ends_with CODE NAME ARGS_OF_RUN...
ends_with() {
    launch "${@:2}"
    [ "$code" = "$1" ] || { echo "exit $code, not $1, after $took_ms ms"; cat "$tmp/$2.out" "$tmp/$2.err"; return 1; }
}

# The launcher's output at the end of a job, without times that differ.
report() {
    sed -n '/^  cause  /,$p' "$tmp/$1.err" | sed -E "s/after [0-9.]+ s/after T s/; s/host $host/host H/"
}

# Waits until all of these files exist in $tmp.
wait_for_files() {
    local name
    for name in "$@"; do
        for _ in $(seq 500); do
            [ -e "$tmp/$name" ] && continue 2
            sleep 0.02
        done
        echo "$name was not made"
        return 1
    done
}
