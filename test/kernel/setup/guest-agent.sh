#!/run/agent/busybox sh
# The agent in a guest: runs the scripts that come through a virtio port and answers with what they printed.
#   in:  ID SECONDS BASE64(script)      out: ID EXITCODE BASE64(stdout) BASE64(stderr)
# One line each. Scripts run side by side, with sh, in a session of their own; one that outlasts its seconds is killed
# and answers 124 or 137. (/bin/sh: busybox would take its own programs before those of the root file system.)
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
bb=/run/agent/busybox
cd /tmp || exit
ip link set lo up
dmesg -n 7
# The port gets its name a moment after it appears.
device=
until [ -n "$device" ]; do
  for port in /sys/class/virtio-ports/*; do
    [ "$(cat "$port/name" 2>/dev/null)" != nvmeof.control ] || device=/dev/${port##*/}
  done
  [ -n "$device" ] || sleep 0.1
done
exec 3<>"$device"
echo "ready $(uname -r)" >&3
while read -r id seconds script <&3; do
  {
    work=/run/agent/$id
    echo "$script" | $bb base64 -d >"$work.sh"
    setsid /usr/bin/timeout -k 2 "$seconds" /bin/sh "$work.sh" </dev/null >"$work.out" 2>"$work.err" 3>&-
    code=$?
    {
      flock 9
      printf '%s %s %s %s\n' "$id" "$code" "$($bb base64 -w 0 "$work.out")" "$($bb base64 -w 0 "$work.err")" >&3
    } 9>/run/agent/lock
    rm -f "$work".*
  } &
done
echo o >/proc/sysrq-trigger
