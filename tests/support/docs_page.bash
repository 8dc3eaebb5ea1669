# docs_page.bash - what stands before the commands of a page; see docs.awk.
printed=$PWD/.printed
: >"$printed"
. build/env
block() { # LINE: its commands come next
    at=$1
    echo "$at" >.at
}

# What a reader compiles is compiled without warnings.
cc() {
    command cc -Wall -Wextra -Werror "$@"
}

# The last block printed this line; ... stands for anything.
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

# The step of the job that runs.
step_now() {
    penstock status --json | sed -n 's/^[^[]*"step":\(-\{0,1\}[0-9]*\).*/\1/p'
}

# The job that runs has come to this step.
in_step() {
    local step
    step=$(step_now)
    [ "${step:--1}" -ge "$1" ]
}

# So many members of a role are active:  members server 3
members() {
    [ "$(penstock status | grep -cE "^$1 .* active ")" = "$2" ]
}
