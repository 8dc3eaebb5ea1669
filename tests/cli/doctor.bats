# doctor.bats - what `penstock doctor` finds on made-up machines, on this one, and on the path to a job.

load ../support/job

setup() {
    job_setup
    fake=$tmp/fake
    unset OPENBLAS_NUM_THREADS
}
teardown() { job_teardown; }

# Writes a file of the made-up machine:  put PATH TEXT
put() {
    mkdir -p "$fake$(dirname "$1")"
    printf '%s\n' "$2" >"$fake$1"
}

limits() {
    put /proc/self/limits "Limit                     Soft Limit           Hard Limit           Units
Max processes             $3              $3              processes
Max open files            $1                 $2                 files
Max locked memory         unlimited            unlimited            bytes
Max core file size        unlimited            unlimited            bytes"
}

# A machine of 8 cores without faults.
make_machine() {
    put /sys/devices/system/cpu/online 0-3,8-11
    put /proc/loadavg "0.10 0.20 0.30 1/100 4242"
    put /proc/meminfo "MemTotal:       16000000 kB
MemAvailable:   12000000 kB"
    put /sys/kernel/mm/transparent_hugepage/enabled "always [madvise] never"
    limits 1024 1048576 63000
    put /sys/class/net/eth0/operstate up
    put /sys/class/net/eth0/mtu 1500
    put /proc/net/route "Iface	Destination	Gateway
eth0	00000000	0100000A"
    put /proc/sys/net/ipv4/ip_local_port_range "32768	60999"
    put /proc/sys/net/ipv4/tcp_wmem "4096	16384	16777216"
    put /proc/sys/net/core/wmem_max 212992
    put /proc/self/mounts "/dev/vda1 / ext4 rw 0 0"
    mkdir -p "$fake/dev/shm"
}

# A finding of the made-up machine:  finds LEVEL WHAT TEXT_OF_THE_LINE
finds() {
    pen doctor --root "$fake" --store "$tmp" --fail-on never >"$tmp/out"
    grep -qE "^  $1 +$2 +.*$3" "$tmp/out" || { cat "$tmp/out"; return 1; }
}

# The remedy follows in the next line:  advises WHAT TEXT
advises() {
    grep -A1 -E "^  [a-z]+ +$1 " "$tmp/out" | grep -qE -- "-> .*$2" || { cat "$tmp/out"; return 1; }
}

@test "on a machine without faults it says so, and what it checked" {
    make_machine
    finds ok processor "8 cores"
    finds ok "open files" "may open 1024 files; Penstock raises that to 1048576"
    finds ok interfaces "eth0 1500"
    finds ok route "default route through eth0"
    finds ok "file system" "on ext4"
    ! grep -E '^  (note|bad) ' "$tmp/out" | grep -v /dev/shm | grep -v room || return 1
}

@test "every fault has a remedy: quota, memory, limits, MTU, huge pages, NUMA, ports, file systems" {
    make_machine
    put /sys/fs/cgroup/cpu.max "250000 100000"
    put /sys/fs/cgroup/memory.max 1000000000
    put /sys/fs/cgroup/memory.current 950000000
    limits 512 1024 200
    put /sys/class/net/ib0/operstate up
    put /sys/class/net/ib0/mtu 9000
    put /sys/class/net/eth9/operstate down
    put /sys/class/net/eth9/mtu 68
    put /sys/kernel/mm/transparent_hugepage/enabled "always madvise [never]"
    mkdir -p "$fake/sys/devices/system/node/node0" "$fake/sys/devices/system/node/node1"
    put /proc/sys/net/ipv4/ip_local_port_range "29000	29999"
    put /proc/self/mounts "/dev/vda1 / ext4 rw 0 0
server:/x $tmp nfs4 rw 0 0"
    finds note "cpu quota" "2\.5 of 8 cores"
    advises "cpu quota" "--nproc-per-node"
    finds note "memory limit" "1\.00 GB"
    advises "memory limit" "raise the limit"
    finds note "open files" "to 1024"
    advises "open files" "LimitNOFILE"
    finds note processes "200 threads"
    advises processes "ulimit -u"
    finds info interfaces "have different MTUs \((eth0 1500, ib0 9000|ib0 9000, eth0 1500)\)"
    advises interfaces "one MTU"
    finds info "huge pages" never
    advises "huge pages" madvise
    finds info numa "2 NUMA nodes"
    advises numa numactl
    finds note ports "29000 to 29999.*may take"
    finds note "file system" "on nfs4, a network file system"
    advises "file system" "local disk"
}

@test "a machine without /dev/shm is bad, and the exit code follows the worst finding" {
    make_machine
    rmdir "$fake/dev/shm"
    finds bad /dev/shm "missing /dev/shm"
    code=0
    pen doctor --root "$fake" --store "$tmp" >"$tmp/out" || code=$?
    [ "$code" = 1 ]
    mkdir "$fake/dev/shm"
    put /sys/fs/cgroup/cpu.max "100000 100000"
    pen doctor --root "$fake" --store "$tmp" >"$tmp/out"
    code=0
    pen doctor --root "$fake" --store "$tmp" --fail-on note >"$tmp/out" || code=$?
    [ "$code" = 1 ]
}

@test "it measures what a connection carries here, by each transport, encrypted and not" {
    local number='[0-9]+\.[0-9]'
    pen doctor --store "$tmp" --fail-on never >"$tmp/out"
    grep -qE "^  ok +transports +one connection over TCP here: $number Gbit/s with TLS 1.3, $number in clear text; with transport=zmq $number with CURVE, $number in clear text" "$tmp/out" || { cat "$tmp/out"; return 1; }
    ! grep -E "transports.* 0\.0 " "$tmp/out" || return 1
}

@test "JSON has the same findings" {
    make_machine
    pen doctor --root "$fake" --store "$tmp/not/made/yet" --json >"$tmp/json"
    [ "$(wc -l <"$tmp/json")" = 1 ]
    grep -q '^{"worst":"[a-z]*","findings":\[{"level":"ok","group":"host","what":"processor","text":"8 cores' "$tmp/json"
    grep -q '"what":"room","text":"[0-9.]* GB of [0-9.]* GB are free for snapshots in '"$tmp"'",' "$tmp/json"
}

@test "with a job it tests the connections to the scheduler and to every member, and compares the clocks" {
    start one --servers 2 --nproc-per-node 2 "$programs/stepper" steps=100000 pause_ms=20
    wait_for_step 1
    local port
    port=$(sed -n 's/.*"address": "tcp:[^"]*:\([0-9]*\)".*/\1/p' "$tmp/penstock/$launched_job.json")
    pen doctor --master-addr 127.0.0.1 --master-port "$port" >"$tmp/out"
    cat "$tmp/out"
    grep -qE "^  ok +scheduler +its packets stay on this machine$" "$tmp/out"
    grep -qE "^  ok +scheduler +answers at 127\.0\.0\.1:$port$" "$tmp/out"
    grep -qE "^  (ok|note) +scheduler +the scheduler's clock is [0-9.]+ s (ahead of|behind) this machine's \(\+/- [0-9.]+ s\)$" "$tmp/out"
    grep -qE "^  ok +scheduler +all [0-9]+ ports of its members are open$" "$tmp/out"
    kill "$launcher"
    wait_for_end 8
    code=0
    pen doctor --master-addr 127.0.0.1 --master-port "$port" >"$tmp/out" || code=$?
    [ "$code" = 1 ]
    grep -qE "^  bad +scheduler +the scheduler: 127\.0\.0\.1 \(127\.0\.0\.1\) port $port: Connection refused$" "$tmp/out"
    grep -q -- "-> nothing listens there" "$tmp/out"
    pen doctor --master-addr no-such-host.invalid >"$tmp/out" || code=$?
    grep -qE "^  bad +scheduler +the scheduler: 'no-such-host.invalid' does not resolve" "$tmp/out"
}
