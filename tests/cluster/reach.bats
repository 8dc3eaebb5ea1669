# reach.bats - members that cannot reach each other, on hosts of their own (support/hosts.bash): one sentence, the same
# on all of them, within 10 s of the start or within the lease (10 s) later, and no other member is blamed. If the whole
# cable of a host is pulled, each side has its own sentence, and each names both ends.
#
# Jobs run with the defaults: encrypted, and with shared memory between processes of one host. A cut is the whole cable
# of a host, or the path between two hosts (cut_between), which both still reach all others. Hosts start once; jobs run
# on them in parallel, each at its own ports, because each waits for seconds.
#
# Given by hand: ports, because there are several jobs; the settings of processes that `penstock run` does not start;
# and the address, where the test is about a wrong address.

load ../support/job
load ../support/hosts

setup() {
    job_setup
    can_have_bridge >"$tmp/cannot" || skip "$(cat "$tmp/cannot")"
    "$penstock" keygen "$tmp/secret" >"$tmp/keygen.out"
    busy_ms=1500 # what a busy machine may add to a bound
}
teardown() { job_teardown; }

now_ms() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

# Nothing that one of these hosts sends reaches the other any more; all other hosts still reach both.
cut_between() { # node0 node1
    local host
    for host in "$@"; do on bridge bridge link set dev "p${host#node}" isolated on; done
}

# ---- jobs ------------------------------------------------------------------------------------------------------------
machines() { # NAME PORT HOSTS FLAGS... -- WORDS of the program: one job by `penstock run`, machine 0 first; $NAME: its processes
    local name=$1 port=$2 hosts=$3 flags=() host rank=0
    shift 3
    while [ "$1" != -- ]; do flags+=("$1") && shift; done
    shift
    declare -g "$name="
    for host in $hosts; do
        if [ $rank = 0 ]; then
            begin_on "$host" "${name}0" "$penstock" run --nnodes "${nnodes:-$(wc -w <<<"$hosts")}" --node-rank 0 --master-addr "$host" --master-port "$port" "${flags[@]}" "$programs/stepper" "$@"
            join_line "${name}0"
        else
            # shellcheck disable=SC2154
            begin_on "$host" "$name$rank" "$penstock" run --nnodes "${nnodes:-$(wc -w <<<"$hosts")}" --node-rank $rank --join - "${flags[@]}" "$programs/stepper" "$@" <<<"$line"
        fi
        declare -g "$name=${!name} $name$rank"
        rank=$((rank + 1))
    done
    declare -g "${name}_begun=$(now_ms)"
}

# One job of single processes:  roles NAME HOST PORT WORKERS SERVERS FLAGS... begins its scheduler on HOST, then
# server NAME HOST RANK FLAGS... and worker NAME HOST RANK WORDS...
roles() {
    declare -g "$1=$1_scheduler" "$1_at=$2 $3" "$1_size=$4 $5" "$1_begun=$(now_ms)"
    begin_on "$2" "$1_scheduler" "$penstock" scheduler --secret-file "$tmp/secret" --host "${listen:-*}" --port "$3" --world-size "$4" --servers "$5" "${@:6}"
}

server() {
    local at=$1_at addr port
    read -r addr port <<<"${!at}"
    begin_on "$2" "$1_server$3" "$penstock" server --secret-file "$tmp/secret" --master-addr "$addr" --master-port "$port" --rank "$3" "${@:4}"
    declare -g "$1=${!1} $1_server$3" "$1_begun=$(now_ms)"
}

worker() {
    local at=$1_at size=$1_size addr port workers servers
    read -r addr port <<<"${!at}"
    read -r workers servers <<<"${!size}"
    begin_on "$2" "$1_worker$3" env RANK="$3" WORLD_SIZE="$workers" MASTER_ADDR="$addr" MASTER_PORT="$port" PENSTOCK_SECRET_FILE="$tmp/secret" \
        PENSTOCK_SERVERS="$servers" PENSTOCK_SCHEDULER=external ${given:+PENSTOCK_HOST=$given} "$programs/stepper" "${@:4}"
    declare -g "$1=${!1} $1_worker$3" "$1_begun=$(now_ms)"
}

steps() { # NAME: the processes of the job have reached step 5
    for _ in $(seq 1000); do grep -qs 'step 5 ' "$tmp/$1"*.out && return || sleep 0.02; done
    echo "$1 does not train"
    tail "$tmp/$1"*
    return 1
}

goes_on() { # PROCESS: trains another step
    local seen
    seen=$(wc -l <"$tmp/$1.out")
    for _ in $(seq 1000); do [ "$(wc -l <"$tmp/$1.out")" = "$seen" ] || return 0 && sleep 0.02; done
    echo "$1 does not train any more"
    return 1
}

stands() { # NAME HOST PORT PATTERN...: the job's status matches all of these
    local pattern
    for _ in $(seq 500); do
        on "$2" "$penstock" status --json --master-addr "$2" --master-port "$3" >"$tmp/$1.status" 2>&1 || :
        for pattern in "${@:4}"; do grep -qE "$pattern" "$tmp/$1.status" || { sleep 0.02 && continue 2; }; done
        return
    done
    cat "$tmp/$1.status"
    return 1
}

# All processes of the job print one sentence within LIMIT_MS of $NAME_begun, and blame no other member.
all_say() { # NAME LIMIT_MS PATTERN
    local begun=$1_begun files=() process took
    for process in ${!1}; do files+=("$tmp/$process.err"); done
    while [ -n "$(grep -LE "$3" "${files[@]}")" ]; do
        took=$(($(now_ms) - ${!begun}))
        [ $took -lt $(($2 + busy_ms)) ] || { echo "after $took ms not all of $1 say: $3"; tail -n 20 "${files[@]}"; return 1; }
        sleep 0.05
    done
    echo "$1, after $(($(now_ms) - ${!begun})) ms: $(grep -hoE "$3" "${files[@]}" | sort -u)"
    [ "$(grep -hoE "$3" "${files[@]}" | sort -u | wc -l)" = 1 ]
    # a report repeats the lines of others, cut
    ! grep -hvE "$3|^ *\|" "${files[@]}" | grep -E 'is gone|has not pushed|has not entered' || return 1
}

says() { # LIMIT_MS PROCESS PATTERN: within LIMIT_MS of the cut
    local took
    until grep -qE "$3" "$tmp/$2.err"; do
        took=$(($(now_ms) - begun_ms))
        [ $took -lt $(($1 + busy_ms)) ] || { echo "after $took ms $2 does not say: $3"; tail -n 20 "$tmp/$2.err"; return 1; }
        sleep 0.02
    done
}

cut_off_says() { # PROCESS WHO PORT: the machine that is cut off names itself and the scheduler
    says 10000 "$1" "$2 \(node3\) cannot reach the scheduler at node2:$3: $why; \`penstock doctor --master-addr node2\` tests the connection"
}

all_end() { # NAME...
    local name process
    for name in "$@"; do for process in ${!name}; do ends "$process" 1 20; done; done
}

at='\[?[0-9a-f.:]+\]?:[0-9]+'
why='(no answer, timed out|no route to host|network is unreachable)'
remedy='open the TCP ports between these hosts'
tests_the_way='`penstock doctor --master-addr node2` on node3 tests the connection'
host_remedy="$remedy, or start server [01] with a --host ADDRESS that all hosts reach"

# ---- scenes ----------------------------------------------------------------------------------------------------------
@test "before the first step one sentence says who cannot reach whom: workers, copies, several, a wrong address; over IPv6" {
    hosts_start 4 ipv6
    cut_between node0 node1
    on node3 ip addr add fd99::3 dev eth0 nodad
    on node1 ip route add fd99::3 via "$(host_address node3)"

    listen="[$(host_address node2)]"
    on node3 "$penstock" run --servers 2 --replicas 1 --store "$tmp/store" --snapshot-every 2 "$programs/stepper" steps=2 >"$tmp/first.out" 2>&1
    roles ddp node2 29500 3 0
    worker ddp node3 0 steps=5
    worker ddp node0 1 steps=5
    worker ddp node1 2 steps=5
    roles copies node2 29510 1 2 --replicas 1
    server copies node0 0
    server copies node1 1
    worker copies node3 0 steps=5 greets=1
    roles restored node2 29550 1 2 --replicas 1
    server restored node0 0 --store "$tmp/store"
    server restored node1 1 --store "$tmp/store"
    worker restored node3 0 steps=8 greets=1 resume=yes
    roles several node2 29520 2 2
    server several node0 0
    server several node0 1
    worker several node1 0 steps=5
    worker several node1 1 steps=5
    roles wrong node2 29530 1 1
    server wrong node3 0 --host fd98::9
    worker wrong node3 0 steps=5
    roles odd node2 29540 3 0 # node1 reaches worker 0 at this address, node2 does not
    given=fd99::3 worker odd node3 0 steps=5
    worker odd node1 1 steps=5
    worker odd node0 2 steps=5

    all_say ddp 10000 "worker [12] \(node[01]\) cannot reach worker [12] \(node[01]\) at $at: $why(; 1 more connection fails, also of worker [12] \(node[01]\))?; $remedy"
    all_say copies 10000 "server [01] \(node[01]\) cannot reach server [01] \(node[01]\) at $at: $why(; [0-9]+ more connections? fails?, also of server [01] \(node[01]\))?; $host_remedy"
    all_say restored 10000 "server [01] \(node[01]\) cannot reach server [01] \(node[01]\) at $at: $why(; [0-9]+ more connections? fails?, also of server [01] \(node[01]\))?; $host_remedy"
    ! grep committed "$tmp/copies_worker0.out" "$tmp/restored_worker0.out" || return 1
    all_say several 10000 "worker [01] \(node1\) cannot reach server [01] \(node0\) at $at: $why; 3 more connections fail; $host_remedy"
    all_say wrong 10000 "worker 0 \(node3\) cannot reach server 0 \(node3\) at \[?fd98::9\]?:[0-9]+: network is unreachable; $host_remedy"
    all_say odd 10000 "worker 2 \(node0\) cannot reach worker 0 \(node3\) at \[?fd99::3\]?:[0-9]+: network is unreachable(; [12] more connections? fails?, (also|all) of worker 2 \(node0\))?; $remedy"
    all_end ddp copies restored several wrong odd
    hosts_stop
}

@test "in pen_init, in pen_commit and after the first step, within the lease: a cable between two hosts, and the whole one of a host" {
    hosts_start 4
    nnodes=3 machines init 29540 "node2 node3" -- steps=5
    nnodes=3 machines init_ps 29550 "node2 node3" --servers 3 -- steps=5
    local init_ps_line=$line
    machines commit 29560 "node2 node3" -- steps=5 0:wait_at=-1,"$tmp/never"
    machines commit_ps 29570 "node2 node3" --servers 2 -- steps=5 1:wait_at=-1,"$tmp/never"
    machines ddp 29500 "node2 node0 node1" -- steps=100000
    roles ps node2 29510 2 1
    server ps node0 0
    worker ps node1 0 steps=100000
    worker ps node2 1 steps=100000
    machines whole 29520 "node2 node3" -- steps=100000
    machines early 29530 "node2 node3" --servers 1 -- steps=5 0:pause_ms=60000
    roles anew node2 29590 1 2 --replicas 1
    server anew node2 0
    server anew node0 1
    worker anew node0 0 steps=100000
    steps anew
    steps ddp
    steps ps
    steps whole
    stands early node2 29530 '"phase": *"training"'
    stands init node2 29540 '"phase": *"joining"' '"host": *"node3", *"pid": *[0-9]+, *"state": *"joining"'
    stands init_ps node2 29550 '"phase": *"joining"' '"host": *"node3", *"pid": *[0-9]+, *"state": *"joining"'
    stands commit node2 29560 '"phase": *"registering"' '"call": *"pen_commit"'
    stands commit_ps node2 29570 '"phase": *"registering"' '"call": *"pen_commit"'
    on node3 tc qdisc add dev eth0 root tbf rate 4mbit burst 16k latency 1s # so that the first values take seconds to arrive
    on bridge tc qdisc add dev p3 root tbf rate 4mbit burst 16k latency 1s
    machines values 29580 "node2 node3" --servers 2 -- steps=5 rows=5120
    stands values node2 29580 '"phase": *"training"' '"call": *"pen_commit"'
    begun_ms=$(now_ms)
    ddp_begun=$begun_ms ps_begun=$begun_ms
    cut_between node0 node1
    cable node3 down
    kill -9 "$anew_server1_pid" # and returns where the worker cannot reach it
    server anew node1 1

    all_say ddp 10000 "worker [12] \(node[01]\) cannot reach worker [12] \(node[01]\) at $at: $why(; 1 more connection fails, also of worker [12] \(node[01]\))?; $remedy"
    all_say ps 10000 "worker 0 \(node1\) cannot reach server 0 \(node0\) at $at: $why; $host_remedy"
    silent="last seen 1[01]\.[0-9] s ago by the scheduler at node2"
    for job in whole early commit commit_ps values; do
        declare -g "${job}_here=${job}0" "${job}_here_begun=$begun_ms"
        all_say ${job}_here 10000 "(worker|server) 1 \(node3\) is gone.*; $silent:295[2-8]0; (worker 0 \(node2\) cannot reach it at $at: $why; )?$tests_the_way"
    done
    says 10000 init0 "worker 1 \(node3\) is gone before the job began; $silent:29540; $tests_the_way; the job waits [0-9]+ s for it to come back"
    says 10000 init_ps0 "worker 1 \(node3\) is gone before the job began; $silent:29550; $tests_the_way; the job waits [0-9]+ s for it to come back"
    says 10000 init_ps0 "server 1 \(node3\) is gone before the job began; $silent:29550; $tests_the_way; the job waits [0-9]+ s for it to come back"
    cut_off_says whole1 'worker 1' 29520
    cut_off_says early1 'worker 1' 29530
    cut_off_says init1 'worker 1' 29540
    cut_off_says init_ps1 'worker 1' 29550
    cut_off_says init_ps1 'server 1' 29550
    cut_off_says commit1 'worker 1' 29560
    cut_off_says commit_ps1 'worker 1' 29570 # it sleeps in its own code
    cut_off_says values1 'server 1' 29580
    for job in whole early init init_ps commit commit_ps values; do says 12000 ${job}1 'the scheduler at node2:[0-9]+ is gone: it ran on node2; .*'; done

    says 20000 anew_scheduler "worker 0 \(node0\) cannot reach server 1 \(node1\) at $at: $why(; [0-9]+ more connections? fails?, (also|all) of server 1 \(node1\))?; $host_remedy"
    ends anew_server1 1 20
    goes_on anew_worker0

    # The waiting job continues when the machine returns: the same command, on the machine that was missing.
    ends init_ps1 1 20
    on node3 tc qdisc del dev eth0 root
    on bridge tc qdisc del dev p3 root
    cable node3 up
    for rank in 1 2; do
        begin_on node$((rank == 1 ? 3 : 0)) back$rank "$penstock" run --nnodes 3 --node-rank $rank --join - --servers 3 "$programs/stepper" steps=5 <<<"$init_ps_line"
    done
    for process in init_ps0 back1 back2; do ends $process 0 20; done
    all_end ddp ps whole early values
    hosts_stop
}
