/** Mocha's spec reporter that also adds its counts to the file NVMEOF_COUNTS (see steps.sh). */
const { appendFileSync } = require('node:fs');
const { reporters } = require('mocha');

module.exports = class CountingReporter extends reporters.Spec {
  constructor(runner, options) {
    super(runner, options);
    const file = process.env.NVMEOF_COUNTS;
    if (!file) return;
    runner.once('end', () => {
      // failures includes hooks that failed, which count as no test of their own
      appendFileSync(file, `${this.stats.passes} passed, ${this.stats.failures} failed\n`);
    });
  }
};
