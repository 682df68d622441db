#!/bin/busybox sh
# The first program of the machine: it finds the disk with everything else on it.
busybox mount -t devtmpfs dev /dev
for module in /modules/*; do
    busybox insmod "$module" || echo "no $module"
done
until [ -b /dev/vda ]; do busybox usleep 10000; done
busybox mount -t ext4 /dev/vda /root
exec busybox switch_root /root /sbin/init
