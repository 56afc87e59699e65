#!/usr/bin/env node
/**
 * The `nvmeof` command. In an installed package it runs the compiled code in dist/; in a checkout without dist/, or
 * with NVMEOF_FROM_SOURCE=1, the TypeScript sources themselves. Everything else is in main.ts.
 */
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const compiled = new URL('../../dist/tools/cli/main.js', import.meta.url);
const source = new URL('./main.ts', import.meta.url);
const fromSource = process.env.NVMEOF_FROM_SOURCE === '1' || !existsSync(fileURLToPath(compiled));

if (fromSource) {
  const { register } = await import('tsx/esm/api');
  register();
}
const { main } = await import(fromSource ? source.href : compiled.href);
process.exitCode = await main(process.argv.slice(2), {
  stdin: process.stdin,
  stdout: process.stdout,
  stderr: process.stderr,
});
