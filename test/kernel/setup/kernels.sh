# Stock Debian kernels, unpacked into $vm; sourced by setup.sh. Debian 12 has 6.1, and 6.12 in its backports; Debian 13 has
# 6.12. The backports get an apt list of their own, so that the machine's own lists stay as they are.

codename() { (. /etc/os-release && echo "$VERSION_CODENAME"); }
has_6_1() { [ "$(codename)" = bookworm ]; }

kernel_folder() { [ "$1" = 6.1 ] && echo "$vm/kernel" || echo "$vm/kernel612"; }
kernel_release() { ls "$(kernel_folder "$1")/lib/modules"; }
vmlinux() { echo "$vm/vmlinux-$1"; }

# apt for the kernel named: `apt_for 6.12 apt-get download …`
apt_for() {
  local kernel=$1 program=$2
  shift 2
  if [ "$kernel" = 6.1 ] || [ "$(codename)" != bookworm ]; then
    "$program" "$@"
    return
  fi
  local own=$vm/aptbp
  if [ ! -s "$own/sources.list" ]; then
    mkdir -p "$own/lists/partial" "$own/cache/archives/partial"
    local mirror
    # The mirror that the machine already uses.
    mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null |
      grep -oE 'https?://[^ ]*/debian/?( |$)' | head -n 1 | tr -d ' ')
    if [ -z "$mirror" ]; then
      echo "test:kernel: no Debian mirror stands in /etc/apt/sources.list or sources.list.d" >&2
      return 1
    fi
    local key=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$key] $mirror bookworm-backports main" >"$own/sources.list"
  fi
  "$program" -o Dir::Etc::sourcelist="$own/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::lists="$own/lists" -o Dir::Cache="$own/cache" -o APT::Sandbox::User=root "$@"
}

# download KERNEL PACKAGE: into $vm/dl, unless it is there
download() {
  compgen -G "$vm/dl/$2_*.deb" >/dev/null || (cd "$vm/dl" && quietly apt_for "$1" apt-get download "$2")
}

unpack_kernel() {
  local kernel=$1 folder package
  folder=$(kernel_folder "$kernel")
  if [ ! -d "$folder/lib/modules" ]; then
    echo "test:kernel: fetching kernel $kernel" >&2
    quietly apt_for "$kernel" apt-get update || return
    package=$(apt_for "$kernel" apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-6/ {print $2; exit}')
    [[ $package == linux-image-$kernel.* ]] || return
    download "$kernel" "$package" || return
    rm -rf "$folder" "$folder.new"
    dpkg -x "$vm/dl/$package"_*.deb "$folder.new" || return
    # Debian 13 has the modules below /usr.
    [ -d "$folder.new/lib" ] || ln -s usr/lib "$folder.new/lib" || return
    mv "$folder.new" "$folder" || return
  fi
  if [ ! -f "$(vmlinux "$kernel")" ]; then
    # Uncompressed: the emulator would take longer to unpack it than to boot it.
    /usr/bin/python3 "$here/extract-vmlinux.py" "$folder"/boot/vmlinuz-* "$(vmlinux "$kernel").new" || return
    mv "$(vmlinux "$kernel").new" "$(vmlinux "$kernel")"
  fi
  [ -f "$folder/lib/modules/$(kernel_release "$kernel")/modules.dep" ] || depmod -b "$folder" "$(kernel_release "$kernel")"
}
