#!/bin/bash
# npm run test:addon-asan: the addon's own unit tests, or the mocha files named, with the addon and all native code under
# ASan and UBSan. Builds in a copy of the sources, so that the usual build stays.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
tar -c --exclude=node_modules --exclude=dist --exclude=build --exclude=build-test --exclude=.git . | tar -x -C "$copy"
ln -s "$root/node_modules" "$copy/node_modules"
cd "$copy"
NVMEOF_SANITIZE=address bash tools/setup/build-native.sh
(($#)) || set -- 'test/unit/native/**/*.test.ts'
# Leaks: Node itself never frees what it has at exit.
ASAN_OPTIONS=detect_leaks=0:halt_on_error=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
  LD_PRELOAD="$(gcc -print-file-name=libasan.so):$(gcc -print-file-name=libstdc++.so)" \
  node node_modules/mocha/bin/mocha.js --timeout 60000 "$@"
