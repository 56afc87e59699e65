/**
 * The process around a target that serves in the foreground: its log level, its configuration file, its end, and the control socket
 * through which all of these are reached.
 */
import { resolve } from 'node:path';
import type Logger from 'bunyan';
import { NvmeofError, messageOf } from '../../native/common/errors.ts';
import { ControlServer, Gate, applySteps, difference } from '../../target/index.ts';
import type { LogLevel, Service, Target, TargetConfig } from '../../target/index.ts';
import { defaultSocket, makeSocketFolder } from './control/default-socket.ts';
import { LOG_LEVELS } from './logging.ts';
import type { ServiceManager } from './service-manager.ts';
import { version } from './version.ts';

export interface TargetServiceOptions {
  readonly target: Target;
  readonly log: Logger;
  readonly manager: ServiceManager;
  readonly level: LogLevel;
  /** The file, and how it is read with what the command line puts on top. Absent: started without one. */
  readonly file?: { readonly path: string; readonly load: () => Promise<TargetConfig> };
}

export class TargetService implements Service {
  readonly version = version();
  readonly configFile: string | undefined;
  /** Resolves when somebody asks for the end. */
  readonly stopAsked: Promise<void>;
  readonly #options: TargetServiceOptions;
  readonly #gate = new Gate();
  readonly #stopped: Promise<void>;
  #askStop = (): void => undefined;
  #tellStopped = (): void => undefined;
  #level: LogLevel;

  constructor(options: TargetServiceOptions) {
    this.#options = options;
    this.#level = options.level;
    this.configFile = options.file === undefined ? undefined : resolve(options.file.path);
    this.stopAsked = new Promise((done) => {
      this.#askStop = done;
    });
    this.#stopped = new Promise((done) => {
      this.#tellStopped = done;
    });
  }

  get logLevel(): LogLevel {
    return this.#level;
  }

  set logLevel(level: LogLevel) {
    if (!LOG_LEVELS.includes(level)) return;
    this.#level = level;
    this.#options.log.level(level);
  }

  /** What systemctl status shows. */
  get status(): string {
    const { ports, subsystems } = this.#options.target;
    return `serving, ports: ${ports.length}, subsystems: ${subsystems.length}`;
  }

  stop(): Promise<void> {
    this.#askStop();
    return this.#stopped;
  }

  /** The target has closed. */
  stopped(): void {
    this.#tellStopped();
  }

  async reload(): Promise<readonly string[]> {
    const { file, target, log } = this.#options;
    if (file === undefined) {
      throw new NvmeofError(
        'CONFIG_NO_FILE',
        'the target was started without a configuration file; start it with --config FILE',
      );
    }
    const wanted = await file.load();
    const changes = await applySteps(target, difference(target.config, wanted));
    log.info({ file: this.configFile, changes }, 'configuration read again');
    return changes;
  }

  /** What SIGHUP does: no change from the control socket runs beside it, and an error leaves everything as it was. */
  async reloadBySignal(): Promise<void> {
    const { log, manager } = this.#options;
    manager.reloading();
    try {
      await this.#gate.whole(() => this.reload());
      manager.ready(this.status);
    } catch (error) {
      log.error({ file: this.configFile, error: messageOf(error) }, 'reload refused');
      manager.ready(`${this.status}; reload refused: ${messageOf(error)}`);
    }
  }

  /**
   * Opens the control socket: at a path, nowhere (false), or in its default place, which a target does without when another target has
   * it or it cannot be written.
   */
  async openControl(wanted: string | false | undefined): Promise<ControlServer | undefined> {
    if (wanted === false) return undefined;
    if (wanted !== undefined) return this.#listen(resolve(wanted));
    const path = defaultSocket();
    if (path === undefined) return undefined;
    try {
      makeSocketFolder(path);
      return await this.#listen(path);
    } catch (error) {
      this.#options.log.warn({ error: messageOf(error) }, 'no control socket');
      return undefined;
    }
  }

  #listen(path: string): Promise<ControlServer> {
    const { target, log } = this.#options;
    return ControlServer.listen({ path, target, service: this, log, gate: this.#gate });
  }
}
