/**
 * tau-bench (Yao et al., 2024, arXiv:2406.12045): customer service with tools, a policy to follow and a simulated
 * customer. Databases, tools and rewards follow sierra-research/tau-bench at 59a200c6; the data is read, never shipped.
 *
 * The reward is 1 or 0, given when the customer says the stop word or the agent transfers to a
 * human: the database must then be as the task's own calls leave a fresh one, and what the task
 * names must have been said to the customer. An episode that takes all its turns is cut there, and
 * scores 0: the limit is the benchmark's, no customer knows of it.
 */

import { existsSync } from "node:fs";
import { isAbsolute, join } from "node:path";
import { z } from "zod";
import { NlacError, throwIfAborted } from "../../base/errors.ts";
import { inOption } from "../../base/validation.ts";
import type {
  Action,
  Environment,
  Episode,
  Message,
  ResetOptions,
  StepResult,
  ToolSchema,
} from "../../contract/environment.ts";
import { checkSplit, episodeOver, singleEpisode } from "../single-episode.ts";
import type { Database, DatabaseState } from "./database.ts";
import { type Domain, domainNames, openDomain, transferTool } from "./domain.ts";
import { openUser, type UserOption } from "./open-user.ts";
import { readTasks, type TauBenchTask } from "./tasks.ts";
import { str } from "./text.ts";
import { type Conversation, stopWord } from "./user.ts";
import { type Dict, parseJson } from "./values.ts";

const optionsSchema = z.strictObject({
  /** Default "retail". */
  domain: z.enum(domainNames).default("retail"),
  /** Directory that holds the domains' directories. Default `$NLAC_DATA/tau-bench`. */
  data: z.string().optional(),
  /** Who plays the customers; user.ts and docs/environments/tau-bench.md say more. Default "scripted". */
  user: z.custom<UserOption>().default("scripted"),
  /** Tasks of each split: a file, in the domain's directory or absolute. Default: its own `tasks_<split>.json`. */
  train: z.string().default("tasks_train.json"),
  test: z.string().default("tasks_test.json"),
  /** Turns an episode allows, calls included. Default 30, the benchmark's. */
  turns: z.int().min(1).default(30),
  /** How actions are written (contract/environment.ts). Default "tool". */
  actionFormat: z.enum(["tool", "call"]).default("tool"),
});

export type TauBenchOptions = z.input<typeof optionsSchema>;

/** In the format "tool", how the agent speaks; named as the benchmark has it. */
const respondTool: ToolSchema = {
  name: "respond",
  description: "Say something to the customer.",
  parameters: {
    type: "object",
    properties: { content: { type: "string", description: "What you say." } },
    required: ["content"],
  },
};

/** The environment of tau-bench. Throws ERR_CONFIG for options that do not validate. */
export function tauBench(options: TauBenchOptions = {}): Environment<TauBenchTask> {
  const parsed = optionsSchema.safeParse(options);
  if (!parsed.success) throw new NlacError("ERR_CONFIG", `tauBench: ${z.prettifyError(parsed.error)}`);
  const { domain: name, data, turns, actionFormat, ...files } = parsed.data;
  const user = inOption("tauBench.user", () => openUser(files.user));
  const domain = once(() => openDomain(name, data ?? defaultData()));
  const tasks = {
    train: once(() => loadTasks(domain(), files.train, "train")),
    test: once(() => loadTasks(domain(), files.test, "test")),
  };
  const goals = new WeakMap<TauBenchTask, DatabaseState>();
  const goalOf = (task: TauBenchTask): DatabaseState => {
    const goal = goals.get(task) ?? replay(domain().open(), task);
    goals.set(task, goal);
    return goal;
  };

  async function start(task: TauBenchTask, { seed, signal }: ResetOptions): Promise<Episode> {
    throwIfAborted(signal);
    const { policy, schemas, open } = domain();
    const conversation = await user.start(task, { seed, ...(signal && { signal }) });
    return new TauBenchEpisode({
      task,
      database: open(),
      goal: () => goalOf(task),
      conversation,
      policy,
      tools: actionFormat === "tool" ? [...schemas, respondTool] : [...schemas],
      turns,
      signal,
    });
  }

  const driven = singleEpisode("tauBench", start);
  return {
    name: "tauBench",
    actionFormat,
    maxTurns: turns,
    idle: {
      text: JSON.stringify({ name: transferTool, arguments: { summary: "" } }),
      tool: { name: transferTool, arguments: { summary: "" } },
    },
    async tasks(split) {
      checkSplit("tauBench", split);
      return [...tasks[split]()];
    },
    taskId: (task) => task.id,
    start,
    ...driven,
    async close() {
      await driven.close();
      await user.close?.();
    },
    ...(user.usage && { usage: () => user.usage!() }),
  };
}

/** `make`, called when its value is first asked for, and again only if it failed. */
function once<T>(make: () => T): () => T {
  let made: { value: T } | undefined;
  return () => {
    made ??= { value: make() };
    return made.value;
  };
}

/** Where the data lies if nobody says. Throws ERR_CONFIG where the environment variable is not set. */
export function defaultData(): string {
  const shared = process.env.NLAC_DATA;
  if (shared !== undefined && shared !== "") return join(shared, "tau-bench");
  throw new NlacError(
    "ERR_CONFIG",
    "tauBench: give data, the directory that `nlac data import tau-bench` made, or set NLAC_DATA to the one above it.",
  );
}

function loadTasks({ name, directory }: Domain, file: string, split: "train" | "test"): TauBenchTask[] {
  const path = isAbsolute(file) ? file : join(directory, file);
  if (!existsSync(path)) {
    throw new NlacError(
      "ERR_CONFIG",
      `tauBench: there is no ${path}. Name a file of ${name} tasks in the option "${split}".`,
    );
  }
  const tasks = readTasks(path, split);
  if (tasks.length === 0) throw new NlacError("ERR_CONFIG", `tauBench: ${path} holds no task.`);
  return tasks;
}

/** The state that the task's own calls leave. The benchmark leaves a transfer out; it changes nothing. */
function replay(database: Database, { actions }: TauBenchTask): DatabaseState {
  for (const { name, arguments: args } of actions) database.call(name, args);
  return database.state;
}

interface EpisodeParts {
  task: TauBenchTask;
  database: Database;
  /** What the database must end as. */
  goal: () => DatabaseState;
  conversation: Conversation;
  policy: string;
  tools: ToolSchema[];
  turns: number;
  signal: AbortSignal | undefined;
}

class TauBenchEpisode implements Episode {
  readonly observation: Episode["observation"];
  readonly #parts: EpisodeParts;
  /** What the agent said to the customer. */
  readonly #said: string[] = [];
  #turn = 0;
  #over = false;

  constructor(parts: EpisodeParts) {
    this.#parts = parts;
    this.observation = {
      messages: [
        { role: "system", content: parts.policy },
        { role: "user", content: parts.conversation.opening },
      ],
      tools: parts.tools,
    };
  }

  async step(action: Action): Promise<StepResult> {
    if (this.#over) throw episodeOver("tauBench");
    throwIfAborted(this.#parts.signal);
    this.#turn++;
    try {
      return await this.#act(action);
    } catch (error) {
      this.#over = true;
      throw error;
    }
  }

  async #act(action: Action): Promise<StepResult> {
    const { database, turns } = this.#parts;
    const { tool } = action;
    const words =
      tool === undefined ? action.text : tool.name === respondTool.name ? tool.arguments.content : undefined;
    let message: Message;
    let ends = false;
    let toolError = false;
    if (typeof words === "string") {
      this.#said.push(words);
      message = { role: "user", content: await this.#parts.conversation.respond(words) };
      ends = message.content.includes(stopWord);
    } else if (tool!.name === respondTool.name) {
      message = { role: "tool", content: 'Error: respond needs a text "content"' };
      toolError = true;
    } else {
      const { observation, failed } = database.call(tool!.name, argumentsOf(action));
      // None, which the benchmark's own episode cannot carry: it ends there with a fault. Here it
      // is told, and the episode goes on.
      message = { role: "tool", content: observation ?? str(null) };
      // Also where the transfer's own arguments were wrong.
      ends = tool!.name === transferTool;
      toolError = failed;
    }
    this.#over = ends || this.#turn === turns;
    const { state } = database;
    const info = {
      source: message.role === "user" ? "user" : tool!.name,
      // Worked out when they are read: a hash is over all of the database.
      get databaseSha256() {
        return state.sha256;
      },
      get databaseReferenceHash() {
        return state.referenceHash;
      },
      ...(toolError && { toolError }),
    };
    const verdict = ends ? this.#judge(state) : undefined;
    return {
      observation: [message],
      reward: verdict?.reward ?? 0,
      terminated: ends,
      truncated: this.#over && !ends,
      info: verdict === undefined ? info : Object.assign(info, verdict.info),
    };
  }

  #judge(state: DatabaseState): { reward: number; info: Record<string, unknown> } {
    const { task, goal } = this.#parts;
    const databaseCorrect = state.equals(goal());
    const said = this.#said.map((text) => text.toLowerCase().replaceAll(",", ""));
    const missingOutputs = task.outputs.filter(
      (output) => !said.some((text) => text.includes(output.toLowerCase())),
    );
    const reward = databaseCorrect && missingOutputs.length === 0 ? 1 : 0;
    return { reward, info: { databaseCorrect, missingOutputs } };
  }

  async close(): Promise<void> {
    this.#over = true;
  }
}

/** The call's arguments as they were written, where the text tells: to the reference hash 250.0 is not 250. */
function argumentsOf({ text, tool }: Action): Dict | Record<string, unknown> {
  try {
    const call = parseJson(text);
    const args = call instanceof Map && call.get("name") === tool!.name ? call.get("arguments") : undefined;
    if (args instanceof Map) return args;
  } catch {
    // The text is something else, a caption say.
  }
  return tool!.arguments;
}
