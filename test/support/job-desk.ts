/** An environment of two tools, for tests of `defineEnvironment`. */

import { z } from "zod";
import type { Action, Environment } from "../../lib/contract/environment.ts";
import { defineEnvironment } from "../../lib/environments/define.ts";
import { type ToolContext, ToolError, tool } from "../../lib/environments/define-tool.ts";
import type { EnvironmentDefinition } from "../../lib/environments/definition.ts";
import { callAction } from "../../lib/prompts/calls.ts";

export interface Job {
  id: string;
  item: string;
  count: number;
}

export interface Desk {
  stock: Map<string, number>;
  sent: string[];
  closed: number;
}

export const opened: Desk[] = [];

export const find = tool({
  name: "find",
  description: "How many of an item are in stock.",
  parameters: z.object({ item: z.string() }),
  handler: ({ item }, { state }: ToolContext<Desk>) => {
    const count = state.stock.get(item);
    if (count === undefined) throw new ToolError(`${item} is unknown`);
    return { item, count };
  },
});

const send = tool({
  name: "send",
  description: "Sends items and ends the job.",
  parameters: z
    .object({ item: z.string(), count: z.int().min(1).default(1) })
    .refine(({ count }) => count < 100, {
      path: ["count"],
      message: "that many do not fit",
    }),
  handler: ({ item, count }, { state, end }: ToolContext<Desk>) => {
    state.sent.push(`${count} ${item}`);
    end();
    return "Sent.";
  },
});

/** A tool without a schema of its own that runs a test's handler. */
export const odd = (handler: (context: ToolContext<Desk, Job>) => unknown, timeout = 60_000) =>
  tool({
    name: "odd",
    description: "Odd.",
    parameters: { type: "object", properties: {} },
    timeout,
    handler: (_, context: ToolContext<Desk, Job>) => handler(context),
  });

export function desk(more: Partial<EnvironmentDefinition<Job, Desk>> = {}): Environment<Job> {
  return defineEnvironment({
    name: "desk",
    system: "You run a desk.",
    tasks: {
      train: [{ id: "pens", item: "pen", count: 2 }],
      test: async () => [{ id: "cups", item: "cup", count: 1 }],
    },
    taskId: ({ id }: Job) => id,
    start: (): Desk => {
      const state = { stock: new Map([["pen", 3]]), sent: [], closed: 0 };
      opened.push(state);
      return state;
    },
    prompt: ({ item, count }) => `Send ${count} of ${item}.`,
    tools: [find, send],
    score: ({ sent }, { item, count }) => (sent.includes(`${count} ${item}`) ? 1 : 0),
    close: (state) => {
      state.closed++;
    },
    maxTurns: 4,
    ...more,
  });
}

export const call = (name: string, args: object) => callAction(name, args as Record<string, unknown>);

export async function play(environment: Environment<Job>, ...actions: Action[]) {
  const [task] = await environment.tasks("train");
  const episode = await environment.start(task!, { seed: 0 });
  const results = [];
  for (const action of actions) results.push(await episode.step(action));
  await episode.close();
  return results;
}
