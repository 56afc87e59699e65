/** From a thrown value to exit code, sentence and remedy. The classes decide, never the text. */
import {
  ArgumentError,
  CommandTimeoutError,
  ConnectError,
  DisconnectedError,
} from '../../initiator/index.ts';
import { NvmeStatusError, NvmeofError, messageOf } from '../../native/common/errors.ts';
import { CliError } from './context.ts';
import { ExitCode } from './exit-codes.ts';

export interface Failure {
  readonly exitCode: ExitCode;
  readonly message: string;
  readonly remedy: string | undefined;
}

/** Codes of errors that are the fault of what was typed. */
const USAGE_CODES: ReadonlySet<string> = new Set([
  'CONFIG_INVALID',
  'CONFIG_UNREADABLE',
  'SIZE_INVALID',
  'ADDRESS_INVALID',
  'UUID_INVALID',
  'PROVIDER_UNAVAILABLE',
]);

function exitCodeOf(error: unknown): ExitCode {
  if (error instanceof ConnectError) return ExitCode.cannotConnect;
  if (error instanceof NvmeStatusError) return ExitCode.nvmeStatus;
  if (error instanceof DisconnectedError) return ExitCode.disconnected;
  if (error instanceof CommandTimeoutError) return ExitCode.disconnected;
  if (error instanceof ArgumentError) return ExitCode.usage;
  if (error instanceof NvmeofError && USAGE_CODES.has(error.code)) return ExitCode.usage;
  return ExitCode.failed;
}

/** What to do about errors of the system, by errno name. What native says of addresses in use or not there says it itself. */
const SYSTEM_REMEDIES: Readonly<Record<string, string>> = {
  EACCES: 'run it as a user who may open it',
  EPERM: 'run it as a user who may do that',
  ENOENT: 'check the path',
  EISDIR: 'name a file, not a folder',
  ENOSPC: 'make room on the file system',
  EMFILE: 'raise the limit of open files: ulimit -n 65536',
};

/** The errno names of an error and of those that caused it. */
function systemCodes(error: unknown): string[] {
  const codes: string[] = [];
  for (let at = error; at instanceof Error && codes.length < 8; at = at.cause) {
    const { code } = at as { readonly code?: unknown };
    codes.push(typeof code === 'string' ? code : '');
  }
  return codes;
}

export function describeFailure(error: unknown): Failure {
  if (error instanceof CliError) return error;
  const code = systemCodes(error).find((name) => name in SYSTEM_REMEDIES);
  return {
    exitCode: exitCodeOf(error),
    message: messageOf(error),
    remedy: code === undefined ? undefined : SYSTEM_REMEDIES[code],
  };
}
