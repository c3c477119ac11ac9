/**
 * The environment: a desk that accepts items in a hidden order. The agent must learn each order
 * from the desk's replies. Check it with `npm run check`, play it with `npx nlac play ./desk.ts`.
 *
 * The model of recipe.ts, errands-base, has half a million parameters and knows only the words of
 * nlac's Errands: its 12 kinds and 16 items, and the sentences below. With a real language model
 * you can change all texts. `defineEnvironment` of nlac/environments makes an environment from tools.
 */
import { NlacError } from "nlac";
import {
  type Action,
  type Environment,
  type Episode,
  environments,
  type StartOptions,
  type StepResult,
} from "nlac/environments";

/** The orders that the agent must learn: change them, or add a visa, permit, grant, claim … */
export const orders: Readonly<Record<string, readonly string[]>> = {
  passport: ["form", "photo", "fee"],
  licence: ["card", "stamp", "key"],
  loan: ["letter", "seal", "copy"],
  refund: ["ticket", "scan", "form"],
};

/** Moves per errand. An errand without a mistake uses three of them. */
const moves = 5;

const rules = `You run errands. For each, the desk at the office takes certain things, one a move and in an order that nobody
tells you beforehand. An errand must be done before its moves run out.

Each move, bring one thing and name nothing else: form, stamp, fee, photo, seal, copy, badge, ticket, letter, key, map, card, scan, vote, oath, pen.`;

/** Scripted episodes with made-up orders, which remind the small model of the output formats. */
const { demonstrate } = environments.errands();

/** An errand. Both splits have the same errands; only the seeds of their episodes differ. */
export interface Task {
  kind: string;
  split: "train" | "test";
}

async function start({ kind }: Task, { signal }: StartOptions): Promise<Episode> {
  if (signal?.aborted) throw new NlacError("ERR_ABORTED", "The episode was stopped.");
  const order = orders[kind];
  if (order === undefined) throw new Error(`There is no errand ${JSON.stringify(kind)}.`);
  const brought: string[] = [];
  let left = moves;
  let over = false;
  const status = () => `. [${kind}; moves left: ${left}; brought: ${brought.join(", ") || "nothing"}]`;
  return {
    observation: {
      messages: [
        { role: "system", content: rules },
        { role: "user", content: `A new errand${status()}` },
      ],
    },
    async step(action: Action): Promise<StepResult> {
      if (over) throw new NlacError("ERR_ENVIRONMENT", "The errand has ended.");
      const thing = action.text.trim();
      const wanted = order[brought.length]!;
      left--;
      if (thing === wanted) brought.push(thing);
      const done = brought.length === order.length;
      over = done || left === 0;
      const said = thing === wanted ? `The desk took the ${thing}` : `The desk first wants the ${wanted}`;
      const end = done ? ". The errand is done." : left === 0 ? ". The office closes." : status();
      return {
        observation: [{ role: "user", content: said + end }],
        reward: done ? 1 : 0,
        terminated: over,
        truncated: false,
        info: {},
      };
    },
    async close() {},
  };
}

const desk: Environment<Task> = {
  name: "desk",
  actionFormat: "text", // a thought, and one line
  maxTurns: moves,
  turnLimitEnds: true, // the agent knows the limit, so it is part of the task
  idle: { text: "nothing" }, // the floor that `nlac eval` plays
  tasks: async (split) => Object.keys(orders).map((kind) => ({ kind, split })),
  taskId: ({ kind, split }) => `${kind} (${split})`,
  start,
  demonstrate,
  close: async () => {},
};

export default desk;
