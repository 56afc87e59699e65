/** What tests of failover have in common. */

/** The target processes of these tests run from the sources, as every other. */
export function fromSource(): void {
  const key = 'NVMEOF_FROM_SOURCE';
  const previous = process.env[key];
  before(() => {
    process.env[key] = '1';
  });
  after(() => {
    if (previous === undefined) Reflect.deleteProperty(process.env, key);
    else process.env[key] = previous;
  });
}
