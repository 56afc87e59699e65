#!/bin/bash
# Everything the guests of test/kernel need, from Debian packages: programs, stock kernels (unpacked, not installed), an
# initramfs. Idempotent, and quick when all is there. Prints `KERNEL VMLINUX INITRD` for each kernel that is ready.
#   setup.sh [--all]   kernel 6.12; with --all also 6.1 (Debian 12 has it) and the siw module, built out of tree
#   NVMEOF_VM          where downloads and results are kept (default: ~/.cache/nvmeof-vm)
# Exit code 77: this machine cannot have them, and the message says why.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/kernels.sh"
. "$here/siw.sh"
. "$here/initramfs.sh"

cannot() {
  echo "test:kernel cannot run here: $*" >&2
  exit 77
}

# Output only when it fails.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}

packages=(
  qemu-system-x86 busybox-static cpio kmod xz-utils zstd python3                # the guests themselves
  iproute2 tcpdump tshark                                                      # their network
  nvme-cli fio e2fsprogs xfsprogs rdma-core ibverbs-providers ibverbs-utils rdmacm-utils perftest # what runs in them
)
siw_packages=(build-essential bc bison flex libelf-dev libssl-dev)

install_packages() {
  local package missing=()
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  echo "test:kernel: installing ${missing[*]}" >&2
  quietly apt-get update || cannot "apt-get update failed, and these packages are missing: ${missing[*]}"
  DEBIAN_FRONTEND=noninteractive quietly apt-get install -y --no-install-recommends "${missing[@]}" ||
    cannot "these packages cannot be installed: ${missing[*]}"
}

main() {
  local all=false
  [ "${1:-}" != --all ] || all=true
  [ "$(uname -m)" = x86_64 ] || cannot "the guests are x86-64, this machine is $(uname -m)"
  command -v dpkg-query >/dev/null || cannot "the kernels come from Debian packages, and this is no Debian"
  [ "$(id -u)" = 0 ] || cannot "it needs root, for network namespaces and for the root file system that guests share"
  [ -c /dev/net/tun ] || cannot "/dev/net/tun is missing (modprobe tun)"

  vm=${NVMEOF_VM:-$HOME/.cache/nvmeof-vm}
  mkdir -p "$vm/dl"
  vm=$(readlink -f "$vm")
  exec 9>"$vm/setup.lock"
  flock 9 # one at a time: two runs may start together

  install_packages "${packages[@]}"
  local kernels=(6.12)
  if $all && has_6_1; then kernels=(6.1 6.12); fi
  local kernel
  for kernel in "${kernels[@]}"; do unpack_kernel "$kernel" || cannot "no kernel $kernel to be had"; done
  if $all; then
    install_packages "${siw_packages[@]}"
    build_siw || cannot "siw does not build, see $vm/siw.log"
  fi
  for kernel in "${kernels[@]}"; do
    echo "$kernel $(vmlinux "$kernel") $(initramfs "$kernel")"
  done
}

main "$@"
