# The siw module (iWARP in software) for kernel 6.12; Debian's kernels lack it. Built out of tree from Debian's own source
# package into $vm/extra/RELEASE; sourced by setup.sh.

build_siw() {
  local release flavour
  release=$(kernel_release 6.12)
  flavour=${release%-amd64}
  [ ! -f "$vm/extra/$release/siw.ko" ] || return 0
  echo "test:kernel: building siw for $release" >&2
  local package headers=("linux-headers-$release" "linux-headers-$flavour-common" "linux-kbuild-$flavour")
  for package in "${headers[@]}"; do
    download 6.12 "$package" && dpkg -x "$vm/dl/$package"_*.deb "$vm/hdr" || return
  done
  download 6.12 linux-source-6.12 && dpkg -x "$vm/dl"/linux-source-6.12_*.deb "$vm/src612" || return
  local folder=drivers/infiniband/sw/siw
  mkdir -p "$vm/siw" "$vm/extra/$release"
  tar -C "$vm/siw" --strip-components=1 --wildcards -xf "$vm/src612/usr/src/linux-source-6.12.tar.xz" \
    "linux-source-6.12/$folder/*" || return
  # The headers' Makefile names its common part by an absolute path.
  sed -i "s|include /usr/src/|include $vm/hdr/usr/src/|" "$vm/hdr/usr/src/linux-headers-$release/Makefile"
  # Without BTF, which would need pahole and a vmlinux with debug information.
  make -j2 -C "$vm/hdr/usr/src/linux-headers-$release" M="$vm/siw/$folder" \
    CONFIG_RDMA_SIW=m CONFIG_DEBUG_INFO_BTF_MODULES= modules >"$vm/siw.log" 2>&1 || return
  strip -g -o "$vm/extra/$release/siw.ko" "$vm/siw/$folder/siw.ko"
}
