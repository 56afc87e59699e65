/** The target as a whole: its state, who is attached, its log, its end. */
import { z } from 'zod';
import { LOG_LEVELS, method } from './method.ts';
import type { Method } from './method.ts';
import {
  controllerView,
  done,
  nothing,
  placementView,
  someSubsystem,
  statistics,
} from './schemas.ts';

const HOUR_MS = 3_600_000;
const logLevel = z.strictObject({ level: z.enum(LOG_LEVELS) });

const status = z.strictObject({
  version: z.string(),
  pid: z.int(),
  uptimeSeconds: z.number(),
  state: z.enum(['serving', 'drained']),
  configFile: z.string().nullable(),
  logLevel: z.enum(LOG_LEVELS),
  ports: z.int(),
  subsystems: z.int(),
  controllers: z.int(),
});

export const TARGET_METHODS: readonly Method[] = [
  method({
    name: 'target.status',
    summary: 'Version, process, state, and how much there is',
    kind: 'look',
    params: nothing,
    result: status,
    example: {},
    run: ({ target, service }) => ({
      version: service.version,
      pid: process.pid,
      uptimeSeconds: Math.round(process.uptime()),
      state: target.drained ? 'drained' : 'serving',
      configFile: service.configFile ?? null,
      logLevel: service.logLevel,
      ports: target.ports.length,
      subsystems: target.subsystems.length,
      controllers: target.controllers.length,
    }),
  }),
  method({
    name: 'target.statistics',
    summary: 'What each queue and reactor did so far, and all counters',
    kind: 'look',
    params: nothing,
    result: statistics,
    example: {},
    run: ({ target }) => target.statistics(),
  }),
  method({
    name: 'target.drain',
    summary:
      'Refuse new associations, empty the discovery log, give hosts waitMs to leave, then end the associations that are left after their I/O in flight',
    kind: 'serve',
    params: z.strictObject({ waitMs: z.int().min(0).max(HOUR_MS).default(0) }),
    result: z.strictObject({ left: z.int(), ended: z.int(), drained: z.boolean() }),
    example: { waitMs: 30_000 },
    run: ({ target }, { waitMs }) => target.drain(waitMs),
  }),
  method({
    name: 'target.resume',
    summary: 'Take hosts again after target.drain',
    kind: 'serve',
    params: nothing,
    result: done,
    example: {},
    run: ({ target }) => {
      target.resume();
      return null;
    },
  }),
  method({
    name: 'target.stop',
    summary: 'End the target as SIGTERM does; answers when everything is closed',
    kind: 'serve',
    params: nothing,
    result: done,
    example: {},
    run: async ({ service }) => {
      await service.stop();
      return null;
    },
  }),
  method({
    name: 'controller.list',
    summary: 'Hosts that are attached, with their queues; nqn: to one subsystem alone',
    kind: 'look',
    params: someSubsystem,
    result: z.array(controllerView),
    example: {},
    run: ({ target }, { nqn }) =>
      target.controllers.filter(({ subsystemNqn }) => nqn === undefined || subsystemNqn === nqn),
  }),
  method({
    name: 'placement.list',
    summary: 'Queues and load of each reactor',
    kind: 'look',
    params: nothing,
    result: z.array(placementView),
    example: {},
    run: ({ target }) => target.placement,
  }),
  method({
    name: 'log.get',
    summary: 'The level of the log',
    kind: 'look',
    params: nothing,
    result: logLevel,
    example: {},
    run: ({ service }) => ({ level: service.logLevel }),
  }),
  method({
    name: 'log.set',
    summary: 'Set the level of the log, until the target ends',
    kind: 'change',
    params: logLevel,
    result: logLevel,
    example: { level: 'debug' },
    run: ({ service }, { level }) => {
      service.logLevel = level;
      return { level };
    },
  }),
];
