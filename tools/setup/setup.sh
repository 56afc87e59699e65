#!/bin/bash
# Sets up what is missing (npm run setup): Debian packages, npm packages, the native build, the compiled TypeScript.
# Quick and silent when all is there. As root it installs Debian packages; otherwise it names them and stops.
#   setup.sh [--test] [PACKAGE...]   PACKAGE: Debian packages that the caller needs besides; --test: with what the tests need besides: clang with its fuzzing runtime, clang-format, llvm for coverage, iproute2, NBD clients
set -euo pipefail
cd "$(dirname "$0")/../.."

stop() {
  echo "setup: $*" >&2
  exit 1
}

check_node() {
  command -v node >/dev/null ||
    stop "Node.js is missing. Needed is 20.19 or later: apt-get install nodejs npm (Debian 13), or https://nodejs.org"
  local version major minor
  version=$(node -p 'process.versions.node')
  IFS=. read -r major minor _ <<<"$version"
  if ((major < 20 || (major == 20 && minor < 19))); then
    stop "Node.js $version is too old. Needed is 20.19 or later: https://nodejs.org"
  fi
  command -v npm >/dev/null || stop "npm is missing: apt-get install npm"
}

# A package counts as there when dpkg knows it as installed.
missing_packages() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

# The fuzzing and sanitizer runtime of the clang that `clang` stands for: libclang-rt-14-dev and so on.
clang_runtime() {
  local version
  version=$(dpkg-query -W -f '${Depends}' clang 2>/dev/null | grep -o 'clang-[0-9]*' | head -n 1 | cut -d- -f2)
  if [ -z "$version" ]; then
    version=$(apt-cache depends clang 2>/dev/null | grep -o 'clang-[0-9]*' | head -n 1 | cut -d- -f2)
  fi
  [ -z "$version" ] || echo "libclang-rt-$version-dev"
}

install_packages() {
  local wanted=(build-essential python3 pkg-config liburing-dev libisal-dev libibverbs-dev librdmacm-dev e2fsprogs)
  local test=false
  if [ "${1:-}" = --test ]; then
    test=true
    wanted+=(clang clang-format llvm iproute2 libnbd-bin nbdkit qemu-utils fio)
    shift
  fi
  wanted+=("$@")
  command -v dpkg-query >/dev/null ||
    stop "this is no Debian. Install the equivalents of: ${wanted[*]} — then run npm ci && npm run build"
  local missing
  mapfile -t missing < <(missing_packages "${wanted[@]}")
  local updated=false
  if $test; then
    local runtime
    # On a bare image apt-cache knows nothing before the first update.
    runtime=$(clang_runtime)
    if [ -z "$runtime" ] && [ "$(id -u)" = 0 ]; then
      quietly apt-get update
      updated=true
      runtime=$(clang_runtime)
    fi
    [ -z "$runtime" ] || mapfile -t -O "${#missing[@]}" missing < <(missing_packages "$runtime")
  fi
  ((${#missing[@]})) || return 0
  local command="apt-get install -y --no-install-recommends ${missing[*]}"
  [ "$(id -u)" = 0 ] || stop "Debian packages are missing. As root: apt-get update && $command"
  echo "setup: installing ${missing[*]}" >&2
  $updated || quietly apt-get update
  DEBIAN_FRONTEND=noninteractive quietly $command
}

# Output only when it fails.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    stop "failed: $*"
  fi
  rm -f "$log"
}

install_modules() {
  # npm writes this file last.
  local mark=node_modules/.package-lock.json
  [ -f "$mark" ] && [ ! package-lock.json -nt "$mark" ] && [ ! package.json -nt "$mark" ] && return 0
  if [ -f "$mark" ] && npm ls --all >/dev/null 2>&1; then
    touch "$mark" # newer by date only, as after a checkout
    return 0
  fi
  echo "setup: npm ci" >&2
  quietly npm ci --no-audit --no-fund
}

check_node
install_packages "$@"
install_modules
quietly bash tools/setup/build-native.sh
quietly npx --no-install tsc -p tsconfig.build.json
