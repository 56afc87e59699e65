# Named steps with their times, and the counts of the tests they ran; sourced by test.sh and .ci/run.
# NVMEOF_COUNTS names the file that collects "N passed, N failed" lines, NVMEOF_FAILURES the one that collects what the
# failing tests said: whoever finds them unset makes them, and ends with `summary`.

if [ -z "${NVMEOF_COUNTS:-}" ]; then
  NVMEOF_COUNTS=$(mktemp)
  NVMEOF_FAILURES=$(mktemp)
  export NVMEOF_COUNTS NVMEOF_FAILURES
  trap 'rm -f "$NVMEOF_COUNTS" "$NVMEOF_FAILURES"' EXIT
fi
steps_failed=0

# step NAME COMMAND...: goes on after a failure, which `summary` reports.
step() {
  local name=$1 begin=$SECONDS before
  shift
  before=$(failures)
  echo "== $name"
  if "$@"; then
    echo "== $name: done, $((SECONDS - begin)) s"
    return
  fi
  echo "== $name: FAILED, $((SECONDS - begin)) s" >&2
  steps_failed=$((steps_failed + 1))
  echo "step failed: $name" >>"$NVMEOF_FAILURES"
  # A step that broke without a failing test (lint, a crash, a build) counts as one failure.
  [ "$(failures)" != "$before" ] || echo "0 passed, 1 failed" >>"$NVMEOF_COUNTS"
}

# What failed, named once more where a long output ends, then the counts. Fails when a step did.
summary() {
  if [ -s "$NVMEOF_FAILURES" ]; then
    echo "== failures"
    cat "$NVMEOF_FAILURES"
  fi
  bash tools/setup/count-tests.sh "$NVMEOF_COUNTS"
  ((steps_failed == 0))
}

failures() { bash tools/setup/count-tests.sh "$NVMEOF_COUNTS" | sed 's/.*, \([0-9]*\) failed/\1/'; }

# Test programs print their counts; this keeps them. A program that died has none: its exit code tells.
counted() {
  local log status
  log=$(mktemp)
  "$@" 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" >>"$NVMEOF_COUNTS"
  grep -E '^FAILED |^[^ ]+\.(cc|c|h):[0-9]+: ' "$log" >>"$NVMEOF_FAILURES"
  rm -f "$log"
  return "$status"
}

# Bounded: a leaked handle or a process left behind by a failing test must not hold up the rest.
mocha_tests() {
  timeout --kill-after=10 1500 npx --no-install mocha --reporter tools/setup/counting-reporter.cjs "$@"
}
