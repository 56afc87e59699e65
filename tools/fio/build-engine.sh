#!/bin/bash
# Builds fio's engine for attached namespaces (native/client/fio) and prints its path. It is built against the sources of
# exactly the fio that is installed, which apt fetches from the mirrors that the system uses already, by a configuration
# of its own: nothing of the system changes, and root is not needed. What was built is kept and found in a moment.
#   build-engine.sh [--check]   --check builds nothing: prints the path, or says what is missing and exits 3
#   FIO_SOURCE                  a source tree of the installed fio, where it is not Debian's package
#   XDG_CACHE_HOME              where things are kept: in nvmeof/ there; default ~/.cache
set -euo pipefail
native=$(cd "$(dirname "$0")/../../native" && pwd)
script=$(cd "$(dirname "$0")" && pwd)/build-engine.sh

stop() {
  echo "fio engine: $1" >&2
  exit "${2:-1}"
}

command -v fio >/dev/null || stop "fio is not installed: apt-get install fio" 2
program=$(fio --version)
program=${program#fio-}

# The version of the source package, whatever the binary was rebuilt as.
debian_version() {
  command -v dpkg-query >/dev/null || return 0
  dpkg-query -S "$(readlink -f "$(command -v fio)")" 2>/dev/null | grep -q '^fio:' || return 0
  dpkg-query -W -f '${source:Version}' fio
}
version=$(debian_version)
if [ -z "$version" ] && [ -z "${FIO_SOURCE:-}" ]; then
  stop "$(command -v fio) is not Debian's package: give the sources of fio $program with FIO_SOURCE=FOLDER" 2
fi

sources=("$native"/client/*.c "$native"/client/*.h "$native"/client/fio/*.c)
engine_sources=("$native"/client/*.c "$native"/client/fio/*.c)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/nvmeof/fio-${version:-$program}
engine=$cache/nvmeof-fio.so
# What it was built from.
state=$(cat "${sources[@]}" "$script" | sha256sum | cut -d' ' -f1)

if [ -f "$engine" ] && [ "$(cat "$cache/state" 2>/dev/null)" = "$state" ]; then
  echo "$engine"
  exit
fi
[ "${1:-}" != --check ] || stop "it is not built yet for fio $program: bash $script" 3

need() { # COMMAND PACKAGE
  command -v "$1" >/dev/null || stop "$1 is missing: apt-get install $2" 2
}
need gcc build-essential
need make build-essential
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9 # two at a time would unpack into each other

log=$cache/build.log
: >"$log"
logged() { "$@" >>"$log" 2>&1; }

# The keyring that the system's list names for a mirror; nothing: the ones that apt trusts anyway.
key_of() { # URI
  cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
    grep -F -- "${1%/}" | sed -n 's/^deb[^#]*signed-by=\([^] ]*\).*/\1/p' | head -n 1
  awk -v RS= -v uri="${1%/}" 'index($0, uri)' /etc/apt/sources.list.d/*.sources 2>/dev/null |
    sed -n 's/^Signed-By: *\(\/.*\)/\1/p' | head -n 1
}

# The mirrors of this system, as lines for the source packages.
source_lines() {
  local format='$(REPO_URI)|$(RELEASE)|$(COMPONENT)' targets key
  targets=$(apt-get indextargets --format "$format" 'Created-By: Packages' 'Origin: Debian' 'Component: main')
  # Nothing is known of an origin before the first apt-get update.
  [ -n "$targets" ] ||
    targets=$(apt-get indextargets --format "$format" 'Created-By: Packages' 'Component: main')
  sort -u <<<"$targets" | while IFS='|' read -r uri release component; do
    [ -n "$uri" ] || continue
    key=$(key_of "$uri" | head -n 1)
    echo "deb-src ${key:+[signed-by=$key] }$uri $release $component"
  done
}

fetch_source() {
  need apt-get apt
  need dpkg-source dpkg-dev
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work"/{lists,cache/archives}/partial "$work/source"
  source_lines >"$work/sources.list"
  [ -s "$work/sources.list" ] || stop "apt knows no mirror with Debian's packages: see /etc/apt/sources.list.d"
  local own=(
    -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache"
    -o Debug::NoLocking=1 -o APT::Sandbox::User=
  )
  echo "fio engine: fetching the sources of fio $version" >&2
  logged apt-get "${own[@]}" update || stop "apt-get cannot read the lists of source packages: see $log"
  (cd "$work/source" && logged apt-get "${own[@]}" source --download-only "fio=$version") ||
    stop "there is no source of fio $version at: $(awk '{ print $(NF - 2) " " $(NF - 1) }' "$work/sources.list" | paste -sd ';')
  Install the fio that these have (apt-get update && apt-get install fio), or give its sources with FIO_SOURCE=FOLDER."
  rm -rf "$cache/source"
  logged dpkg-source -x "$work"/source/*.dsc "$cache/source" || stop "the sources cannot be unpacked: see $log"
}

source=${FIO_SOURCE:-$cache/source}
[ -f "$source/fio.h" ] || {
  [ -z "${FIO_SOURCE:-}" ] || stop "$source is no source tree of fio: it has no fio.h" 2
  fetch_source
}
[ -f "$source/config-host.h" ] || (cd "$source" && logged ./configure) ||
  stop "fio's configure failed: see $log"

gcc -std=gnu11 -O2 -g -D_GNU_SOURCE -Wall -Wextra -fPIC -shared -fvisibility=hidden \
  -isystem "$source" -include "$source/config-host.h" -I "$native/client" \
  "${engine_sources[@]}" -o "$engine.new" >>"$log" 2>&1 ||
  stop "it does not compile against fio $program: see $log"
mv "$engine.new" "$engine"
echo "$state" >"$cache/state"
echo "$engine"
