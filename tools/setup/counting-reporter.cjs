/** Mocha's spec reporter that also keeps what steps.sh counts and repeats. */
const { reporters } = require('mocha');
const { tally } = require('./tally.cjs');

module.exports = class CountingReporter extends reporters.Spec {
  constructor(runner, options) {
    super(runner, options);
    tally(runner, this.stats);
  }
};
