/** One line per scenario with its time, failures in full at the end; keeps what steps.sh counts and repeats. */
const { reporters } = require('mocha');
const { tally } = require('../../../tools/setup/tally.cjs');

module.exports = class KernelReporter extends reporters.Base {
  constructor(runner, options) {
    super(runner, options);
    tally(runner, this.stats);
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
    });
  }
};
