# netfault.bash - networks that fail between the processes of a job; load it after job.bash.
#
# Two kinds of network; the first needs no rights:
#   relays      All on loopback; a program in user space (cluster/programs/relay.c) stands between the processes and
#               holds, delays, resets or moves their connections.
#   namespaces  Hosts n0, n1, ... with a network namespace, a name and an /etc/hosts of their own, whose cables lead to
#               a switch in user space (cluster/programs/netswitch.c) that loses, delays and cuts frames; `ip link`
#               unplugs.  Needs root, or a kernel that lets users make namespaces.
# Processes with the test's MARK hold the namespaces: job_teardown ends them, and the namespaces disappear.

# ---- programs that take commands -----------------------------------------------------------------

# Starts a program that answers each line with a line:  tool_start VARIABLE COMMAND...
# VARIABLE_in and VARIABLE_out become descriptors of this shell.
tool_start() {
    local name=$1 in=$tmp/$1.in out=$tmp/$1.out
    shift
    mkfifo "$in" "$out"
    exec {tool_in}<>"$in" {tool_out}<>"$out"
    MARK=$mark "$@" <"$in" >"$out" 2>"$tmp/$name.err" 3>&- {tool_in}>&- {tool_out}>&- &
    declare -g "${name}_in=$tool_in" "${name}_out=$tool_out" "${name}_pid=$!"
}

# Sends it a line; the answer is in $answer.  Fails if it refuses.
tool_say() {
    local in=$1_in out=$1_out
    echo "${*:2}" >&"${!in}"
    read -r -t 5 -u "${!out}" answer || { echo "no answer to '${*:2}'"; cat "$tmp/$1.err"; return 1; }
    [ "${answer#no:}" = "$answer" ] || { echo "$answer"; return 1; }
}

# ---- a job of processes started one by one, with relays between them -----------------------------
# Names of links: w0.control w1.control s0.control s1.control, and s0.data s1.data, which the workers share.

relay_say() {
    tool_say relay "$@"
}

# The TCP port that a process listens at.
listening_port() {
    local pid=$1 inodes port
    inodes=$(find "/proc/$pid/fd" -lname 'socket:*' -printf '%l\n' 2>/dev/null | tr -dc '0-9\n' | paste -sd '|')
    port=$(awk -v inodes="^($inodes)\$" '$4 == "0A" && $10 ~ inodes {sub(/.*:/, "", $2); print $2; exit}' /proc/net/tcp)
    [ -n "$port" ] && echo $((16#$port))
}

# Runs a command until it succeeds, at most 20 s.
until_true() {
    local end=$((${EPOCHREALTIME/[.,]/} + 20000000))
    until "$@"; do
        [ "${EPOCHREALTIME/[.,]/}" -lt "$end" ] || { echo "never: $*"; tail -n 4 "$tmp"/*.err; return 1; }
        sleep 0.1 # a query starts five processes
    done
}

# Lets an outage that has begun last $outage_s in all.  Meanwhile the job must advance by at most one step, or the
# outage is not effective:  nothing_moves WHAT_PRINTS_THE_STEP
nothing_moves() {
    local end=$((${EPOCHREALTIME/[.,]/} + $(awk "BEGIN { print int(1000000 * $outage_s) }"))) before after
    sleep 0.5
    before=$("$1")
    while [ "${EPOCHREALTIME/[.,]/}" -lt "$end" ]; do sleep 0.02; done
    after=$("$1")
    echo "step $before before, $after after"
    [ "$after" -le $((before + 1)) ]
}

scheduler_port() {
    port=$(sed -n 's/^penstock: scheduler listens at .*:\([0-9]*\)$/\1/p' "$tmp/scheduler.err")
    [ -n "$port" ]
}

# A process of the job:  role NAME COMMAND...   -> $NAME_pid, $tmp/NAME.{out,err}
role() {
    MARK=$mark "${@:2}" >"$tmp/$1.out" 2>"$tmp/$1.err" 3>&- &
    declare -g "$1_pid=$!"
}

relay_server() {
    role "s$1" "$penstock" server --master-addr 127.0.0.1 --master-port "$2" --rank "$1" --host "127.0.0.$((11 + $1))" "${@:3}"
}

relay_worker() {
    role "w$1" env RANK="$1" WORLD_SIZE=2 LOCAL_RANK="$1" LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$2" \
        PENSTOCK_SERVERS=2 PENSTOCK_SCHEDULER=external PENSTOCK_SHARED_MEMORY=no taskset -c $(($1 % $(nproc))) "${@:3}"
}

server_listens() {
    local pid=s$1_pid
    data_port=$(listening_port "${!pid}")
}

# Two servers and two workers that run PROGRAM, each of whose connections goes through a relay:
#   relay_job PROGRAM ARGS...   -> $port of the scheduler, $relay_* $scheduler_pid $s0_pid $s1_pid $w0_pid $w1_pid
relay_job() {
    local i
    tool_start relay "$programs/relay"
    role scheduler "$penstock" scheduler --world-size 2 --servers 2
    until_true scheduler_port
    for i in 0 1; do
        relay_say link "s$i.control" 127.0.0.1:0 "127.0.0.1:$port"
        relay_server "$i" "$answer"
        until_true server_listens "$i"
        relay_say link "s$i.data" "127.0.0.$((11 + i)):$data_port" "127.0.0.1:$data_port"
    done
    for i in 0 1; do
        relay_say link "w$i.control" 127.0.0.1:0 "127.0.0.1:$port"
        relay_worker "$i" "$answer" "$@"
    done
}

# The step of the job, from its scheduler at $port.
job_step() {
    LIMIT=3 pen status --json --timeout-ms 2000 --master-port "$port" 2>/dev/null | sed -n 's/^[^[]*"step":\(-\{0,1\}[0-9]*\).*/\1/p'
}

is_in_step() {
    local step
    step=$(job_step)
    [ "${step:--1}" -ge "$1" ]
}

# Waits for the processes NAME...; fails if one does not end with 0 within $1 seconds.
end_well() {
    local end=$((${EPOCHREALTIME/[.,]/} + $1 * 1000000)) name pid
    for name in "${@:2}"; do
        pid=${name}_pid
        until_gone "${!pid}" "$end" || { echo "$name still runs after $1 s"; tail -n 3 "$tmp"/*.err; return 1; }
        wait "${!pid}" || { echo "exit $? of $name"; tail -n 5 "$tmp"/*.err; return 1; }
    done
}

until_gone() {
    while kill -0 "$1" 2>/dev/null; do
        [ "${EPOCHREALTIME/[.,]/}" -lt "$2" ] || return 1
        sleep 0.02
    done
}

# Milliseconds from $1 (an EPOCHREALTIME) until the processes NAME... have ended; fails beyond $2.
ended_within() {
    local name pid
    for name in "${@:3}"; do
        pid=${name}_pid
        until_gone "${!pid}" $(($1 + $2 * 1000)) || { echo "$name runs $2 ms later"; tail -n 3 "$tmp"/*.err; return 1; }
    done
    echo "all had ended $(((${EPOCHREALTIME/[.,]/} - $1) / 1000)) ms later"
}

# ---- hosts with cables -------------------------------------------------------------------------------

# How namespaces are created and entered: a user without root becomes root in the namespaces it creates.
if [ "$(id -u)" = 0 ]; then
    make_host=(unshare -mnu --propagation private)
    enter_host=(nsenter -m -n -u)
else
    make_host=(unshare -Urmnu --propagation private)
    enter_host=(nsenter -U --preserve-credentials -m -n -u)
fi

# Whether this machine supports hosts; prints why not.
can_have_hosts() {
    local said
    command -v ip >/dev/null || { echo "there is no ip (package iproute2)"; return 1; }
    said=$("${make_host[@]}" sh -c 'ip link add x0 type veth peer name x1 && mount --bind /etc/hosts /etc/hosts' 2>&1) &&
        return
    echo "the kernel lets us make no namespaces: $said"
    return 1
}

# Runs a command in a host:  on n0 COMMAND...
on() {
    local pid=$1_pid
    MARK=$mark "${enter_host[@]}" -t "${!pid}" -- "${@:2}"
}

# A process that holds a host is in namespaces of its own.
is_host() {
    [ "$(readlink "/proc/$1/ns/net")" != "$(readlink "/proc/${2:-self}/ns/net")" ] &&
        [ "$(cat "/proc/$1/comm")" = sleep ]
}

# Hosts n0 ... on one switch:  hosts_start COUNT   -> $sw_pid $n0_pid ..., switch_say, $tmp/hosts
# They share a secret, because traffic between hosts is encrypted.
# n0 is 10.78.0.1, and so on; port p0 of the switch holds its cable.
hosts_start() {
    local i ports=()
    "$penstock" keygen "$tmp/secret" 2>"$tmp/keygen.err" && export PENSTOCK_SECRET_FILE=$tmp/secret
    echo "127.0.0.1 localhost" >"$tmp/hosts"
    MARK=$mark "${make_host[@]}" sleep 1000 3>&- &
    sw_pid=$!
    until_true is_host "$sw_pid"
    for ((i = 0; i < $1; i++)); do
        MARK=$mark "${enter_host[@]}" -t "$sw_pid" -- unshare -mnu --propagation private sleep 1000 3>&- &
        declare -g "n${i}_pid=$!"
        until_true is_host "$!" "$sw_pid"
        on sw ip link add "p$i" type veth peer name eth0 netns "$!"
        on sw ip link set "p$i" up
        on "n$i" sh -ec "hostname n$i; ip link set lo up; ip link set eth0 up
            ip addr add 10.78.0.$((i + 1))/24 dev eth0; mount --bind $tmp/hosts /etc/hosts"
        echo "10.78.0.$((i + 1)) n$i" >>"$tmp/hosts"
        ports+=("p$i")
    done
    tool_start switch "${enter_host[@]}" -t "$sw_pid" -- "$programs/netswitch" "${ports[@]}"
    read -r -t 5 -u "$switch_out" answer || { cat "$tmp/switch.err"; return 1; }
}

# As tool_say: rule FROM TO LOSS DELAY JITTER, count FROM TO.
switch_say() {
    tool_say switch "$@"
}

# Unplugs the cable of host $1 from the switch, or plugs it in:  cable 1 down | up
cable() {
    on sw ip link set "p$1" "$2"
}

# Host $1 comes back under the address $2 and the same name.
move() {
    on "n$1" ip addr flush dev eth0
    sed "s/.* n$1\$/$2 n$1/" "$tmp/hosts" >"$tmp/hosts.new"
    cat "$tmp/hosts.new" >"$tmp/hosts" # the same file: it is mounted
    on "n$1" ip addr add "$2/24" dev eth0
}

# A process of a job on a host:  role_on HOST NAME COMMAND...   -> $NAME_pid, $tmp/NAME.{out,err}
# It has one core, so that sums equal those of any other job with one thread; and all bytes use the cable.
role_on() {
    local pid=$1_pid
    role "$2" "${enter_host[@]}" -t "${!pid}" -- env PENSTOCK_SHARED_MEMORY=no \
        taskset -c $((${1#n} % $(nproc))) "${@:3}"
}

# A launcher on each of the hosts 0 ... COUNT-1, with one worker each and as many servers; server i is on host i:
#   hosts_job COUNT PROGRAM ARGS...   -> $run0_pid ..., $tmp/runN.{out,err}
hosts_job() {
    local i
    for ((i = 0; i < $1; i++)); do
        role_on "n$i" "run$i" "$penstock" run --nnodes "$1" --node-rank "$i" --master-addr n0 \
            --master-port 29400 --servers "$1" --nproc-per-node 1 "${@:2}"
    done
}

# The step of the hosts' job; its scheduler is on n0.
hosts_step() {
    on n0 timeout 3 "$penstock" status --json --timeout-ms 2000 --master-addr n0 --master-port 29400 2>/dev/null |
        sed -n 's/^[^[]*"step":\(-\{0,1\}[0-9]*\).*/\1/p'
}

hosts_are_in_step() {
    local step
    step=$(hosts_step)
    [ "${step:--1}" -ge "$1" ]
}
