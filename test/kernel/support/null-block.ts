/** Block devices in a guest's memory (null_blk): as fast as a kernel's target and ours can be compared on. */
import type { Guest } from './guest.ts';

const ROOT = '/sys/kernel/config/nullb';

/** Makes /dev/NAME (nullb0, nullb1 …). */
export async function addNullBlock(
  guest: Guest,
  name: string,
  { mebibytes = 64, blockBytes = 512 } = {},
): Promise<string> {
  await guest.run(`modprobe null_blk nr_devices=0
    mkdir ${ROOT}/${name}
    cd ${ROOT}/${name}
    echo ${mebibytes} >size
    echo ${blockBytes} >blocksize
    echo 1 >memory_backed
    echo 1 >discard
    echo 1 >power`);
  return `/dev/${name}`;
}

export async function removeNullBlock(guest: Guest, name: string): Promise<void> {
  await guest.run(`rmdir ${ROOT}/${name}`);
}
