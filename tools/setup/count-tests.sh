#!/bin/bash
# Sums lines "N passed, N failed" of the files named: prints one such line.
set -euo pipefail
awk '/^[0-9]+ passed, [0-9]+ failed$/ { passed += $1; failed += $3 }
     END { printf "%d passed, %d failed\n", passed, failed }' "$@"
