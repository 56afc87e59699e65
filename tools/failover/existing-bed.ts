/**
 * A test bed of targets that exist already. What is on the namespace is overwritten: nobody gets here without having said
 * that it may be.
 */
import { connect } from '../../initiator/index.ts';
import { formatSize } from '../../native/common/size.ts';
import { HostFaults } from './host-faults.ts';
import { RemoteTarget } from './remote-target.ts';
import type { RemoteTargetOptions } from './remote-target.ts';
import { SeveralPathsHost } from './several-paths.ts';
import { hostOptions } from './test-bed.ts';
import type { HostSettings, TestBed } from './test-bed.ts';

export interface ExistingOptions {
  readonly paths: readonly { readonly address: string; readonly port: number }[];
  readonly nqn: string;
  readonly nsid: number;
  /** Of the paths' targets, in their order. */
  readonly controls: readonly string[];
}

export function remoteTargets(
  { paths, nqn, controls }: ExistingOptions,
  faults: HostFaults,
): RemoteTarget[] {
  return paths.map((path, index) => {
    const control = controls[index];
    const options: RemoteTargetOptions = {
      ...path,
      nqn,
      ...(control === undefined ? {} : { control }),
    };
    return new RemoteTarget(
      options,
      paths.map((each) => ({ ...each, nqn })),
      faults,
    );
  });
}

/** "namespace 1 of NQN at 192.0.2.7:4420: 1 GiB (1073741824 bytes), serial 1234, model …"; connects, and reads alone. */
export async function describeNamespace({ paths, nqn, nsid }: ExistingOptions): Promise<string> {
  const [first] = paths;
  if (!first) throw new RangeError('there is no path');
  const controller = await connect({ ...first, nqn, queues: 1 });
  try {
    const { bytes } = controller.namespace(nsid);
    const { sn, mn } = controller.data;
    return (
      `namespace ${nsid} of ${nqn} at ${controller.endpoint}: ${formatSize(bytes)} (${bytes} bytes), ` +
      `serial ${sn.trim()}, model ${mn.trim()}`
    );
  } finally {
    await controller.disconnect();
  }
}

export async function withExistingTargets<T>(
  existing: ExistingOptions,
  settings: HostSettings & { readonly seed: number },
  run: (bed: TestBed) => Promise<T>,
): Promise<T> {
  const { paths, nqn, nsid } = existing;
  const faults = new HostFaults(settings.seed);
  const targets = remoteTargets(existing, faults);
  const options = { ...hostOptions(nqn, paths, settings), faultInjection: true };
  const host = await SeveralPathsHost.connect(options, nsid, faults.environment);
  try {
    return await run({ host, targets, nsid, reconnectDelayMs: settings.reconnectDelayMs });
  } finally {
    await host.close();
  }
}
