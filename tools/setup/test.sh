#!/bin/bash
# npm test: sets up what is missing, then type check, native tests, unit and end-to-end tests. Exit code 1 when anything
# failed.
set -uo pipefail
cd "$(dirname "$0")/../.."
. tools/setup/steps.sh

step setup bash tools/setup/setup.sh --test
((steps_failed == 0)) || exit 1
step "type check" npm run --silent typecheck
step "native tests" counted make -C native/test -j 2 run
step "unit tests" mocha_tests 'test/unit/**/*.test.ts'
step "end-to-end tests" mocha_tests 'test/e2e/**/*.test.ts'

summary
