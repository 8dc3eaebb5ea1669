# world_init.bash - process 1 of a world (world.bash): prepares its mounts, then lives until its input is closed.
set -eu
dir=$1
for mount in $(awk '$3 == "cgroup2" {print $2}' /proc/mounts); do
    umount "$mount" # crun refuses both versions of cgroups at once
done
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
mkdir -p /run/lock /run/netns /etc/containers/networks
mount -t tmpfs tmpfs /etc/containers/networks
ip link set lo up
ip address add 192.0.2.1/32 dev lo
python3 "$(dirname "$0")/no_such_name.py" 192.0.2.1 </dev/null &
echo "nameserver 192.0.2.1" >"$dir/resolv.conf"
mount --bind "$dir/resolv.conf" "$(realpath /etc/resolv.conf)"
echo ready >"$dir/ready"
cat >/dev/null # the world ends with its input
