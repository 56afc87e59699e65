#!/bin/busybox sh
# /init of a guest: makes the machine's own root file system the guest's (9p, read-only, below an overlay in memory), so
# that every program is there, and becomes the agent. /run/share is a folder of the run, writable, with the path of this
# repository in the file "repository"; the repository itself is at /run/repository.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
mount -t devtmpfs dev /dev 2>/dev/null
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
for module in virtio_pci virtio_console virtio-rng virtio_net 9pnet_virtio 9p overlay configfs; do
  modprobe "$module" 2>/dev/null
done
options=trans=virtio,version=9p2000.L,msize=512000
if ! mount -t 9p -o ro,cache=loose,$options hostroot /host; then
  echo 'guest: the root file system does not mount' >/dev/console
  poweroff -f
fi
mount -t tmpfs -o size=75% tmpfs /rw
mkdir -p /rw/upper /rw/work
mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work overlay /new
for folder in dev proc sys; do
  mkdir -p /new/$folder
  mount --move /$folder /new/$folder
done
mount -t tmpfs tmpfs /new/run
mkdir -p /new/run/share /new/run/agent /new/run/repository
mount -t 9p -o rw,cache=none,$options share /new/run/share
# Before /tmp is covered: the repository may be there.
mount --bind "/new$(cat /new/run/share/repository)" /new/run/repository
mount -t tmpfs tmpfs /new/tmp
# switch_root empties the initramfs: what is needed of it moves to memory.
release=$(uname -r)
mkdir -p /rw/modules "/new/usr/lib/modules/$release" /new/mnt
cp -a "/lib/modules/$release/." /rw/modules/
mount --bind /rw/modules "/new/usr/lib/modules/$release"
cp /bin/busybox /agent /new/run/agent/
mount -t configfs configfs /new/sys/kernel/config
mount -t debugfs debugfs /new/sys/kernel/debug
# Process 1 does nothing but wait: whatever a script left behind is taken from the process table as soon as it ends.
exec switch_root /new /run/agent/busybox sh -c '/run/agent/agent & wait'
