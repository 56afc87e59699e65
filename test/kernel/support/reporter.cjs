/** One line per scenario with its time, failures in full at the end; adds its counts to NVMEOF_COUNTS (steps.sh). */
const { appendFileSync } = require('node:fs');
const { reporters } = require('mocha');

module.exports = class KernelReporter extends reporters.Base {
  constructor(runner, options) {
    super(runner, options);
    const began = Date.now();
    const line = (word, test) => {
      const seconds = ((test.duration ?? 0) / 1000).toFixed(1).padStart(6);
      console.log(`${word.padEnd(7)} ${seconds} s  ${test.title}`);
    };
    runner.on('suite', (suite) => {
      if (suite.title) console.log(`\n${suite.title}`);
    });
    runner.on('pass', (test) => line('ok', test));
    runner.on('fail', (test, error) => {
      line('FAILED', test);
      console.log(`        ${String(error.message).split('\n')[0]}`);
    });
    runner.on('pending', (test) => line('skipped', test));
    runner.once('end', () => {
      this.epilogue();
      const { passes, failures } = this.stats;
      console.log(`${passes} passed, ${failures} failed`);
      console.log(`took ${Math.round((Date.now() - began) / 1000)} s`);
      if (process.env.NVMEOF_COUNTS) {
        appendFileSync(process.env.NVMEOF_COUNTS, `${passes} passed, ${failures} failed\n`);
      }
    });
  }
};
