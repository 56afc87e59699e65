/** Runs a script of tools/ that commander describes: exit code 2 for a wrong command line, 1 and a sentence for a failure. */
import { CommanderError } from 'commander';
import type { Command } from 'commander';
import { messageOf } from '../native/common/errors.ts';

export async function runProgram(
  program: Command,
  sentence: (message: string) => string,
): Promise<void> {
  try {
    await program.exitOverride().parseAsync();
  } catch (error) {
    if (error instanceof CommanderError) {
      process.exitCode = error.exitCode === 0 ? 0 : 2;
    } else {
      process.stderr.write(`${sentence(messageOf(error))}\n`);
      process.exitCode = 1;
    }
  }
}
