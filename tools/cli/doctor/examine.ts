/** All checks of the doctor in the order in which they are shown. */
import {
  checkFirewall,
  checkInterfaces,
  checkPort,
  checkRdmaDevices,
  checkSocketBuffers,
} from './network-checks.ts';
import { checkHugePages, checkIoUring, checkLockedMemory, checkNative } from './resource-checks.ts';
import type { ProbeResult } from './resource-checks.ts';
import type { Finding, SystemView } from './system-view.ts';

export function examine(view: SystemView, probe: ProbeResult): Finding[] {
  return [
    ...checkNative(probe),
    ...checkPort(view),
    ...checkSocketBuffers(view),
    ...checkLockedMemory(view),
    ...checkIoUring(view, probe),
    ...checkInterfaces(view),
    ...checkRdmaDevices(view),
    ...checkHugePages(view),
    ...checkFirewall(view),
  ];
}
