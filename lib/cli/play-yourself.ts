/** Lets a person play an environment: shows what an agent would observe, and reads actions. */

import { startEpisode, takeStep } from "../contract/checks.ts";
import {
  type Action,
  type Environment,
  isOver,
  type Message,
  type Observation,
  type ToolSchema,
} from "../contract/environment.ts";
import { withTimeout } from "../contract/timeout.ts";
import { formatFigure } from "../display/progress.ts";
import { succeeded } from "../episodes/trajectory.ts";
import { costOfLeaving } from "../playing/collect.ts";
import { checkedScore, checkedStep } from "../playing/environment-answers.ts";
import { parseCall } from "../prompts/calls.ts";
import type { Parsed } from "../prompts/parsing.ts";
import { parseAction } from "../prompts/policy.ts";
import type { Person } from "./person.ts";
import { fitted } from "./wrap.ts";

/**
 * Plays one episode until it is over or the person leaves.
 * @throws NlacError ERR_ABORTED at Ctrl-C; what the environment throws
 */
export async function playYourself(
  environment: Environment,
  task: unknown,
  { seed, person }: { seed: number; person: Person },
): Promise<void> {
  const { signal } = person;
  const episode = await withTimeout(() => startEpisode(environment, task, { seed, signal }), { signal });
  try {
    const { observation } = episode;
    for (const message of observation.messages) show(`${messageText(message)}\n`);
    const tools = observation.tools ?? [];
    if (tools.length > 0) show(`[tools]\n${tools.map(({ name }) => name).join(", ")}\n`);
    show(`${turnsText(environment)}; ? for help, Ctrl-D to leave.\n`);
    let reward = 0;
    for (let turn = 1; turn <= environment.maxTurns; turn++) {
      const action = await askAction(environment, observation, turn, person);
      if (action === undefined) {
        if (!signal.aborted) show(`Left at turn ${turn}. The task was ${environment.taskId(task)}.`);
        return;
      }
      const result = checkedStep(await withTimeout(() => takeStep(environment, episode, action), { signal }));
      reward += result.reward + (result.score ?? 0);
      for (const message of result.observation) show(`\n${messageText(message)}`);
      const last = isOver(result) || turn === environment.maxTurns;
      if (result.info.toolError === true) show("(the call failed)");
      if (result.reward !== 0 && !last) show(`(reward: ${formatFigure(result.reward)})`);
      show("");
      if (!last) continue;
      if (!isOver(result)) {
        reward += await withTimeout(() => checkedScore(episode), { signal });
        reward += costOfLeaving(environment, reward);
      }
      const ending = succeeded({ turns: [result], reward }) ? "a success" : "no success";
      show(`Reward: ${formatFigure(reward)}, ${ending}.`);
      show(`The task was ${environment.taskId(task)}.`);
      return;
    }
  } finally {
    await episode.close();
  }
}

function messageText({ role, content }: Message): string {
  return `[${role}]\n${content}`;
}

/** Prints `text` wrapped to the terminal's width. */
function show(text: string): void {
  console.log(fitted(text));
}

function turnsText({ maxTurns }: Environment): string {
  return maxTurns === 1 ? "There is one turn" : `There are ${maxTurns} turns`;
}

/**
 * The person's next action; undefined when they leave. After an invalid line the person is prompted
 * again.
 */
async function askAction(
  environment: Environment,
  observation: Observation,
  turn: number,
  person: Person,
): Promise<Action | undefined> {
  for (;;) {
    const line = await person.ask(`${turn}> `);
    if (line === undefined) return undefined;
    const text = line.trim();
    if (text === "") continue;
    if (text === "?") {
      show(help(environment, observation.tools ?? []));
      continue;
    }
    const read = readAction(text, environment.actionFormat, observation.tools ?? []);
    if (read.ok) return read.action;
    show(`Invalid action: ${read.reason}. Type ? for help.`);
  }
}

/** Parses a line as an action. With tools, `name {"argument": …}` is a call. */
function readAction(
  line: string,
  format: Environment["actionFormat"],
  tools: readonly ToolSchema[],
): Parsed<{ action: Action }> {
  if (format === "solution") return parseAction(line, format);
  if (format === "text") return { ok: true, action: { text: line } };
  const [, name, given] = /^([\w./-]+)\s*(\{.*\})?$/s.exec(line) ?? [];
  const named = name !== undefined && (given !== undefined || tools.some((tool) => tool.name === name));
  if (!named && format === "call") return { ok: true, action: { text: line } };
  if (!named) return { ok: false, reason: 'it must be a call, as in name {"argument": "value"}' };
  const call = parseCall(`{"name": ${JSON.stringify(name)}, "arguments": ${given ?? "{}"}}`);
  return call.ok ? { ok: true, action: { text: call.text, tool: call.tool } } : call;
}

function help({ actionFormat }: Environment, tools: readonly ToolSchema[]): string {
  const forms = {
    text: "Type what you want to say or do.",
    solution: "Type your solution; its last \\boxed{…}, or the whole line, is the answer.",
    tool: 'Call a tool: name {"argument": "value"}, or only the name if it has no arguments.',
    call: 'Call a tool: name {"argument": "value"} (or only the name if it has no arguments). Any other line is a message.',
  };
  return [
    forms[actionFormat],
    "? shows this help, Ctrl-D leaves.",
    ...tools.map(
      ({ name, description, parameters }) => `\n  ${name}: ${description}\n    ${spaced(parameters)}`,
    ),
    "",
  ].join("\n");
}

/** JSON on one line, with spaces at which it can be wrapped. */
function spaced(value: unknown): string {
  return JSON.stringify(value, null, 1).replaceAll(/\n */g, " ");
}
