/**
 * An episode of a defined environment: turns, calls, refusals, utterances and timeouts.
 */

import { z } from "zod";
import { NlacError, throwIfAborted } from "../base/errors.ts";
import { maxDelayMs } from "../base/timer.ts";
import { inEnvironment } from "../contract/checks.ts";
import type { Action, Episode, Message, Observation } from "../contract/environment.ts";
import { type Tool, type ToolContext, ToolError, tool } from "./define-tool.ts";
import type { EnvironmentDefinition, MaybePromise } from "./definition.ts";
import { episodeOver } from "./errors.ts";

/** The tools of an episode by name, including `respond` if the agent speaks by a call. */
export function offered<Task, State>(
  definition: EnvironmentDefinition<Task, State>,
  tools: readonly Tool<State, Task>[],
): Map<string, Tool<State, Task>> {
  const { name, respond, timeout } = definition;
  if (!Array.isArray(tools) || !tools.every((each) => typeof each?.call === "function"))
    throw new NlacError("ERR_CONFIG", `${name}: tools must be a list of tools, each made by tool({ … }).`);
  const all =
    respond !== undefined && speaksByCall(definition) ? [...tools, respondTool(respond, timeout)] : tools;
  const byName = new Map(all.map((each) => [each.schema.name, each]));
  if (byName.size === all.length) return byName;
  const names = all.map(({ schema }) => schema.name).join(", ");
  throw new NlacError("ERR_CONFIG", `${name}: two tools have the same name: ${names}.`);
}

const respondName = "respond";

/** Whether the agent speaks by calling `respond`. */
function speaksByCall({ respond, actionFormat }: { respond?: unknown; actionFormat?: string }): boolean {
  return respond !== undefined && actionFormat !== "call" && actionFormat !== "text";
}

function respondTool<Task, State>(
  respond: (text: string, context: ToolContext<State, Task>) => MaybePromise<string>,
  timeout: number | undefined,
): Tool<State, Task> {
  return tool({
    name: respondName,
    description: "Say something to the person you are dealing with.",
    parameters: z.strictObject({ content: z.string().min(1) }),
    ...(timeout === undefined ? {} : { timeout }),
    handler: ({ content }, context: ToolContext<State, Task>) => respond(content, context),
  });
}

/** One episode of a defined environment. */
export class ToolEpisode<Task, State> implements Episode {
  observation: Observation = { messages: [] };
  readonly #definition: EnvironmentDefinition<Task, State>;
  readonly #task: Task;
  readonly state: State;
  readonly #limit: { maxTurns: number; turnLimitEnds: boolean };
  readonly #closing = new AbortController();
  readonly #signal: AbortSignal | undefined;
  #tools = new Map<string, Tool<State, Task>>();
  #turn = 0;
  #over = false;
  #closed: Promise<void> | undefined;

  constructor(
    definition: EnvironmentDefinition<Task, State>,
    task: Task,
    state: State,
    limit: { maxTurns: number; turnLimitEnds: boolean },
    signal: AbortSignal | undefined,
  ) {
    this.#definition = definition;
    this.#task = task;
    this.state = state;
    this.#limit = limit;
    this.#signal = signal;
    signal?.addEventListener("abort", this.#stop, { once: true });
  }

  readonly #stop = () => this.#closing.abort(this.#signal?.reason);

  /** Gets the agent's first observation. */
  async open(): Promise<void> {
    const { name, system, prompt, tools } = this.#definition;
    await inEnvironment(`${name}: an episode did not start`, () => {
      this.#tools = offered(
        this.#definition,
        typeof tools === "function" ? tools(this.state, this.#task) : (tools ?? []),
      );
      this.observation = {
        messages: [
          ...(system === undefined ? [] : [{ role: "system", content: system } as const]),
          { role: "user", content: prompt(this.#task, this.state) },
        ],
        ...(tools && { tools: [...this.#tools.values()].map(({ schema }) => schema) }),
      };
    });
  }

  async step(action: Action) {
    const { name } = this.#definition;
    if (this.#over) throw episodeOver(name);
    throwIfAborted(this.#signal);
    this.#turn++;
    try {
      const { message, info } = await (action.tool === undefined || this.#definition.tools === undefined
        ? this.#say(action.text)
        : this.#call(action.tool));
      const { maxTurns, turnLimitEnds } = this.#limit;
      const atLimit = this.#turn === maxTurns;
      const terminated = this.#over || (atLimit && turnLimitEnds);
      this.#over ||= atLimit;
      const reward = this.#over ? await this.#score() : 0;
      const truncated = this.#over && !terminated;
      // The score is no reward of a truncated turn: it would count besides the bootstrapped value.
      return {
        ...{ observation: [message], reward: truncated ? 0 : reward, terminated, truncated, info },
        ...(truncated ? { score: reward } : {}),
      };
    } catch (error) {
      this.#over = true;
      throw error;
    }
  }

  async score(): Promise<number> {
    if (this.#over) throw episodeOver(this.#definition.name);
    this.#over = true;
    return this.#score();
  }

  async #score(): Promise<number> {
    const { name, score } = this.#definition;
    const value = await inEnvironment(`${name}: the score failed`, () => score(this.state, this.#task));
    if (typeof value === "number" && value >= 0 && value <= 1) return value;
    throw new NlacError(
      "ERR_ENVIRONMENT",
      `${name}: score(state, task) must return a number from 0 to 1; it returned ${value}.`,
    );
  }

  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    this.#over = true;
    this.#signal?.removeEventListener("abort", this.#stop);
    this.#closing.abort();
    const { name, close } = this.#definition;
    await inEnvironment(`${name}: closing failed`, () => close?.(this.state, this.#task));
  }

  async #call({ name, arguments: args }: NonNullable<Action["tool"]>) {
    const refused = (reason: string) => ({
      message: { role: "tool", content: `Error: ${reason}` } satisfies Message,
      info: { tool: name, toolError: true },
    });
    const called = this.#tools.get(name);
    if (called === undefined) {
      const names = [...this.#tools.keys()].join(", ");
      return refused(`there is no tool ${JSON.stringify(name)}; there are ${names}`);
    }
    const problem = called.check(args);
    if (problem !== undefined) return refused(problem);
    const what = `the tool ${JSON.stringify(name)}`;
    const answered = await this.#within(what, called.timeout, async (context) => {
      try {
        return { answer: await called.call(structuredClone(args), context) };
      } catch (error) {
        if (error instanceof ToolError) return { refusal: error.message };
        throw error;
      }
    });
    if (answered.refusal !== undefined) return refused(answered.refusal);
    const spoken = name === respondName && speaksByCall(this.#definition);
    const content = this.#shown(what, answered.answer);
    return { message: { role: spoken ? "user" : "tool", content } satisfies Message, info: { tool: name } };
  }

  async #say(text: string) {
    const { respond, timeout = 60_000 } = this.#definition;
    const content =
      respond === undefined
        ? `Nobody listens here. Use the tools: ${[...this.#tools.keys()].join(", ")}.`
        : this.#shown(
            respondName,
            await this.#within(respondName, timeout, (context) => respond(text, context)),
          );
    return { message: { role: "user", content } satisfies Message, info: {} };
  }

  /** Returns what `work` resolves to before its timeout and before the episode is stopped. */
  async #within<T>(
    what: string,
    timeout: number,
    work: (context: ToolContext<State, Task>) => MaybePromise<T>,
  ): Promise<T> {
    const { name } = this.#definition;
    const own = new AbortController();
    const closing = this.#closing.signal;
    let timer: NodeJS.Timeout | undefined;
    let stop = () => {};
    const stopped = new Promise<never>((_, reject) => {
      const give = (error: NlacError) => {
        reject(error);
        own.abort(error);
      };
      stop = () =>
        give(new NlacError("ERR_ABORTED", "The operation was aborted.", { cause: closing.reason }));
      closing.addEventListener("abort", stop, { once: true });
      if (timeout > maxDelayMs) return;
      timer = setTimeout(
        () => give(new NlacError("ERR_ENVIRONMENT", `${name}: ${what} did not answer within ${timeout} ms.`)),
        timeout,
      );
    });
    const end = () => {
      this.#over = true;
    };
    const turn = this.#turn - 1;
    const context = { state: this.state, task: this.#task, turn, signal: own.signal, end };
    try {
      return await Promise.race([inEnvironment(`${name}: ${what} failed`, () => work(context)), stopped]);
    } finally {
      clearTimeout(timer);
      closing.removeEventListener("abort", stop);
    }
  }

  #shown(what: string, answer: unknown): string {
    if (answer === undefined) return "Done.";
    if (answer === "") return "(empty)";
    if (typeof answer === "string") return answer;
    let text: string | undefined;
    try {
      text = JSON.stringify(answer);
    } catch {
      // Reported below, like a value without a JSON representation.
    }
    if (text !== undefined) return text;
    const { name } = this.#definition;
    throw new NlacError("ERR_ENVIRONMENT", `${name}: the result of ${what} cannot be shown as JSON.`);
  }
}
