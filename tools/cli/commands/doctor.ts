/** `nvmeof doctor`: what stands in the way on this machine, and what to type. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { messageOf } from '../../../native/common/errors.ts';
import { acquireRuntime } from '../../../native/shared-runtime.ts';
import type { CliContext, SubCommand } from '../context.ts';
import { examine } from '../doctor/examine.ts';
import type { ProbeResult } from '../doctor/resource-checks.ts';
import { SystemView } from '../doctor/system-view.ts';
import type { Finding } from '../doctor/system-view.ts';
import { ExitCode } from '../exit-codes.ts';
import { addExamples } from '../help.ts';

interface Flags {
  readonly json?: boolean;
  readonly root: string;
}

const PROBE_BYTES = 4096;

/** Opens a small file as a namespace would be: shows how this sandbox lets us do I/O. */
async function probeNative(): Promise<ProbeResult> {
  let lease;
  try {
    lease = acquireRuntime();
  } catch (error) {
    return { built: false, description: messageOf(error) };
  }
  const folder = mkdtempSync(join(tmpdir(), 'nvmeof-doctor-'));
  const path = join(folder, 'probe');
  try {
    writeFileSync(path, new Uint8Array(PROBE_BYTES));
    const { door } = lease.runtime;
    const backing = await door.openBacking({ kind: 'file', path, blockSize: 512 });
    const { description } = door.backingInfo(backing);
    await door.closeBacking(backing);
    return { built: true, description };
  } catch (error) {
    return { built: true, description: messageOf(error) };
  } finally {
    rmSync(folder, { recursive: true, force: true });
    lease.release();
  }
}

const MARKS = { ok: ' ok ', warn: 'warn', fail: 'FAIL' } as const;

export function formatFindings(findings: readonly Finding[]): string {
  const width = Math.max(...findings.map(({ subject }) => subject.length));
  return findings
    .map(({ subject, level, message, remedy }) => {
      const line = `[${MARKS[level]}] ${subject.padEnd(width)}  ${message}`;
      return remedy === undefined ? line : `${line}\n${' '.repeat(width + 9)}→ ${remedy}`;
    })
    .join('\n');
}

function report(
  context: CliContext,
  findings: readonly Finding[],
  json: boolean | undefined,
): void {
  const failed = findings.filter(({ level }) => level === 'fail').length;
  const warned = findings.filter(({ level }) => level === 'warn').length;
  if (json === true) {
    context.printJson({ failed, warned, findings });
  } else {
    context.print(formatFindings(findings));
    context.print();
    context.print(
      failed > 0
        ? `${failed} of ${findings.length} checks failed, ${warned} with warnings.`
        : `Nothing stands in the way${warned > 0 ? `; ${warned} warning${warned === 1 ? '' : 's'}` : ''}.`,
    );
  }
  if (failed > 0) context.exitCode = ExitCode.failed;
}

export const doctorCommand: SubCommand = {
  name: 'doctor',
  define(command, context) {
    command
      .summary('say what stands in the way on this machine')
      .description(
        'Looks at ports, limits, interfaces, RDMA devices and the sandbox, and says what to type. Changes ' +
          'nothing. Exits with 1 when something would keep a target or an initiator from working.',
      )
      .option('--json', 'print JSON')
      .option('--root <folder>', 'look at a copy of /proc and /sys instead', '/')
      .action(async (flags: Flags) => {
        const view = new SystemView(flags.root);
        report(context, examine(view, await probeNative()), flags.json);
      });
    addExamples(command, [
      ['what is wrong', 'nvmeof doctor'],
      ['only failures', 'nvmeof doctor --json | jq \'.findings[] | select(.level == "fail")\''],
    ]);
  },
};
