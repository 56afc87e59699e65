/** Help texts: examples behind every sub-command's options, exit codes behind the program's. */
import type { Command } from 'commander';
import { exitCodeMeanings } from './exit-codes.ts';

export function addExamples(
  command: Command,
  examples: readonly (readonly [string, string])[],
): void {
  const lines = examples.flatMap(([meaning, line]) => [`  # ${meaning}`, `  $ ${line}`]);
  command.addHelpText('after', `\nExamples:\n${lines.join('\n')}`);
}

export function exitCodeHelp(): string {
  const lines = exitCodeMeanings.map(([code, meaning]) => `  ${code}  ${meaning}`);
  return `\nExit codes:\n${lines.join('\n')}`;
}
