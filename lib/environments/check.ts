/**
 * Plays an environment without a model and reports violations of the contract
 * (contract/environment.ts). Used by `nlac env check` and for tests of your own environments.
 */

import { isDeepStrictEqual } from "node:util";
import { messageOf, NlacError } from "../base/errors.ts";
import { shown } from "../base/validation.ts";
import { descriptionProblems, tasksOf } from "../contract/checks.ts";
import {
  type Action,
  type Environment,
  type Episode,
  isOver,
  type Message,
  type Observation,
  type StepResult,
  type ToolSchema,
} from "../contract/environment.ts";
import { withTimeout } from "../contract/timeout.ts";
import { unreadableReason } from "../prompts/policy.ts";
import { compileArguments } from "./arguments.ts";
import { badCalls, goodCalls, probe, strangeCalls } from "./probe.ts";

/** Returns the agent's action, given the task's messages and the turns so far. */
export type ScriptedPolicy = (state: {
  observation: Observation;
  history: readonly { action: Action; result: StepResult }[];
}) => Action;

/** Options of `checkEnvironment`. */
export interface CheckOptions {
  /** Tasks to play per split. Default 3. */
  tasks?: number;
  /** Default 0. */
  seed?: number;
  /**
   * Timeout of the environment for starting and closing an episode, and for answering an action, in
   * milliseconds. A demonstration may take as long for the start and each turn. Default 30,000.
   */
  timeout?: number;
}

/**
 * Returns the violations of the contract, one line each; empty if there are none.
 * @param policy chooses the actions. Default: calls with arguments generated from the tools'
 *   schemas, and utterances
 */
export async function checkEnvironment<Task>(
  environment: Environment<Task>,
  policy?: ScriptedPolicy,
  options: CheckOptions = {},
): Promise<string[]> {
  const { tasks = 3, seed = 0, timeout = 30_000 } = options;
  const agent = policy ?? (({ observation, history }) => probe(observation, history.length, seed));
  const check = new Check(environment, agent, seed, timeout);
  await check.run(tasks);
  return [...check.problems];
}

class Check<Task> {
  readonly problems = new Set<string>();
  readonly #environment: Environment<Task>;
  readonly #agent: ScriptedPolicy;
  readonly #seed: number;
  readonly #timeout: number;

  constructor(environment: Environment<Task>, agent: ScriptedPolicy, seed: number, timeout: number) {
    this.#environment = environment;
    this.#agent = agent;
    this.#seed = seed;
    this.#timeout = timeout;
  }

  async run(most: number): Promise<void> {
    for (const problem of descriptionProblems(this.#environment)) this.#report(problem);
    const { maxTurns } = this.#environment;
    // An episode could be endless.
    if (!Number.isInteger(maxTurns) || maxTurns < 1) return;
    const chosen: { split: "train" | "test"; label: string; task: Task }[] = [];
    const ids: Record<string, Set<string>> = {};
    for (const split of ["train", "test"] as const) {
      await this.#trying(`${split}: the tasks`, async () => {
        const tasks = await this.#tasks(split);
        ids[split] = new Set(tasks.map((task) => this.#environment.taskId(task)));
        for (const task of tasks.slice(0, most))
          chosen.push({ split, label: `${split} ${this.#environment.taskId(task)}`, task });
      });
    }
    const shared = [...(ids.train ?? [])].filter((id) => ids.test?.has(id));
    if (shared.length > 0) this.#report(`in both splits: ${shared.slice(0, 3).join(", ")}`);

    const alone: (string | undefined)[] = [];
    for (const { label, task } of chosen) {
      const first = await this.#trying(label, () => this.#play(task, label, this.#agent));
      const second = await this.#trying(label, () => this.#play(task, label, this.#agent));
      if (first !== second) this.#report(`${label}: the same seed and actions give another episode`);
      alone.push(first);
    }
    const together = await Promise.all(
      chosen.map(({ label, task }) => this.#trying(label, () => this.#play(task, label, this.#agent))),
    );
    for (const [i, { split, label, task }] of chosen.entries()) {
      if (together[i] !== alone[i]) this.#report(`${label}: episodes that run at once disturb each other`);
      await this.#trying(label, () => this.#checkIndependence(task, label));
      if (split === "train")
        await this.#trying(`${label}, demonstrate`, () => this.#checkDemonstration(task, label));
    }

    const { idle } = this.#environment;
    for (const { label, task } of chosen.slice(0, 1)) {
      if (idle !== undefined)
        await this.#trying(`${label}, idle`, () => this.#play(task, `${label}, idle`, () => idle));
      await this.#trying(label, () => this.#checkTools(task, label));
      await this.#trying(label, () => this.#checkAbort(task, label));
    }
    await this.#trying("close", () => this.#withTimeout(this.#environment.close()));
    await this.#trying("close, again", () => this.#withTimeout(this.#environment.close()));
  }

  async #tasks(split: "train" | "test"): Promise<Task[]> {
    const { taskId } = this.#environment;
    const tasks = await tasksOf(this.#environment, split);
    const again = await tasksOf(this.#environment, split);
    if (tasks.length === 0) this.#report(`${split}: no tasks`);
    const ids = tasks.map((task) => taskId(task));
    if (new Set(ids).size !== ids.length) this.#report(`${split}: two tasks have the same id`);
    for (const id of ids as unknown[])
      if (typeof id !== "string")
        this.#report(`${split}: taskId must return a text; it returned ${shown(id)}`);
    if (ids.some((id) => id === "")) this.#report(`${split}: a task has an empty id`);
    if (again.map((task) => taskId(task)).join("\n") !== ids.join("\n"))
      this.#report(`${split}: tasks() gives another list the second time`);
    return tasks;
  }

  /** Plays and checks one episode; returns all of the environment's output as text. */
  async #play(task: Task, label: string, agent: ScriptedPolicy): Promise<string> {
    const { maxTurns, turnLimitEnds = false, rewardRange: [low, high] = [0, 1] } = this.#environment;
    const episode = await this.#start(task);
    const history: { action: Action; result: StepResult }[] = [];
    let reward = 0;
    try {
      this.#checkObservation(episode.observation, label);
      for (let turn = 0; ; turn++) {
        if (turn === maxTurns) {
          this.#report(`${label}: neither terminated nor truncated after ${maxTurns} turns`);
          break;
        }
        const action = agent({ observation: episode.observation, history });
        const result = await this.#step(episode, action, label);
        history.push({ action, result });
        reward += result.reward + (result.score ?? 0);
        if (!isOver(result)) continue;
        if (result.truncated && !result.terminated && turnLimitEnds && turn + 1 === maxTurns)
          this.#report(
            `${label}: truncated at the limit of its turns, which turnLimitEnds says is a rule of the task`,
          );
        if ((await this.#codeOf(episode.step(action))) !== "ERR_ENVIRONMENT")
          this.#report(`${label}: a step after the end is not refused with ERR_ENVIRONMENT`);
        break;
      }
      if (reward < low || reward > high)
        this.#report(`${label}: the episode's reward is ${reward}, outside of [${low}, ${high}]`);
      this.#checkSecret(episode, label);
    } finally {
      await this.#close(episode);
      await this.#close(episode);
    }
    return JSON.stringify([episode.observation, history.map(({ result }) => result)]);
  }

  #checkSecret(episode: Episode, label: string): void {
    const { secret, hidden } = episode.privileged?.() ?? {};
    if (secret !== undefined && hidden === undefined)
      this.#report(`${label}: privileged() has a secret but does not say which texts are hidden`);
    if (
      hidden?.some(
        (entry) => [entry].flat().length === 0 || [entry].flat().some((text) => text.trim() === ""),
      )
    )
      this.#report(`${label}: a hidden text of privileged() is empty`);
  }

  #start(task: Task): Promise<Episode> {
    return this.#withTimeout(this.#environment.start(task, { seed: this.#seed }));
  }

  async #close(episode: Episode): Promise<void> {
    try {
      await this.#withTimeout(episode.close());
    } catch (error) {
      this.#report(`closing an episode failed: ${messageOf(error)}`);
    }
  }

  async #step(episode: Episode, action: Action, label: string): Promise<StepResult> {
    const result = await this.#withTimeout(episode.step(action));
    const { observation, reward, terminated, truncated, score, info } = result;
    if (!Number.isFinite(reward)) this.#report(`${label}: reward ${reward}`);
    if (score !== undefined && !(Number.isFinite(score) && truncated && !terminated))
      this.#report(`${label}: a score of ${score}, which only a truncated episode may have`);
    for (const [name, value] of Object.entries({ terminated, truncated }))
      if (typeof value !== "boolean") this.#report(`${label}: ${name} is not a boolean`);
    if (typeof info !== "object" || info === null) this.#report(`${label}: info is not an object`);
    else if (!isJson(info)) this.#report(`${label}: info is not the same after it was written as JSON`);
    if (!isOver(result) && observation.length === 0)
      this.#report(`${label}: nothing to answer, and neither terminated nor truncated`);
    this.#checkMessages(observation, ["user", "tool"], label);
    return result;
  }

  #checkObservation({ messages, tools = [] }: Observation, label: string): void {
    if (messages.length === 0) this.#report(`${label}: the first observation has no messages`);
    if (messages.at(-1)?.role !== "user") this.#report(`${label}: the first turn is not the user's`);
    this.#checkMessages(messages, ["system", "user", "assistant", "tool"], label);
    if (tools.length === 0 && this.#environment.actionFormat === "call")
      this.#report(`${label}: calls are asked for, and there are no tools`);
    if (new Set(tools.map(({ name }) => name)).size !== tools.length)
      this.#report(`${label}: two tools have the same name`);
    for (const { name, description, parameters } of tools) {
      if (typeof description !== "string" || description === "")
        this.#report(`the tool ${name} has no description`);
      try {
        compileArguments(parameters, name);
      } catch (error) {
        this.#report((error as Error).message);
      }
    }
  }

  #checkMessages(messages: readonly Message[], roles: readonly string[], label: string): void {
    for (const { role, content } of messages) {
      if (!roles.includes(role)) this.#report(`${label}: a message of role ${role}`);
      // A tool's result may be empty.
      if (typeof content !== "string")
        this.#report(`${label}: the content of a message must be a text; it is ${shown(content)}`);
      else if (content === "" && role !== "tool") this.#report(`${label}: an empty message`);
    }
  }

  /** Steps two episodes of one task in turn; they must not influence each other. */
  async #checkIndependence(task: Task, label: string): Promise<void> {
    const [a, b] = [await this.#start(task), await this.#start(task)];
    try {
      const action = this.#agent({ observation: a.observation, history: [] });
      const first = await this.#withTimeout(a.step(action));
      const second = await this.#withTimeout(b.step(action));
      if (!isDeepStrictEqual(first, second)) this.#report(`${label}: two episodes disturb each other`);
    } finally {
      await Promise.all([this.#close(a), this.#close(b)]);
    }
  }

  /** Checked here because a warm-up requests demonstrations only after the model was loaded. */
  async #checkDemonstration(task: Task, label: string): Promise<void> {
    const shown = this.#environment.demonstrate?.(task, { seed: this.#seed });
    if (shown === undefined) return;
    // It may play an episode: its start and its turns.
    const { turns } = await this.#withTimeout(shown, 1 + this.#environment.maxTurns);
    if (turns.length === 0) this.#report(`${label}, demonstrate: no turns`);
    for (const { action, judged } of turns)
      for (const taught of [action, ...judged.flatMap(({ better }) => better ?? [])]) {
        const reason = unreadableReason(taught, this.#environment.actionFormat);
        if (reason === undefined) continue;
        const text = shortened(taught);
        this.#report(`${label}, demonstrate: an action that the policy could not take (${reason}): ${text}`);
      }
  }

  /** Makes valid and invalid calls, each in its own episode, and an utterance. */
  async #checkTools(task: Task, label: string): Promise<void> {
    const opening = await this.#start(task);
    await this.#close(opening);
    const tools: readonly ToolSchema[] = (opening.observation.tools ?? []).filter(isUsable);
    if (tools.length === 0) return;
    for (const action of goodCalls(tools, this.#seed)) {
      const what = `${label}: ${shortened(action)}`;
      const first = await this.#trying(what, () => this.#firstStep(task, action, what));
      const second = await this.#trying(what, () => this.#firstStep(task, action, what));
      if (!isDeepStrictEqual(first, second)) this.#report(`${what}: the same seed gives another answer`);
    }
    for (const { problem, action } of badCalls(tools, this.#seed)) {
      const what = `${label}: ${problem}, ${shortened(action)}`;
      const result = await this.#trying(what, () => this.#firstStep(task, action, what));
      if (result !== undefined && result.info.toolError !== true)
        this.#report(`${what}: info.toolError does not mark it`);
    }
    const others = [...tools.flatMap((tool) => strangeCalls(tool)), { text: "Hello." }];
    for (const action of others) {
      const what = `${label}: ${shortened(action)}`;
      await this.#trying(what, () => this.#firstStep(task, action, what));
    }
  }

  async #firstStep(task: Task, action: Action, label: string): Promise<StepResult> {
    const episode = await this.#start(task);
    try {
      return await this.#step(episode, action, label);
    } finally {
      await this.#close(episode);
    }
  }

  async #checkAbort(task: Task, label: string): Promise<void> {
    const seed = this.#seed;
    const start = this.#environment.start(task, { seed, signal: AbortSignal.abort() });
    const code = await this.#codeOf(start);
    if (code !== "ERR_ABORTED")
      this.#report(`start under an aborted signal: ${code ?? "started"} instead of ERR_ABORTED`);

    const controller = new AbortController();
    const episode = await this.#withTimeout(
      this.#environment.start(task, { seed, signal: controller.signal }),
    );
    try {
      const action = this.#agent({ observation: episode.observation, history: [] });
      controller.abort();
      const refused = await this.#codeOf(episode.step(action));
      if (refused !== undefined && refused !== "ERR_ABORTED")
        this.#report(`${label}: a step after the signal fired: ${refused} instead of ERR_ABORTED`);
    } finally {
      await this.#close(episode);
    }
  }

  #report(problem: string): void {
    this.problems.add(problem);
  }

  /** Runs `work` and returns its result; an exception is reported as a problem. */
  async #trying<T>(label: string, work: () => Promise<T>): Promise<T | undefined> {
    try {
      return await work();
    } catch (error) {
      const code = error instanceof NlacError ? `${error.code}: ` : "";
      this.#report(`${label}: failed with ${code}${messageOf(error)}`);
      return undefined;
    }
  }

  /**
   * The code of the NlacError that `work` rejects with; the message of another error; undefined
   * without an error.
   */
  async #codeOf(work: Promise<unknown>): Promise<string | undefined> {
    return this.#withTimeout(work).then(
      () => undefined,
      (error: unknown) => (error instanceof NlacError ? error.code : String(error)),
    );
  }

  /** @param answers answers of the environment that `work` may wait for */
  #withTimeout<T>(work: Promise<T>, answers = 1): Promise<T> {
    return withTimeout(() => work, { stepTimeout: answers * this.#timeout });
  }
}

/** Whether the tool's schema is valid; a problem with it has been reported already. */
function isUsable({ name, parameters }: ToolSchema): boolean {
  try {
    compileArguments(parameters, name);
    return true;
  } catch {
    return false;
  }
}

function isJson(value: object): boolean {
  try {
    return isDeepStrictEqual(JSON.parse(JSON.stringify(value)), value);
  } catch {
    return false;
  }
}

/** An action in one line of the report, without control characters that would affect a terminal. */
function shortened({ text }: Action): string {
  const plain = text.replaceAll(
    /[^ -~]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
  return plain.length > 100 ? `${plain.slice(0, 100)}…` : plain;
}
