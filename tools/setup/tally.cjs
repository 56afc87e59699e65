/**
 * What every reporter of ours does for steps.sh: adds a run's counts to the file NVMEOF_COUNTS, and each failing test with
 * what it threw to NVMEOF_FAILURES. Without these variables nothing.
 */
const { appendFileSync } = require('node:fs');

const STACK_LINES = 12;

exports.tally = function (runner, stats) {
  const { NVMEOF_COUNTS: counts, NVMEOF_FAILURES: failures } = process.env;
  if (failures) {
    runner.on('fail', (test, error) => {
      const said = String(error?.stack ?? error).split('\n', STACK_LINES);
      appendFileSync(failures, `FAILED ${test.fullTitle()}\n  ${said.join('\n  ')}\n`);
    });
  }
  if (counts) {
    // failures includes hooks that failed, which count as no test of their own
    runner.once('end', () =>
      appendFileSync(counts, `${stats.passes} passed, ${stats.failures} failed\n`),
    );
  }
};
