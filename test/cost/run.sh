#!/bin/bash
# npm run test:cost: what one I/O costs in instructions and system calls, compared with baseline.json. Sets up what is missing.
#   run.sh [--record]   writes baseline.json for this compiler instead
set -euo pipefail
cd "$(dirname "$0")/../.."
case ${1:-} in
  '') ;;
  --record) export NVMEOF_COST_RECORD=1 ;;
  *)
    echo "test:cost: unknown option $1 (there is --record)" >&2
    exit 2
    ;;
esac
bash tools/setup/setup.sh valgrind
build=${NVMEOF_COST_BUILD:-$PWD/native/test/build-test}
make --no-print-directory -C native/test -j 2 BUILD="$build" cost
export NVMEOF_COST_PROGRAM=$build/plain/io_cost
exec npx --no-install mocha --reporter tools/setup/counting-reporter.cjs test/cost/cost.test.ts
