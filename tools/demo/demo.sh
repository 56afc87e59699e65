#!/bin/bash
# The demonstration: sets up what is missing, then exports an image over RoCEv2 from one process and works on it from
# another. `npm run demo -- --help` says more. Exits non-zero and names what failed.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash tools/setup/setup.sh
exec node --import tsx tools/demo/main.ts "$@"
