/**
 * tau-bench (Yao et al., 2024, arXiv:2406.12045): customer service with tools, a policy to follow
 * and a simulated customer. Databases, tools and rewards follow sierra-research/tau-bench at
 * 59a200c6. The data is read from disk and not part of the package.
 *
 * The reward is 1 or 0, given when the customer says the stop word or the agent transfers to a
 * human. For a 1, the database must equal a fresh one after the task's own calls, and the outputs
 * listed in the task must have been said to the customer. An episode that uses all its turns is
 * truncated and scores 0: the limit is the benchmark's, and the customer does not know it.
 */

import { existsSync } from "node:fs";
import { isAbsolute, join } from "node:path";
import { z } from "zod";
import { NlacError, NotHere, throwIfAborted } from "../../base/errors.ts";
import { getOrAdd } from "../../base/get-or-add.ts";
import { checkConfig, inOption } from "../../base/validation.ts";
import type {
  Action,
  Environment,
  Episode,
  Message,
  StartOptions,
  StepResult,
  ToolSchema,
} from "../../contract/environment.ts";
import { callAction } from "../../prompts/calls.ts";
import { checkSplit, episodeOver } from "../errors.ts";
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
  /** Directory that contains the domains' directories. Default `$NLAC_DATA/tau-bench`. */
  data: z.string().optional(),
  /**
   * The customers' player; see user.ts and docs/environments/tau-bench-users.md. Default
   * "scripted".
   */
  user: z.custom<UserOption>().default("scripted"),
  /**
   * Tasks of each split: a file, in the domain's directory or absolute. Default: its own
   * `tasks_<split>.json`.
   */
  train: z.string().default("tasks_train.json"),
  test: z.string().default("tasks_test.json"),
  /** Turns per episode, including calls. Default 30, the benchmark's. */
  turns: z.int().min(1).default(30),
  /** How actions are written (contract/environment.ts). Default "tool". */
  actionFormat: z.enum(["tool", "call"]).default("tool"),
});

/** Options of `environments.tauBench`. */
export type TauBenchOptions = z.input<typeof optionsSchema>;

/** The agent's way to speak in the format "tool"; named as in the benchmark. */
const respondTool: ToolSchema = {
  name: "respond",
  description: "Say something to the customer.",
  parameters: {
    type: "object",
    properties: { content: { type: "string", description: "What you say." } },
    required: ["content"],
  },
};

/** The environment of tau-bench. Throws ERR_CONFIG for invalid options. */
export function tauBench(options: TauBenchOptions = {}): Environment<TauBenchTask> {
  const {
    domain: name,
    data,
    turns,
    actionFormat,
    ...files
  } = inOption("tauBench", () => checkConfig(optionsSchema, options));
  const user = inOption("tauBench.user", () => openUser(files.user));
  const domain = once(() => openDomain(name, data ?? defaultData()));
  const tasks = {
    train: once(() => loadTasks(domain(), files.train, "train")),
    test: once(() => loadTasks(domain(), files.test, "test")),
  };
  const goals = new WeakMap<TauBenchTask, DatabaseState>();
  const goalOf = (task: TauBenchTask): DatabaseState =>
    getOrAdd(goals, task, () => replay(domain().open(), task));

  async function start(task: TauBenchTask, { seed, signal }: StartOptions): Promise<Episode> {
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

  return {
    name: "tauBench",
    actionFormat,
    maxTurns: turns,
    idle: callAction(transferTool, { summary: "" }),
    async tasks(split) {
      checkSplit("tauBench", split);
      return [...tasks[split]()];
    },
    taskId: (task) => task.id,
    start,
    async close() {
      await user.close?.();
    },
    ...(user.usage && { usage: () => user.usage!() }),
  };
}

/**
 * Returns a function that calls `make` on first use and caches its value; after an error the next
 * use calls it again.
 */
function once<T>(make: () => T): () => T {
  let made: { value: T } | undefined;
  return () => {
    made ??= { value: make() };
    return made.value;
  };
}

/** The default data directory. Throws ERR_CONFIG if the environment variable is not set. */
export function defaultData(): string {
  const shared = process.env.NLAC_DATA;
  if (shared !== undefined && shared !== "") return join(shared, "tau-bench");
  throw new NotHere(
    "tauBench: set data to the directory made by `nlac data import tau-bench`, or set NLAC_DATA to its parent.",
  );
}

function loadTasks({ name, directory }: Domain, file: string, split: "train" | "test"): TauBenchTask[] {
  const path = isAbsolute(file) ? file : join(directory, file);
  if (!existsSync(path)) {
    throw new NotHere(`tauBench: there is no ${path}. Set the option "${split}" to a file of ${name} tasks.`);
  }
  const tasks = readTasks(path, split);
  if (tasks.length === 0) throw new NlacError("ERR_CONFIG", `tauBench: ${path} holds no task.`);
  return tasks;
}

/** The state after the task's own calls. The benchmark skips a transfer, which changes nothing. */
function replay(database: Database, { actions }: TauBenchTask): DatabaseState {
  for (const { name, arguments: args } of actions) database.call(name, args);
  return database.state;
}

interface EpisodeParts {
  task: TauBenchTask;
  database: Database;
  /** The required final state of the database. */
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
      // The benchmark's own episode fails on Python's None as an observation. Here the agent sees
      // "None", and the episode goes on.
      message = { role: "tool", content: observation ?? str(null) };
      // Even if the transfer's own arguments were wrong.
      ends = tool!.name === transferTool;
      toolError = failed;
    }
    this.#over = ends || this.#turn === turns;
    const { state } = database;
    const info = {
      source: message.role === "user" ? "user" : tool!.name,
      // Computed on demand: a hash covers the whole database.
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

/**
 * The call's arguments as generated, if the text contains them: the reference hash distinguishes
 * 250.0 from 250.
 */
function argumentsOf({ text, tool }: Action): Dict | Record<string, unknown> {
  try {
    const call = parseJson(text);
    const args = call instanceof Map && call.get("name") === tool!.name ? call.get("arguments") : undefined;
    if (args instanceof Map) return args;
  } catch {
    // The text is not the call, for example a caption.
  }
  return tool!.arguments;
}
