# docs_hosts.bash - functions for the commands of a page for several hosts; load it after hosts.bash and docs_page.bash, see
# docs.awk.
here=$PWD
exec {numbers_fd}<>"$tmp/hosts/numbers"
all_printed=$here/.all
sides=()
: >"$all_printed"

# Starts a block of commands on a host, in the reader's folder of that host.  A file of another host is copied
# by a fake scp, which does not use the network.
cat >"$here/.begin" <<END
. "$root/tests/support/docs_page.bash"
END
cat >>"$here/.begin" <<'END'
scp() {
    local word to=${*: -1}
    for word in "${@:1:$#-1}"; do
        [[ $word == -* ]] || cp -r "../${word%%:*}/${word#*:}" "$to"
    done
}
END

# Starts the commands of standard input:  on_host node0 LINE.  A command that needs a join line gets the one that another
# host has printed.
on_host() {
    local side=side${#sides[@]} pid=$1_pid
    at=$2
    echo "$at" >.at
    [ "${#sides[@]}" != 0 ] || : >"$printed" >"$here/.together"
    sides+=("$side")
    { cat "$here/.begin"; cat; } >".$side"
    find "$here" -maxdepth 1 -type f -not -name '.*' -exec cp -t "$1" {} + # what the page wrote
    begin "$side" "${into_host[@]}" -t "${!pid}" -- env --chdir "$here/$1" XDG_RUNTIME_DIR="$tmp/hosts/$1" \
        TMPDIR="$tmp/hosts/$1" bash -eu "../.$side" < <(line_to_join_by) >>"$printed" 2>&1
    begun 1
}

# Until the commands that run side by side have ended; the first of them joins no other.
line_to_join_by() {
    local line=
    exec 2>/dev/null
    while [ "${#sides[@]}" -gt 1 ] && [ -z "$line" ] && [ -e "$here/.together" ]; do
        sleep 0.02
        line=$(sed -n 's/^penstock: on each other machine.*paste this line:  //p' "$printed")
    done
    echo "$line"
}

# Waits for all commands that run side by side.
hosts_end() {
    local side
    for side in "${sides[@]}"; do ends "$side" 0 120; done
    sides=()
    rm "$here/.together"
    cat "$printed" >>"$all_printed"
}

# Checks that this many trainings of the page have ended, with equal parameters.
same_parameters() {
    sed -n 's/.*parameters crc32c \([0-9a-f]*\).*/\1/p' "$all_printed" | sort | uniq -c >"$here/.parameters"
    [ "$(awk 'NR == 1 { n = $1 } END { print NR, n }' "$here/.parameters")" = "1 $1" ] || { cat "$here/.parameters"; return 1; }
}
