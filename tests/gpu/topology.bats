# topology.bats - what `penstock doctor` says about GPUs and network adapters: the driver is the fake one of driver/, and
# the files of /sys are those of a made-up machine.

load ../support/job

setup() {
    job_setup
    [ -e "$build/tests/gpu/driver/libcuda.so.1" ] || skip "built without CUDA"
    export LD_LIBRARY_PATH=$build/tests/gpu/driver:$build/lib CUDA_ON_HOST_DEVICES=4
    sys=$tmp/fake/sys
    mkdir -p "$sys/bus/pci/devices" "$sys/class/net"
}
teardown() { job_teardown; }

# A PCI device of the made-up machine, below these bridges:  device ADDRESS BRIDGES NODE [SPEED WIDTH]
device() {
    local at=$sys/devices/$2/$1
    mkdir -p "$at"
    ln -s "../../../devices/$2/$1" "$sys/bus/pci/devices/$1"
    echo "$3" >"$at/numa_node"
    echo "${4:-32.0 GT/s PCIe}" >"$at/current_link_speed"
    echo "32.0 GT/s PCIe" >"$at/max_link_speed"
    echo "${5:-16}" >"$at/current_link_width"
    echo 16 >"$at/max_link_width"
}

# A network adapter:  adapter NAME ADDRESS BRIDGES NODE
adapter() {
    device "$2" "$3" "$4"
    mkdir -p "$sys/class/net/$1"
    echo up >"$sys/class/net/$1/operstate"
    ln -s "../../../devices/$3/$2" "$sys/class/net/$1/device"
}

# Two sockets; on the first a switch with two GPUs and ib0, on the second two GPUs, each below its own bridge.
make_machine() {
    local switch=pci0000:16/0000:16:01.0
    device 0000:17:00.0 "$switch/0000:16:02.0" 0
    device 0000:18:00.0 "$switch/0000:16:03.0" 0
    adapter ib0 0000:1b:00.0 "$switch/0000:16:04.0" 0
    device 0000:19:00.0 pci0000:80/0000:80:01.0 1
    device 0000:1a:00.0 pci0000:80/0000:80:02.0 1
}

doctor() { pen doctor --root "$tmp/fake" --fail-on never >"$tmp/out"; }

# A line of the report:  says LEVEL WHAT TEXT
says() { grep -qE "^  $1 +$2 +.*$3" "$tmp/out" || { cat "$tmp/out"; return 1; }; }
advises() { grep -A1 -E "^  [a-z]+ +$1 +$2" "$tmp/out" | grep -qE -- "-> .*$3" || { cat "$tmp/out"; return 1; }; }

@test "each GPU has a name, memory, PCIe address, link, NUMA node and UUID; links and the nearest adapters are shown" {
    make_machine
    adapter eth0 0000:81:00.0 pci0000:80/0000:80:03.0 1
    mkdir -p "$sys/class/net/lo" "$sys/class/net/docker0"
    doctor
    says ok gpu '0: played on the host, 2\.0 GiB, PCIe 0000:17:00\.0 \(32 GT/s x16\), NUMA node 0, GPU-[0-9a-f-]{36}$'
    says ok gpu '3: played on the host, 2\.0 GiB, PCIe 0000:1a:00\.0 \(32 GT/s x16\), NUMA node 1, '
    says ok "gpu links" '2 pairs by NVLink: 0-1 2-3$'
    says ok "gpu links" "4 pairs by PCIe, without the host's memory: 0-2 0-3 1-2 1-3$"
    says ok "gpu network" 'ib0 is on NUMA node 0$'
    says ok "gpu network" 'nearest to gpu 0 is ib0, on the same PCIe switch$'
    says ok "gpu network" 'nearest to gpu 2 is eth0, on the same root complex$'
    [ "$(grep -cE '^  (note|info) +gpu' "$tmp/out")" = 0 ]
}

@test "an adapter on the other NUMA node, peer access that is off, and narrow or slow PCIe links have a remedy" {
    make_machine
    echo 8 >"$sys/bus/pci/devices/0000:18:00.0/current_link_width"
    echo "2.5 GT/s PCIe" >"$sys/bus/pci/devices/0000:19:00.0/current_link_speed"
    CUDA_ON_HOST_LINKS=host doctor
    says note "gpu network" 'gpu 2 is on NUMA node 1, but no network adapter is; the nearest, ib0, is on node 0$'
    says note "gpu network" 'gpu 3 is on NUMA node 1'
    advises "gpu network" "gpu 3" "move an adapter to a slot of NUMA node 1"
    says note gpu '1: PCIe link of 8 lanes; the card has 16$'
    advises gpu "1: PCIe" "seat the card"
    says info gpu '2: PCIe link at 2\.5 GT/s; the card has 32$'
    advises gpu "2: PCIe" "look again while a job runs"
    says note "gpu links" '6 pairs through host memory: peer access is off: 0-1 0-2 0-3 1-2 1-3 2-3$'
    advises "gpu links" "6 pairs" "IOMMU"
    CUDA_ON_HOST_DEVICES=16 CUDA_ON_HOST_LINKS=host doctor # a list too long for a line ends in dots
    says note "gpu links" '120 pairs .* \.\.\.$'
}

@test "CUDA_VISIBLE_DEVICES chooses and numbers the GPUs that are shown" {
    make_machine
    CUDA_VISIBLE_DEVICES=3,0 doctor
    says ok gpu '0: .* PCIe 0000:1a:00\.0 '
    says ok gpu '1: .* PCIe 0000:17:00\.0 '
    says ok "gpu links" '1 pair by PCIe'
}

@test "files of /sys that lie are not believed: numbers out of range, no numbers, long lines, folders, loops" {
    make_machine
    local gpu=$sys/bus/pci/devices/0000:17:00.0
    echo 99999999999 >"$gpu/numa_node"
    echo "nan GT/s" >"$gpu/current_link_speed"
    echo "-4" >"$gpu/current_link_width"
    head -c 100000 /dev/zero | tr '\0' 9 >"$gpu/max_link_width"
    rm "$sys/bus/pci/devices/0000:18:00.0"
    ln -s 0000:18:00.0 "$sys/bus/pci/devices/0000:18:00.0"
    rm "$sys/bus/pci/devices/0000:19:00.0/numa_node"
    mkdir "$sys/bus/pci/devices/0000:19:00.0/numa_node"
    mkdir -p "$sys/class/net/$(printf 'n%.0s' {1..200})/device"
    for i in $(seq 100); do mkdir -p "$sys/class/net/x$i/device" && echo 1 >"$sys/class/net/x$i/device/numa_node"; done
    doctor
    says ok gpu '0: played on the host, 2\.0 GiB, PCIe 0000:17:00\.0, GPU-'
    says ok gpu '1: played on the host, 2\.0 GiB, PCIe 0000:18:00\.0, GPU-'
    says ok gpu '2: played on the host, 2\.0 GiB, PCIe 0000:19:00\.0 \(32 GT/s x16\), GPU-'
    [ "$(grep -c 'is on NUMA node' "$tmp/out")" -le 33 ]
}

@test "no GPU, and no files of /sys: nothing is said about links" {
    CUDA_ON_HOST_DEVICES=0 doctor
    ! grep -E '^  [a-z]+ +gpu' "$tmp/out" || return 1
    CUDA_ON_HOST_DEVICES=2 doctor
    says ok gpu '1: played on the host, 2\.0 GiB, PCIe 0000:18:00\.0, GPU-'
    ! grep -qE '^  [a-z]+ +gpu network' "$tmp/out" || return 1
}
