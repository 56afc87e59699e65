/**
 * Which hosts may connect to a subsystem: any, or those whose NQN is on the list. Compared byte by byte.
 */
export interface HostRules {
  readonly allowAnyHost: boolean;
  readonly hosts: readonly string[];
}

export class HostAccess {
  #anyHost: boolean;
  #hosts: ReadonlySet<string>;

  constructor(rules: HostRules) {
    this.#anyHost = rules.allowAnyHost;
    this.#hosts = new Set(rules.hosts);
  }

  get rules(): HostRules {
    return { allowAnyHost: this.#anyHost, hosts: [...this.#hosts] };
  }

  set(rules: HostRules): void {
    this.#anyHost = rules.allowAnyHost;
    this.#hosts = new Set(rules.hosts);
  }

  allows(hostNqn: string): boolean {
    return this.#anyHost || this.#hosts.has(hostNqn);
  }
}
