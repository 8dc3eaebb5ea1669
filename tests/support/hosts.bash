# hosts.bash - hosts of our own, on one machine; load it after job.bash.
#
# A host looks to a job like a machine of its own: a network (a cable eth0 to a bridge, and loopback), process numbers,
# a name, a boot id, an /etc/hosts, a /dev/shm, and a folder of run-time files.  There is no name service: a host knows
# itself by the line of Debian's installer ("127.0.1.1 NAME"), and the other hosts by lines of /etc/hosts, or not at all.
#
#   hosts_start COUNT [equal] [nameless] [ipv6] [containers] [pids] [shm]
#       node0 (10.79.0.1), node1 (10.79.0.2), ...
#       equal       all have the name `node`
#       nameless    /etc/hosts has no line of another host
#       ipv6        addresses are fd79::1, fd79::2, ... only
#       containers  they are containers of one machine: one boot id
#       pids        they see each other's processes, as containers with --pid=host do
#       shm         they share one /dev/shm, as containers with --ipc=host do
#   on node1 COMMAND...            runs a command there; its exit code
#   begin_on node1 NAME COMMAND... starts one:  $NAME_pid, $tmp/NAME.{out,err}; its standard input is that of begin_on
#   ends NAME CODE [SECONDS]       waits for it; fails unless it ends with that code
#   join_line NAME                 -> $line, printed by the launcher NAME for the other machines
#   cable node1 down|up            unplugs its cable, or plugs it in
#   drop_port node1 PORT|A-B       node1 no longer answers at these TCP ports: it drops packets silently
#   cable_limit COUNT              GB/s that plain sockets reach between them
#   hosts_stop
#
# Processes carry the test's MARK, also the first of each host, whose end kills all others of the host: job_teardown
# ends everything.  If the kernel refuses namespaces or a bridge, can_have_bridge prints the reason, and tests are
# skipped by name.

# A user who is not root becomes root of what it makes.
if [ "$(id -u)" = 0 ]; then
    new_bridge=(unshare -mn --propagation private)
    into_host=(nsenter -m -n -u -p)
else
    new_bridge=(unshare -Urmn --propagation private)
    into_host=(nsenter -U --preserve-credentials -m -n -u -p)
fi
new_host=(unshare -mnu --propagation private)
new_numbers=(unshare -pf --mount-proc --kill-child)

can_have_bridge() {
    local said
    command -v ip >/dev/null || { echo "there is no ip (package iproute2)"; return 1; }
    said=$("${new_bridge[@]}" "${new_host[@]}" "${new_numbers[@]}" sh -c 'ip link add br0 type bridge &&
        ip link add x0 type veth peer name x1 && mount --bind /etc/hosts /etc/hosts && mount -t tmpfs tmpfs /dev/shm &&
        mount --bind /etc/hosts /proc/sys/kernel/random/boot_id' 2>&1) && return
    echo "the kernel lets us make no hosts: $said"
    return 1
}

# Reports the process number seen from outside, then executes the command.  Descriptor 9 is the /proc of outside.
tell='read -r number rest </proc/self/fd/9/self/stat && echo "$1 $number" >"$0" && shift && exec "$@" 9<&-'

# Starts a command behind a prefix that enters or creates namespaces:  begin NAME WORDS... -- COMMAND...
# $NAME_pid, after begun(), is the command itself: signals go to it and not to its prefix.  $NAME_outer is the process to
# wait for.
begin() {
    local name=$1 words=()
    shift
    while [ "$1" != -- ]; do words+=("$1") && shift; done
    shift
    MARK=$mark "${words[@]}" sh -c "$tell" "$tmp/hosts/numbers" "$name" "$@" <&0 3>&- 9</proc &
    declare -g "${name}_outer=$!"
}

begun() { # COUNT: waits until this many have reported their numbers
    local i name number
    for ((i = 0; i < $1; i++)); do
        read -r -t 10 -u "$numbers_fd" name number || { echo "a process did not begin"; return 1; }
        declare -g "${name}_pid=$number"
    done
}

host_address() { # node1
    echo "$hosts_network$((${1#node} + 1))"
}

write_hosts_file() { # HOST NAME COUNT: the file of one host
    local k
    printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$2"
    for ((k = 0; k < $3; k++)); do
        [ "node$k" = "$1" ] || echo "$(host_address "node$k") node$k"
    done
}

hosts_start() {
    local count=$1 names=own known=$1 shm=own bits=24 boot_id=own numbers=("${new_numbers[@]}") first=(sh -c "$bury") i word
    hosts_network=10.79.0.
    for word in "${@:2}"; do
        case $word in
        equal) names=equal ;;
        nameless) known=0 ;;
        ipv6) hosts_network=fd79:: bits=64 ;;
        containers) boot_id=common ;;
        pids) numbers=() first=(sleep 1000) ;;
        shm) shm=common ;;
        *) echo "hosts_start: '$word'"; return 1 ;;
        esac
    done
    hosts_count=$count
    rm -rf "$tmp/hosts"
    mkdir -p "$tmp/hosts"
    : >"$tmp/hosts/resolv.conf"
    echo "hosts: files" >"$tmp/hosts/nsswitch.conf"
    mkfifo "$tmp/hosts/numbers"
    exec {numbers_fd}<>"$tmp/hosts/numbers"
    begin bridge "${new_bridge[@]}" sh -ec "ip link add br0 type bridge mcast_snooping 0; ip link set br0 up
        [ $shm = own ] || mount -t tmpfs tmpfs /dev/shm; "'exec "$@"' bridge -- sleep 1000
    disown
    begun 1
    for ((i = 0; i < count; i++)); do begin_host "node$i"; done
    begun "$count"
}

# Everything a host has but process numbers, then the command:  NAME ADDRESS/BITS FOLDER PORT BRIDGE_PID SHM COMMAND...
furnish='hostname "$0"
    ip link set lo up
    ip link add eth0 type veth peer name "$3" netns "$4"
    ip addr add "$1" dev eth0 $(case $1 in *:*) echo nodad ;; esac)
    ip link set eth0 up
    nsenter -t "$4" -n ip link set "$3" master br0 up
    [ "$5" = common ] || mount -t tmpfs tmpfs /dev/shm
    mount --bind "$2/hosts" /etc/hosts
    for file in resolv.conf nsswitch.conf; do
        [ ! -e "/etc/$file" ] || mount --bind "$2/../$file" "/etc/$file"
    done
    shift 5
    exec "$@"'

# The first process of a host reaps orphans, as on every machine.
bury='while :; do sleep 1000 & wait; done'

begin_host() { # node1; hosts_start() does the rest
    local host=$1 name=$1 own=$tmp/hosts/$1 identity=()
    [ "$names" = own ] || name=node
    mkdir -p "$own"
    write_hosts_file "$host" "$name" "$known" >"$own/hosts"
    if [ "$boot_id" = own ]; then
        cat /proc/sys/kernel/random/uuid >"$own/boot_id"
        identity=(sh -ec 'mount --bind "$0" /proc/sys/kernel/random/boot_id; exec "$@"' "$own/boot_id")
    fi
    begin "$host" "${into_host[@]}" -t "$bridge_pid" "${new_host[@]}" \
        sh -ec "$furnish" "$name" "$(host_address "$host")/$bits" "$own" "p${1#node}" "$bridge_pid" "$shm" \
        "${numbers[@]}" "${identity[@]}" -- "${first[@]}"
    disown # no message when hosts_stop or job_teardown ends it
}

# Runs a command in a host, with the host's own folders.
on() {
    local pid=$1_pid own=$tmp/hosts/$1
    MARK=$mark XDG_RUNTIME_DIR=$own TMPDIR=$own "${into_host[@]}" -t "${!pid}" -- "${@:2}"
}

begin_on() { # as on(), without a shell around it
    local pid=$1_pid own=$tmp/hosts/$1
    XDG_RUNTIME_DIR=$own TMPDIR=$own begin "$2" "${into_host[@]}" -t "${!pid}" -- "${@:3}" >"$tmp/$2.out" 2>"$tmp/$2.err"
    begun 1
}

ends() {
    local outer=$1_outer end=$((${EPOCHREALTIME/[.,]/} + ${3:-60} * 1000000)) code=0
    while kill -0 "${!outer}" 2>/dev/null; do
        [ "${EPOCHREALTIME/[.,]/}" -lt "$end" ] || { echo "$1 still runs after ${3:-60} s"; tail -n 20 "$tmp"/*.out "$tmp"/*.err; return 1; }
        sleep 0.02
    done
    wait "${!outer}" || code=$?
    [ "$code" = "$2" ] || { echo "exit $code of $1, not $2"; tail -n 20 "$tmp"/*.out "$tmp"/*.err; return 1; }
}

# The line that the launcher NAME printed for the other machines:  join_line NAME   -> $line
join_line() {
    for _ in $(seq 500); do
        line=$(sed -n 's/^penstock: on each other machine.*paste this line:  //p' "$tmp/$1.err")
        [ -n "$line" ] && return
        sleep 0.02
    done
    echo "$1 printed no line to join by"
    return 1
}

cable() {
    on bridge ip link set "p${1#node}" "$2"
}

# By a routing rule, which needs no firewall module: packets from these ports have no route.
drop_port() {
    on "$1" ip rule add ipproto tcp sport "$2" blackhole
}

hosts_stop() {
    local i pid
    for ((i = 0; i < hosts_count; i++)); do
        pid=node${i}_pid
        kill -9 "${!pid}"
    done
    kill -9 "$bridge_pid"
    exec {numbers_fd}>&-
}

# GB/s of plain sockets, each of that many hosts to the next, all at once: of the slowest.
cable_limit() { # COUNT
    local k addresses=()
    for ((k = 0; k < $1; k++)); do addresses+=("$(host_address "node$k")"); done
    for ((k = 0; k < $1; k++)); do
        begin_on "node$k" "limit$k" "$BUILD/bin/limits/limit_socket" ring "$k" 7900 1048576 2 "${addresses[@]}" </dev/null
    done
    for ((k = 0; k < $1; k++)); do ends "limit$k" 0 60 >&2; done
    sed 's/.*GBps":\([0-9.]*\).*/\1/' "$tmp"/limit*.out | sort -g | head -1
}
