# The initramfs of a guest: busybox, the modules below with what they depend on, guest-init and guest-agent. Named by what
# went into it, so that it is built again when that changes; sourced by setup.sh.

modules=(
  virtio_pci virtio_net virtio_blk virtio_console virtio-rng 9p 9pnet_virtio overlay configfs
  rdma_rxe siw ib_uverbs rdma_ucm rdma_cm ib_umad ib_cm iw_cm
  nvme-core nvme-fabrics nvme-rdma nvme-tcp nvmet nvmet-rdma nvmet-tcp nvme-loop
  null_blk brd loop ext4 xfs libcrc32c crc32c-intel crc32c_generic crc32_generic crc32_pclmul
  crct10dif_generic crct10dif-pclmul crct10dif_common
  veth bridge tun ifb sch_netem sch_ingress cls_matchall cls_u32 act_mirred act_gact act_pedit
  nbd ublk_drv dm-flakey dm-delay scsi_debug
)

# Prints the path of the initramfs of a kernel.
initramfs() {
  local kernel=$1 release mark image
  release=$(kernel_release "$kernel")
  mark=$({
    echo "$release"
    cat "$here/initramfs.sh" "$here/guest-init.sh" "$here/guest-agent.sh"
    cat "$vm/extra/$release"/*.ko 2>/dev/null || true
  } | sha256sum | cut -c 1-12)
  image=$vm/initrd-$kernel-$mark.gz
  [ -f "$image" ] || build_initramfs "$kernel" "$image"
  echo "$image"
}

build_initramfs() {
  local kernel=$1 image=$2 folder release root applet
  folder=$(kernel_folder "$kernel")
  release=$(kernel_release "$kernel")
  root=$(mktemp -d)
  mkdir -p "$root"/{bin,sbin,dev,proc,sys,run,tmp,host,rw,new,"lib/modules/$release"}
  cp /bin/busybox "$root/bin/busybox"
  for applet in $(/bin/busybox --list); do
    [ "$applet" = busybox ] || ln -sf busybox "$root/bin/$applet"
  done
  cp "$folder/lib/modules/$release"/modules.{builtin,builtin.modinfo,order} "$root/lib/modules/$release/"
  local module
  for module in "${modules[@]}"; do
    # Not every kernel has all of them.
    modprobe -d "$folder" -S "$release" --show-depends -a "$module" 2>/dev/null || true
  done | awk '$1 == "insmod" {print $2}' | sort -u | while read -r module; do
    module=${module#"$folder/"}
    install -D -m 644 "$folder/$module" "$root/$module"
  done
  if [ -d "$vm/extra/$release" ]; then
    install -D -m 644 -t "$root/lib/modules/$release/extra" "$vm/extra/$release"/*.ko
  fi
  # busybox's modprobe reads no xz.
  find "$root/lib/modules" -name '*.ko.xz' -exec xz -d {} +
  depmod -b "$root" "$release"
  install -m 755 "$here/guest-init.sh" "$root/init"
  install -m 755 "$here/guest-agent.sh" "$root/agent"
  (cd "$root" && find . -print0 | cpio --null -o -H newc -R 0:0 --quiet) | gzip -1 >"$image.new"
  mv "$image.new" "$image"
  rm -rf "$root"
}
