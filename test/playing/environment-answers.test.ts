import { expect, test } from "vitest";
import { messageOf } from "../../lib/base/errors.ts";
import type { Environment, Observation, StepResult } from "../../lib/contract/environment.ts";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { checkedObservation, checkedStep, checkedTaskId } from "../../lib/playing/environment-answers.ts";
import { servicePlayer } from "../../lib/playing/service-player.ts";
import { openService } from "../../lib/services/open-service.ts";
import { errandEnvironment } from "../support/errand.ts";

const step: StepResult = {
  observation: [{ role: "user", content: "hello" }],
  ...{ reward: 1, terminated: false, truncated: false, info: { turn: 1 } },
};
const refused = expect.objectContaining({ code: "ERR_ENVIRONMENT" });
const circular: Record<string, unknown> = {};
circular.self = circular;

test("a step is copied, so that later changes have no effect", () => {
  const given = structuredClone(step);
  const copy = checkedStep(given);
  expect(copy).toEqual(step);
  given.observation[0]!.content = "other";
  given.observation.push({ role: "user", content: "more" });
  given.info.turn = 2;
  expect(copy).toEqual(step);
});

test.each([
  undefined,
  5,
  { ...step, reward: Number.NaN },
  { ...step, terminated: 1 },
  { ...step, truncated: undefined },
  { ...step, observation: "hello" },
  { ...step, observation: [{ role: "king", content: "" }] },
  { ...step, observation: [circular] },
  { ...step, observation: [{ role: "user", content: 10n }] },
  { ...step, info: circular },
  { ...step, info: 5 },
  { ...step, info: [1] },
])("a step that breaks the contract is refused: %#", (result) => {
  expect(() => checkedStep(result as unknown as StepResult)).toThrow(refused);
});

test.each([
  undefined,
  { messages: undefined },
  { messages: [null] },
  { messages: [], tools: 5 },
  { messages: [], tools: [null] },
])("an observation that breaks the contract is refused: %#", (observation) => {
  expect(() => checkedObservation(observation as unknown as Observation)).toThrow(refused);
});

test("a task's name is a string", () => {
  expect(checkedTaskId({ taskId: () => "a" }, 1)).toBe("a");
  expect(() => checkedTaskId({ taskId: () => 5 as unknown as string }, 1)).toThrow(refused);
});

test("every thrown value has a message", () => {
  const broken = Object.defineProperty(new Error(), "message", {
    get: () => {
      throw new Error();
    },
  });
  const values = [new Error("a"), "a", undefined, { toString: () => 5n }, Object.create(null), broken];
  expect(values.map(messageOf)).toEqual([
    ...["a", "a", "undefined", "5"],
    ...["an error without a readable message", "an error without a readable message"],
  ]);
});

test("only the episode fails whose environment misbehaves at its start, in its name or with its error", async () => {
  const good = errandEnvironment({ words: ["key"] });
  const unreadable = { toString: () => ({}) };
  const tasks = ["good", "no promise", "no name", "unreadable", "throws later"];
  const environment: Environment<string> = {
    ...(good as unknown as Environment<string>),
    taskId: (task) => (task === "no name" ? (undefined as unknown as string) : task),
    start: (task, options) => {
      if (task === "no promise") return 5 as unknown as ReturnType<typeof good.start>;
      if (task === "unreadable") return Promise.reject(unreadable);
      const episode = good.start({ word: "key" }, options);
      if (task !== "throws later") return episode;
      let looks = 0;
      return episode.then((made) => ({
        step: made.step,
        close: made.close,
        get observation() {
          if (++looks > 1) throw new Error("no second look");
          return made.observation;
        },
      }));
    },
  };
  const trajectories = await collectTrajectories({
    model: servicePlayer(openService(() => "Thought:\nhm\nAction:\nkey")),
    environment,
    episodes: tasks.map((task, id) => ({ id, task })),
    ...{ seed: 0, maxActionTokens: 50, maxPromptTokens: 10_000, temperature: 0 },
  });
  expect(trajectories.map(({ id, task, outcome, fault }) => [id, task, outcome, fault?.code])).toEqual([
    [0, "good", "done", undefined],
    [1, "no promise", "environment-fault", "ERR_ENVIRONMENT"],
    [2, "unnamed", "environment-fault", "ERR_ENVIRONMENT"],
    [3, "unreadable", "environment-fault", "ERR_ENVIRONMENT"],
    [4, "throws later", "done", undefined],
  ]);
});
