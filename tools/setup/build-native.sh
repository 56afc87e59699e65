#!/bin/bash
# Builds the addon (native/build/Release/nvmeof.node) with node-gyp. make decides what is out of date, so a second call
# takes a second. Local Node headers are used where there are some: then nothing is downloaded. Silent on success.
# NVMEOF_SANITIZE=address builds it with ASan and UBSan.
set -euo pipefail
cd "$(dirname "$0")/../.."

arguments=()
for folder in "$(node -p 'require("path").dirname(require("path").dirname(process.execPath))')" /usr; do
  if [ -f "$folder/include/node/node.h" ]; then
    arguments+=("--nodedir=$folder")
    break
  fi
done

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Two compilers at a time: each takes some hundred megabytes.
if ! npx --no-install \
  node-gyp configure build -C native "${arguments[@]}" -j 2 >"$log" 2>&1; then
  grep -v '^gyp ' "$log" >&2 || true
  echo "build-native: the native build failed (above)" >&2
  exit 1
fi
