#!/bin/bash
# npm run bench: what nvmeof reaches beside what this machine could carry at best, in one run. Sets up what is missing
# (npm run setup; fio). `npm run bench -- --help` says more.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash tools/setup/setup.sh
if ! command -v fio >/dev/null; then
  [ "$(id -u)" = 0 ] || {
    echo "bench: fio is missing. As root: apt-get install -y --no-install-recommends fio" >&2
    exit 1
  }
  echo "bench: installing fio" >&2
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends fio; } >/dev/null
fi
exec node --import tsx tools/bench/main.ts "$@"
