/** Stored versions that clients request by name. Each is a second model in memory. */

import type { Learner } from "../learner/learner.ts";
import type { Admission } from "../serve/conversation-cache.ts";
import { asRequestError, failureOf, RequestError } from "../serve/request-error.ts";

interface Pinned {
  learner: Promise<Learner>;
  /** Requests that use it. */
  users: number;
}

export class PinnedVersions {
  readonly #load: (name: string) => Promise<Learner>;
  readonly #isKept: (name: string) => boolean;
  readonly #most: number;
  /** By name, in the order of their last use. */
  readonly #loaded = new Map<string, Pinned>();

  /**
   * @param load opens a version, or throws
   * @param isKept whether a version exists
   * @param most versions in memory at a time
   */
  constructor(load: (name: string) => Promise<Learner>, isKept: (name: string) => boolean, most: number) {
    this.#load = load;
    this.#isKept = isKept;
    this.#most = most;
  }

  /**
   * Admits a request to a version. Throws a RequestError of status 404 for one that is not kept;
   * 503 if requests use all versions that may be in memory, or there is no memory for it; 500 if it
   * cannot be loaded.
   */
  async admit(name: string): Promise<Admission> {
    const pinned = this.#loaded.get(name) ?? this.#open(name);
    this.#loaded.delete(name);
    this.#loaded.set(name, pinned);
    pinned.users++;
    try {
      const learner = await pinned.learner;
      let inside = true;
      return {
        version: name,
        pinned: true,
        generate: (...call) => learner.generate(...call),
        leave: () => {
          if (inside) pinned.users--;
          inside = false;
        },
      };
    } catch (error) {
      if (this.#loaded.get(name) === pinned) this.#loaded.delete(name);
      throw this.#asAnswer(error, name);
    }
  }

  /** Why a version could not be loaded: it may have been removed meanwhile. */
  #asAnswer(error: unknown, name: string): RequestError {
    try {
      if (!this.#isKept(name))
        return new RequestError(404, `The version ${name} is not kept.`, "model_not_found", "model");
    } catch {} // the versions cannot be read, nor can this one
    const answer = asRequestError(error);
    // Never a status of 4xx: the request is not at fault.
    const isBusy = answer.status === 503;
    const { message, code } = isBusy ? answer : failureOf(error);
    const what = `The version ${name} cannot be loaded. ${message}`;
    return new RequestError(isBusy ? 503 : 500, what, code, null, { cause: error });
  }

  async dispose(): Promise<void> {
    const all = [...this.#loaded.values()];
    this.#loaded.clear();
    for (const { learner } of all) await learner.then((loaded) => loaded.dispose()).catch(() => undefined);
  }

  /** Loads a version, in place of an unused one if there is no room. */
  #open(name: string): Pinned {
    let freed: Promise<void> = Promise.resolve();
    if (this.#loaded.size >= this.#most) {
      const unused = [...this.#loaded].find(([, { users }]) => users === 0);
      if (unused === undefined)
        throw new RequestError(
          503,
          `Requests use all of the ${this.#most} versions that may be pinned at a time; come back later.`,
          "version_busy",
        );
      const [old, { learner }] = unused;
      this.#loaded.delete(old);
      freed = learner.then((loaded) => loaded.dispose()).catch(() => undefined);
    }
    return { learner: freed.then(() => this.#load(name)), users: 0 };
  }
}
