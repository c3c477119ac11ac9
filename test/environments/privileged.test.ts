import { expect, test } from "vitest";
import type { Action, Environment } from "../../lib/contract/environment.ts";
import { carDealer } from "../../lib/environments/car-dealer/index.ts";
import { errands } from "../../lib/environments/errands/index.ts";
import { guessMyCity } from "../../lib/environments/guess-my-city/index.ts";
import { twentyQuestions } from "../../lib/environments/twenty-questions/index.ts";
import { leaks } from "../../lib/prompts/leaks.ts";

/** Plays one action again and again; returns what the environment said and kept to itself. */
async function played(environment: Environment<never>, action: Action, task = 0) {
  const tasks = await environment.tasks("train");
  const episode = await environment.start(tasks[task]!, { seed: 1 });
  const said = [...episode.observation.messages];
  for (let over = false; !over; ) {
    const result = await episode.step(action);
    said.push(...result.observation);
    over = result.terminated || result.truncated;
  }
  const privileged = episode.privileged!();
  await episode.close();
  return { said: said.map(({ content }) => content).join("\n"), privileged };
}

test.each([
  ["twentyQuestions", twentyQuestions({ turns: 3 }), { text: "Is it alive?" }],
  ["errands", errands(), { text: "pen" }],
  ["errands with dead ends", errands({ deadEnds: 9 }), { text: "pen" }],
  [
    "carDealer",
    carDealer({ turns: 2 }),
    { text: "Hello.", tool: { name: "respond", arguments: { content: "Hello." } } },
  ],
])(
  "%s tells the secret and the reason of a failure to hindsight methods only",
  async (_, environment, action) => {
    const { said, privileged } = await played(environment as never, action);
    expect(privileged.secret).toMatch(/\w/);
    expect(privileged.failureReason).toMatch(/\w/);
    expect(said).not.toContain(privileged.secret);
    expect(privileged.hidden).toBeInstanceOf(Array);
  },
);

test("a game that was won has a secret and no failure", async () => {
  const environment = guessMyCity();
  const [task] = await environment.tasks("train");
  const episode = await environment.start(task!, { seed: 1 });
  await episode.step({ text: `Is the city ${task!.city}?` });
  expect(episode.privileged!()).toEqual({ secret: task!.city, hidden: expect.any(Array) });
  const lost = await environment.start(task!, { seed: 1 });
  const other = (await environment.tasks("train"))[1]!;
  await lost.step({ text: `Is the city ${other.city}?` });
  expect(lost.privileged!()).toMatchObject({
    secret: task!.city,
    failureReason: expect.stringMatching(/\w/),
  });
});

test("errands proposes what the desk wants next, without the whole order", async () => {
  const environment = errands();
  for (const task of await environment.tasks("train")) {
    const name = environment.taskId(task);
    const episode = await environment.start(task, { seed: 1 });
    const taken: Action[] = [];
    for (let left = 4; left > 0; left--) {
      const [first, ...more] = environment.propose!({ task: name, seed: 1 }, taken, [], 2);
      expect(more).toHaveLength(left > 1 ? 1 : 0);
      const seen = taken.map(({ text }) => text).join("\n");
      for (const action of [first!, ...more]) expect(leaks(action, episode.privileged!(), seen)).toBe(false);
      const { reward, observation } = await episode.step(first!);
      if (left > 1) expect(observation[0]!.content).toContain(`The desk took the ${first!.text}`);
      expect(reward).toBe(left === 1 ? 1 : 0);
      taken.push(first!);
    }
    expect(episode.privileged!().failureReason).toBeUndefined();
  }
  expect(environment.propose!({ task: "none", seed: 1 }, [], [], 2)).toEqual([]);
});
