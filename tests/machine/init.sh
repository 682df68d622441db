#!/bin/sh
# The machine's own process 1: one hierarchy of control groups, as systemd has it, and a shell that
# does line by line what the suite says.
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t cgroup2 -o nsdelegate cgroup2 /sys/fs/cgroup
hostname machine
ip link set lo up
ip link set eth0 up
ip address add 10.0.2.15/24 dev eth0
mkdir /sys/fs/cgroup/init.scope
echo $$ > /sys/fs/cgroup/init.scope/cgroup.procs
echo +memory +pids +cpu > /sys/fs/cgroup/cgroup.subtree_control

set -- /dev/vport*p1
exec 3<>"$1"
echo ready >&3
# A line is a script in base64; its answer a line of length and exit code, then what it printed.
while read -r line <&3; do
    echo "$line" | base64 -d > /run/script
    sh /run/script > /run/said 2>&1 < /dev/null 3>&-
    code=$?
    echo "$(stat -c %s /run/said) $code" >&3
    cat /run/said >&3
done
poweroff -f
