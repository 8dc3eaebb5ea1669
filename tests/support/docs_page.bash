# docs_page.bash - functions for the commands of a page; see docs.awk.
printed=$PWD/.printed
: >"$printed"
. build/env
block() { # LINE: its commands come next
    at=$1
    echo "$at" >.at
}

# A reader's compilation must have no warnings.
cc() {
    command cc -Wall -Wextra -Werror "$@"
}

# Checks that the last block printed this line; ... matches anything.
prints() {
    local line pattern=${1//\\/\\\\}
    pattern=${pattern//\*/\\*}
    pattern=${pattern//\?/\\?}
    pattern=${pattern//\[/\\[}
    pattern=${pattern//.../*}
    while IFS= read -r line; do
        # shellcheck disable=SC2053
        [[ $line == $pattern ]] && return
    done <"$printed"
    echo "$PAGE, below line $at: this is not printed:  $1"
    return 1
}

# Waits until a command succeeds, at most 60 s.
await() {
    local end=$((SECONDS + 60))
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || { echo "$PAGE, after line ${at:-}: never came: $*"; return 1; }
        sleep 0.05
    done
}

# The step of the running job.
step_now() {
    penstock status --json | sed -n 's/^[^[]*"step":\(-\{0,1\}[0-9]*\).*/\1/p'
}

# Whether the running job has reached this step.
in_step() {
    local step
    step=$(step_now)
    [ "${step:--1}" -ge "$1" ]
}

# Whether this many members of a role are active:  members server 3
members() {
    [ "$(penstock status | grep -cE "^$1 .* active ")" = "$2" ]
}
