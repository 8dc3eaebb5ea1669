# hosts.bash - hosts of our own, on one machine; load it after job.bash.
#
# A host is what a job can tell from another machine: a network (a cable eth0 to a bridge, and loopback), a name, an
# /etc/hosts, a /dev/shm, and a folder of run-time files.  There is no name service: a host knows itself as Debian's
# installer writes it ("127.0.1.1 NAME"), and the other hosts by lines of /etc/hosts, or not at all.
#
#   hosts_start COUNT [equal] [nameless] [shm]
#       node0 (10.79.0.1), node1 (10.79.0.2), ...
#       equal     all have the name `node`
#       nameless  /etc/hosts has no line of another host
#       shm       they share one /dev/shm, as containers with --ipc=host do
#   on node1 COMMAND...            runs a command there; its exit code
#   begin_on node1 NAME COMMAND... starts one:  $NAME_pid, $tmp/NAME.{out,err}
#   ends NAME CODE [SECONDS]       waits for it; fails unless it ends with that code
#   cable node1 down|up            pulls its cable, or puts it back
#   drop_port node1 PORT|A-B       node1 answers nothing at these TCP ports any more: nobody hears a word from them
#   hosts_stop
#
# Processes carry the test's MARK, those that hold the namespaces too: job_teardown ends all, and nothing is left.
# Where the kernel gives no namespaces, or no bridge, can_have_bridge says why, and tests are skipped by name.

# A user who is not root becomes root of what it makes.
if [ "$(id -u)" = 0 ]; then
    new_host=(unshare -mnu --propagation private)
    into_host=(nsenter -m -n -u)
else
    new_host=(unshare -Urmnu --propagation private)
    into_host=(nsenter -U --preserve-credentials -m -n -u)
fi
hosts_network=10.79.0

can_have_bridge() {
    local said
    command -v ip >/dev/null || { echo "there is no ip (package iproute2)"; return 1; }
    said=$("${new_host[@]}" sh -c 'ip link add br0 type bridge && ip link add x0 type veth peer name x1 &&
        mount --bind /etc/hosts /etc/hosts && mount -t tmpfs tmpfs /dev/shm' 2>&1) && return
    echo "the kernel lets us make no hosts: $said"
    return 1
}

# A process that holds namespaces of its own:  hold VARIABLE COMMAND...
hold() {
    local outer
    MARK=$mark "${@:2}" sleep 1000 3>&- &
    declare -g "$1=$!"
    for _ in $(seq 250); do
        outer=$(readlink /proc/self/ns/net)
        [ "$(cat "/proc/$!/comm")" = sleep ] && [ "$(readlink "/proc/$!/ns/net")" != "$outer" ] && return
        sleep 0.02
    done
    echo "no namespace came of: ${*:2}"
    return 1
}

host_address() { # node1
    echo "$hosts_network.$((${1#node} + 1))"
}

write_hosts_file() { # HOST NAME COUNT: the file of one host
    local k
    printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$2"
    for ((k = 0; k < $3; k++)); do
        [ "node$k" = "$1" ] || echo "$(host_address "node$k") node$k"
    done
}

hosts_start() {
    local count=$1 names=own known=$1 shm=own i name word
    for word in "${@:2}"; do
        case $word in
        equal) names=equal ;;
        nameless) known=0 ;;
        shm) shm=common ;;
        *) echo "hosts_start: '$word'"; return 1 ;;
        esac
    done
    hosts_count=$count
    mkdir -p "$tmp/hosts"
    : >"$tmp/hosts/resolv.conf"
    echo "hosts: files" >"$tmp/hosts/nsswitch.conf"
    hold bridge_pid "${new_host[@]}"
    on bridge sh -ec "ip link add br0 type bridge; ip link set br0 up; [ $shm = own ] || mount -t tmpfs tmpfs /dev/shm"
    for ((i = 0; i < count; i++)); do
        name=node$i
        [ "$names" = own ] || name=node
        mkdir -p "$tmp/hosts/node$i"
        write_hosts_file "node$i" "$name" "$known" >"$tmp/hosts/node$i/hosts"
        hold "node${i}_pid" "${into_host[@]}" -t "$bridge_pid" -- unshare -mnu --propagation private
        local pid=node${i}_pid
        on bridge ip link add "p$i" type veth peer name eth0 netns "${!pid}"
        on bridge ip link set "p$i" master br0 up
        on "node$i" sh -ec "hostname $name; ip link set lo up; ip link set eth0 up
            ip addr add $(host_address "node$i")/24 dev eth0
            [ $shm = common ] || mount -t tmpfs tmpfs /dev/shm
            mount --bind $tmp/hosts/node$i/hosts /etc/hosts
            for file in resolv.conf nsswitch.conf; do
                [ ! -e /etc/\$file ] || mount --bind $tmp/hosts/\$file /etc/\$file
            done"
    done
}

# Runs a command in a host.  What a machine has for itself in folders is its own too.
on() {
    local pid=$1_pid own=$tmp/hosts/$1
    MARK=$mark XDG_RUNTIME_DIR=$own TMPDIR=$own "${into_host[@]}" -t "${!pid}" -- "${@:2}"
}

begin_on() { # as on(), but $! is the command itself, and no shell around it
    local pid=$1_pid own=$tmp/hosts/$1
    MARK=$mark XDG_RUNTIME_DIR=$own TMPDIR=$own "${into_host[@]}" -t "${!pid}" -- "${@:3}" >"$tmp/$2.out" 2>"$tmp/$2.err" 3>&- &
    declare -g "$2_pid=$!"
}

ends() {
    local pid=$1_pid end=$((${EPOCHREALTIME/[.,]/} + ${3:-60} * 1000000)) code=0
    while kill -0 "${!pid}" 2>/dev/null; do
        [ "${EPOCHREALTIME/[.,]/}" -lt "$end" ] || { echo "$1 still runs after ${3:-60} s"; tail -n 20 "$tmp"/*.out "$tmp"/*.err; return 1; }
        sleep 0.02
    done
    wait "${!pid}" || code=$?
    [ "$code" = "$2" ] || { echo "exit $code of $1, not $2"; tail -n 20 "$tmp"/*.out "$tmp"/*.err; return 1; }
}

cable() {
    on bridge ip link set "p${1#node}" "$2"
}

# By a rule of routing, for that needs no module of a firewall: packets from these ports find no way out.
drop_port() {
    on "$1" ip rule add ipproto tcp sport "$2" blackhole
}

hosts_stop() {
    local i pid
    for ((i = 0; i < hosts_count; i++)); do
        pid=node${i}_pid
        kill "${!pid}"
    done
    kill "$bridge_pid"
}
