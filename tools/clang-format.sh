#!/bin/bash
# Formats the C and C++ sources by native/.clang-format.
#   clang-format.sh [--check]   only names the files that would change, and fails
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang-format >/dev/null || {
  echo "clang-format is missing: apt-get install clang-format" >&2
  exit 1
}
mapfile -d '' -t files < <(
  find native \( -name build -o -name build-test -o -name generated \) -prune -o \
    \( -name '*.cc' -o -name '*.c' -o -name '*.h' \) -print0
)
if [ "${1:-}" = --check ]; then
  clang-format --style=file --dry-run --Werror "${files[@]}"
else
  clang-format --style=file -i "${files[@]}"
fi
