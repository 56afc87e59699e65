/** The configuration as it is now: shown, saved, read again. */
import { isAbsolute } from 'node:path';
import { z } from 'zod';
import { NvmeofError } from '../../native/common/errors.ts';
import { formatConfig, targetSchema } from '../config.ts';
import { saveConfig } from '../save-config.ts';
import { method } from './method.ts';
import type { Method } from './method.ts';
import { nothing } from './schemas.ts';

const absolute = z
  .string()
  .max(4096)
  .refine((path) => isAbsolute(path), 'must be an absolute path: the target has another folder');

export const CONFIG_METHODS: readonly Method[] = [
  method({
    name: 'config.get',
    summary: 'The configuration as it is now, as a file with it would say it',
    kind: 'look',
    params: nothing,
    result: targetSchema,
    example: {},
    run: ({ target }) => JSON.parse(formatConfig(target.config)) as unknown,
  }),
  method({
    name: 'config.save',
    summary:
      'Write the configuration as it is now to the file that the target was started with, or to another; a target started with it is the same',
    // What is half done by a change of the whole must not be saved.
    kind: 'whole',
    params: z.strictObject({ path: absolute.optional() }),
    result: z.strictObject({ path: z.string() }),
    example: { path: '/etc/nvmeof/target.json' },
    run: async ({ target, service }, { path = service.configFile }) => {
      if (path === undefined) {
        throw new NvmeofError(
          'CONFIG_NO_FILE',
          'path: the target was started without a configuration file; say where to save it',
        );
      }
      await saveConfig(path, target.config);
      return { path };
    },
  }),
  method({
    name: 'config.reload',
    summary:
      'Read the configuration file again and apply the difference; on an error nothing changes',
    kind: 'whole',
    params: nothing,
    result: z.strictObject({ changes: z.array(z.string()) }),
    example: {},
    run: async ({ service }) => ({ changes: await service.reload() }),
  }),
];
