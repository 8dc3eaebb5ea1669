# scale.bash - shared by the bats files whose jobs grow and shrink: beside job.bash.

# The number of active members of a role:  active server
active() {
    status | members_of | grep -c "^{\"role\":\"$1\".*\"state\":\"active\""
}

# Waits for that number:  settles server 3
settles() {
    for _ in $(seq 400); do
        [ "$(active "$1")" = "$2" ] && return
        sleep 0.1
    done
    echo "there are $(active "$1") of $1, not $2"
    status
    return 1
}

port() {
    sed -n 's/.*"address": "tcp:[^"]*:\([0-9]*\)".*/\1/p' "$tmp/penstock/$launched_job.json"
}

resize() {
    pen "$1" --master-port "$(port)" "${@:2}"
}
