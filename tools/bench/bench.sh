#!/bin/bash
# npm run bench: what nvmeof reaches beside what this machine could carry at best, in one run. Sets up what is missing.
# `npm run bench -- --help` says more.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash tools/setup/setup.sh fio nbdkit
exec node --import tsx tools/bench/main.ts "$@"
