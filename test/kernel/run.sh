#!/bin/bash
# npm run test:kernel: scenarios against real Linux kernels in qemu guests. Needs root and, the first time, Debian's
# mirrors. Taps, guests and the processes under test live in namespaces that end with the run.
#   run.sh [--all] [--grep TEXT] [--table] [FILE...]
#     (nothing)   the core set
#     --all       every scenario; fails when one was skipped
#     --grep      those of all whose line contains TEXT
#     --table     writes the results to docs/interop.md as well (--all does so)
#   NVMEOF_KERNEL_KEEP  where the logs and captures of failing scenarios go (default: a new folder in the temporary one)
# Exit codes: 0 all passed; 1 something failed; 2 the command line is wrong; 77 this machine cannot run it.
set -uo pipefail
cd "$(dirname "$0")/../.."

fail() {
  echo "test:kernel: $*" >&2
  exit 2
}

export NVMEOF_KERNEL_SET=core NVMEOF_KERNEL_TABLE=
setup=() mocha=() files=()
while (($#)); do
  case $1 in
    --all)
      NVMEOF_KERNEL_SET=all NVMEOF_KERNEL_TABLE=1
      mocha+=(--forbid-pending)
      ;;
    --grep)
      (($# > 1)) || fail "--grep needs a text"
      NVMEOF_KERNEL_SET=all
      mocha+=(--fgrep "$2")
      shift
      ;;
    --table) NVMEOF_KERNEL_TABLE=1 ;;
    -h | --help)
      sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"
      exit 0
      ;;
    -*) fail "unknown option $1" ;;
    *) files+=("$1") ;;
  esac
  shift
done
[ "$NVMEOF_KERNEL_SET" = core ] || setup+=(--all)
((${#files[@]})) || files=(test/kernel/scenarios)

NVMEOF_KERNELS=$(bash test/kernel/setup/setup.sh "${setup[@]}") || exit
export NVMEOF_KERNELS

# --no-config: the timeout and the counting of the scenarios are their own.
# Network and processes of the run: whatever is left of it ends with it.
exec unshare --net --pid --fork --kill-child --mount-proc -- bash -c 'ip link set lo up && exec "$@"' - \
  npx --no-install mocha --no-package --node-option import=tsx --reporter test/kernel/support/reporter.cjs \
  --extension ts --recursive --fail-zero --forbid-only "${mocha[@]}" "${files[@]}"
