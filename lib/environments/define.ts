/**
 * One's own environment from its tools: what an agent can do, what an episode starts from, and what it was worth at the
 * end. Everything else of the contract (turns, faults, refusals, aborts, many episodes at once) is done here.
 */

import { z } from "zod";
import { checkKeys } from "../checks.ts";
import { NlacError, throwIfAborted } from "../errors.ts";
import { type CheckArguments, compileArguments, place } from "./arguments.ts";
import type {
  Action,
  Demonstration,
  Environment,
  Episode,
  Message,
  Observation,
  ResetOptions,
  ToolSchema,
} from "./contract.ts";
import { driver, episodeOver } from "./driver.ts";

/** What a tool, or the person who is spoken to, knows of the episode. */
export interface ToolContext<State = unknown, Task = unknown> {
  /** What `start` gave, to be read and changed. */
  state: State;
  task: Task;
  /** Fires when the time is up, and when the episode is stopped or closed. */
  signal: AbortSignal;
  /** Ends the episode with this turn. */
  end(): void;
}

/** Thrown by a tool to refuse: the agent is told `message`, and the episode goes on. */
export class ToolError extends Error {}

/** A tool, made by `tool`. */
export interface Tool<State = unknown, Task = unknown> {
  readonly schema: ToolSchema;
  /** What is wrong with arguments that break the schema. */
  readonly check: CheckArguments;
  /** Milliseconds that a call may take. */
  readonly timeout: number;
  /** Of arguments that passed `check`. Throws ToolError for what the agent is to be told. */
  call(args: Record<string, unknown>, context: ToolContext<State, Task>): Promise<unknown>;
}

type ArgumentsOf<Parameters> = Parameters extends z.ZodType ? z.output<Parameters> : Record<string, unknown>;

export interface ToolDefinition<Parameters, State, Task> {
  /** Letters, digits and _ . / -; at most 128. */
  name: string;
  /** For the agent: what the tool does, and when to use it. */
  description: string;
  /** Of the arguments: a zod object, which types the handler's, or JSON Schema. */
  parameters: Parameters;
  /** Milliseconds that a call may take; one that takes longer is a fault of the environment. Default 60,000. */
  timeout?: number;
  /**
   * What the agent is answered: text, or a value that is shown as JSON. Throws ToolError to refuse; whatever else it throws
   * is a fault of the environment, which ends the episode.
   */
  handler(args: ArgumentsOf<Parameters>, context: ToolContext<State, Task>): unknown;
}

/**
 * A function that the agent may call.
 *
 * @throws NlacError ERR_VALUE for a name that cannot be used, or parameters that are no schema of an object
 */
export function tool<Parameters extends z.ZodType | Record<string, unknown>, State = unknown, Task = unknown>(
  definition: ToolDefinition<Parameters, State, Task>,
): Tool<State, Task> {
  checkKeys(definition, "A tool", ["name", "description", "parameters", "timeout", "handler"], "ERR_VALUE");
  const { name, description, parameters: given, timeout = 60_000, handler } = definition;
  if (!/^[\w./-]{1,128}$/.test(name))
    throw new NlacError(
      "ERR_VALUE",
      `A tool cannot be called ${JSON.stringify(name)}: use letters, digits and _ . / -`,
    );
  const schema = isZod(given) ? given : undefined;
  const full = schema === undefined ? (given as Record<string, unknown>) : jsonSchemaOf(schema, name);
  const { $schema: _, ...parameters } = full;
  return {
    schema: { name, description, parameters },
    check: compileArguments(full, name),
    timeout,
    async call(args, context) {
      const read = schema === undefined ? args : await readArguments(schema, args);
      return handler(read as ArgumentsOf<Parameters>, context);
    },
  };
}

/** Of any copy of zod 4, the caller's own perhaps. */
function isZod(parameters: object): parameters is z.ZodType {
  return "_zod" in parameters;
}

function jsonSchemaOf(schema: z.ZodType, name: string): Record<string, unknown> {
  try {
    return z.toJSONSchema(schema, { io: "input" });
  } catch (error) {
    throw new NlacError(
      "ERR_VALUE",
      `The parameters of ${JSON.stringify(name)} cannot be written as JSON Schema: ${(error as Error).message}`,
      { cause: error },
    );
  }
}

/** What JSON Schema cannot say (a refinement, a transformation, a default) is zod's to do. */
async function readArguments(schema: z.ZodType, args: Record<string, unknown>): Promise<unknown> {
  const read = await schema.safeParseAsync(args);
  if (read.success) return read.data;
  throw new ToolError(read.error.issues.map(({ path, message }) => `${place(path)}: ${message}`).join("; "));
}

type Made<T> = T | Promise<T>;

export interface EnvironmentDefinition<Task, State> {
  name: string;
  /** What episodes start from, as lists or as functions that are asked once. */
  tasks: Record<"train" | "test", readonly Task[] | (() => Made<readonly Task[]>)>;
  /** A short name of a task, for logs and keys. Default: the task itself where it is a text, else its `id`. */
  taskId?(task: Task): string;
  /** Opens an episode: what it changes as it goes on. Every random choice is a function of `seed`. */
  start(task: Task, options: ResetOptions): Made<State>;
  /** What the agent is and what rules it follows. */
  system?: string;
  /** What an episode begins with: the first words of the person who is served, or the job to do. */
  prompt(task: Task, state: State): string;
  /** What the agent can do: a list, or one made for every episode from its state. */
  tools: readonly Tool<State, Task>[] | ((state: State, task: Task) => readonly Tool<State, Task>[]);
  /**
   * The person to whom the agent speaks: what they answer. They may end the episode. Without one, an agent that speaks is
   * told to use the tools.
   */
  respond?(text: string, context: ToolContext<State, Task>): Made<string>;
  /** What the episode was worth, 0 to 1; asked once, at its end. */
  score(state: State, task: Task): Made<number>;
  /** Turns after which an episode ends. Default 30. */
  maxTurns?: number;
  /**
   * How calls are written. "call": in the form of the model's own chat template, which must know one; "tool": as JSON after
   * a thought, for any model; to speak is then a tool, `respond`. Default "tool".
   */
  actionFormat?: "tool" | "call";
  /** Milliseconds that `respond` may take. Default 60,000. */
  timeout?: number;
  /** Called once with the state of every episode that started. */
  close?(state: State, task: Task): Made<void>;
  /** Called when the environment is closed, for what episodes share, a server say; a later episode may need it again. */
  dispose?(): Made<void>;
  /** As in `Environment`. */
  idle?: Action;
  /**
   * How a good agent plays the episode, for a warm-up: it is played, and every action is shown as one that is best. A
   * model that follows instructions needs none.
   */
  demonstrate?(task: Task, state: State): Made<DemonstratedTurn[]>;
}

/** A turn of a good agent. */
export interface DemonstratedTurn {
  /** With a thought. `callAction` makes calls. */
  action: Action;
  /** What follows up to the end of the task, in a sentence or two, as one could expect it before seeing the answer. */
  future: string;
}

const definitionKeys = [
  "name",
  "tasks",
  "taskId",
  "start",
  "system",
  "prompt",
  "tools",
  "respond",
  "score",
  "maxTurns",
  "actionFormat",
  "timeout",
  "close",
  "dispose",
  "idle",
  "demonstrate",
] as const satisfies readonly (keyof EnvironmentDefinition<unknown, unknown>)[];

function ownName(task: unknown, name: string): string {
  const id = typeof task === "string" ? task : (task as { id?: unknown } | null)?.id;
  if (typeof id === "string") return id;
  throw new NlacError(
    "ERR_CONFIG",
    `${name}: a task is no text and has no text "id": give it a name by taskId.`,
  );
}

/**
 * An environment of tools.
 *
 * @throws NlacError ERR_CONFIG for a definition with unknown or contradictory parts
 */
export function defineEnvironment<Task, State>(
  definition: EnvironmentDefinition<Task, State>,
): Environment<Task> {
  checkKeys(definition, "defineEnvironment", definitionKeys, "ERR_CONFIG");
  for (const part of ["name", "tasks", "start", "prompt", "tools", "score"] as const)
    if (definition[part] === undefined)
      throw new NlacError("ERR_CONFIG", `defineEnvironment: ${part} is missing.`);
  const { name, maxTurns = 30, actionFormat = "tool" } = definition;
  if (Array.isArray(definition.tools)) offered(definition, definition.tools);
  const lists = new Map<string, Promise<readonly Task[]>>();

  async function start(task: Task, options: ResetOptions): Promise<ToolEpisode<Task, State>> {
    throwIfAborted(options.signal);
    const state = await owning(`${name}: an episode did not start`, () => definition.start(task, options));
    const episode = new ToolEpisode(definition, task, state, maxTurns, options.signal);
    try {
      throwIfAborted(options.signal);
      await episode.open();
      return episode;
    } catch (error) {
      await episode.close();
      throw error;
    }
  }

  async function demonstrate(task: Task, options: ResetOptions): Promise<Demonstration> {
    const episode = await start(task, options);
    try {
      const shown = await definition.demonstrate!(task, episode.state);
      const turns: Demonstration["turns"] = [];
      for (const [i, { action, future }] of shown.entries()) {
        const { observation, reward, done } = await episode.step(action);
        const outcome = { observation, reward, done, future: shown[i + 1]?.future ?? "", joined: future };
        turns.push({ action, judged: [{ action, future, better: action, outcome }], observation });
      }
      return { observation: episode.observation, turns };
    } finally {
      await episode.close();
    }
  }

  const driving = driver(name, start);
  return {
    name,
    actionFormat,
    maxTurns,
    async tasks(split) {
      const given = definition.tasks[split];
      let list = lists.get(split);
      if (list === undefined) {
        list = owning(`${name}: the ${split} tasks cannot be had`, () =>
          typeof given === "function" ? given() : given,
        );
        lists.set(split, list);
        list.catch(() => lists.delete(split));
      }
      return [...(await list)];
    },
    taskId: (task) => definition.taskId?.(task) ?? ownName(task, name),
    start,
    ...driving,
    async close() {
      await driving.close();
      await owning(`${name}: closing failed`, () => definition.dispose?.());
    },
    ...(definition.idle && { idle: definition.idle }),
    ...(definition.demonstrate && { demonstrate }),
  };
}

/** The tools of an episode by their names, `respond` among them where a person is spoken to by a call. */
function offered<Task, State>(
  definition: EnvironmentDefinition<Task, State>,
  tools: readonly Tool<State, Task>[],
): Map<string, Tool<State, Task>> {
  const { name, respond, timeout } = definition;
  const all =
    respond !== undefined && speaksByCall(definition) ? [...tools, respondTool(respond, timeout)] : tools;
  const byName = new Map(all.map((each) => [each.schema.name, each]));
  if (byName.size === all.length) return byName;
  const names = all.map(({ schema }) => schema.name).join(", ");
  throw new NlacError("ERR_CONFIG", `${name}: two tools have the same name: ${names}.`);
}

const respondName = "respond";
/** In messages. */
const person = "the person who is spoken to";

/** Whether the agent speaks by calling `respond`. */
function speaksByCall({ respond, actionFormat }: { respond?: unknown; actionFormat?: string }): boolean {
  return respond !== undefined && actionFormat !== "call";
}

function respondTool<Task, State>(
  respond: (text: string, context: ToolContext<State, Task>) => Made<string>,
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
class ToolEpisode<Task, State> implements Episode {
  observation: Observation = { messages: [] };
  readonly #definition: EnvironmentDefinition<Task, State>;
  readonly #task: Task;
  readonly state: State;
  readonly #turns: number;
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
    turns: number,
    signal: AbortSignal | undefined,
  ) {
    this.#definition = definition;
    this.#task = task;
    this.state = state;
    this.#turns = turns;
    this.#signal = signal;
    signal?.addEventListener("abort", this.#stop, { once: true });
  }

  readonly #stop = () => this.#closing.abort(this.#signal?.reason);

  /** Asks for what the agent sees first. */
  async open(): Promise<void> {
    const { name, system, prompt, tools } = this.#definition;
    await owning(`${name}: an episode did not start`, () => {
      this.#tools = offered(
        this.#definition,
        typeof tools === "function" ? tools(this.state, this.#task) : tools,
      );
      this.observation = {
        messages: [
          ...(system === undefined ? [] : [{ role: "system", content: system } as const]),
          { role: "user", content: prompt(this.#task, this.state) },
        ],
        tools: [...this.#tools.values()].map(({ schema }) => schema),
      };
    });
  }

  async step(action: Action) {
    const { name, score } = this.#definition;
    if (this.#over) throw episodeOver(name);
    throwIfAborted(this.#signal);
    this.#turn++;
    try {
      const { message, info } = await (action.tool === undefined
        ? this.#say(action.text)
        : this.#call(action.tool));
      this.#over ||= this.#turn === this.#turns;
      let reward = 0;
      if (this.#over) {
        reward = await owning(`${name}: the score failed`, () => score(this.state, this.#task));
        if (!(reward >= 0 && reward <= 1))
          throw new NlacError("ERR_ENVIRONMENT", `${name}: the score must be from 0 to 1; it is ${reward}.`);
      }
      return { observation: [message], reward, done: this.#over, info };
    } catch (error) {
      this.#over = true;
      throw error;
    }
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
    await owning(`${name}: closing failed`, () => close?.(this.state, this.#task));
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
        : this.#shown(person, await this.#within(person, timeout, (context) => respond(text, context)));
    return { message: { role: "user", content } satisfies Message, info: {} };
  }

  /** What `work` gives before its time is up and before the episode is stopped. */
  async #within<T>(
    what: string,
    timeout: number,
    work: (context: ToolContext<State, Task>) => Made<T>,
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
      timer = setTimeout(
        () => give(new NlacError("ERR_ENVIRONMENT", `${name}: ${what} did not answer within ${timeout} ms.`)),
        timeout,
      );
    });
    const end = () => {
      this.#over = true;
    };
    const context = { state: this.state, task: this.#task, signal: own.signal, end };
    try {
      return await Promise.race([owning(`${name}: ${what} failed`, () => work(context)), stopped]);
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
      // Reported below, like what has no JSON at all.
    }
    if (text !== undefined) return text;
    const { name } = this.#definition;
    throw new NlacError("ERR_ENVIRONMENT", `${name}: what ${what} gave cannot be shown as JSON.`);
  }
}

/** What `work` gives; what it throws becomes the environment's own fault, unless it says what it is. */
async function owning<T>(what: string, work: () => Made<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof NlacError) throw error;
    const reason = error instanceof Error ? error.message : String(error);
    throw new NlacError("ERR_ENVIRONMENT", `${what}: ${reason}`, { cause: error });
  }
}
