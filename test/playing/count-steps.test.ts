import { expect, test } from "vitest";
import type { Environment, Episode } from "../../lib/contract/environment.ts";
import { countSteps } from "../../lib/playing/count-steps.ts";

/** An environment whose episode is an instance of a class with private state. */
class Counter {
  #steps = 0;
  observation = { messages: [] };
  async step() {
    return { observation: [], reward: ++this.#steps, terminated: false, truncated: false, info: {} };
  }
  async close() {
    this.#steps = -1;
  }
  get steps() {
    return this.#steps;
  }
}

test("every action is counted, and the environment and its episodes work as before", async () => {
  const episode = new Counter();
  const environment = {
    name: "counter",
    start: async () => episode as unknown as Episode,
    taskId(this: { name: string }, task: number) {
      return `${this.name} ${task}`;
    },
  } as unknown as Environment<number>;
  let steps = 0;
  const counted = countSteps(environment, () => steps++);
  expect(counted.taskId(3)).toBe("counter 3");
  const started = await counted.start(1, { seed: 0 });
  await started.step({ text: "a" });
  expect((await started.step({ text: "b" })).reward).toBe(2);
  expect(steps).toBe(2);
  await started.close();
  expect(episode.steps).toBe(-1);
});
