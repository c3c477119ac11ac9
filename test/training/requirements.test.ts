import { expect, test } from "vitest";
import { trainArcher } from "../../lib/algorithms/archer.ts";
import { trainCritiqueGrpo } from "../../lib/algorithms/critique-grpo.ts";
import { trainDpo } from "../../lib/algorithms/dpo.ts";
import { trainGrpo } from "../../lib/algorithms/grpo.ts";
import { trainHope } from "../../lib/algorithms/hope.ts";
import { trainNlac } from "../../lib/algorithms/nlac.ts";
import { trainPpo } from "../../lib/algorithms/ppo.ts";
import { evaluateReact } from "../../lib/algorithms/react.ts";
import { trainRft } from "../../lib/algorithms/rft.ts";
import { trainSac } from "../../lib/algorithms/sac.ts";
import { trainSft } from "../../lib/algorithms/sft.ts";
import { recorded } from "../../lib/environments/recorded.ts";
import {
  requireDemonstrations,
  requireForm,
  requireFuture,
  requireHindsight,
  requireTasks,
} from "../../lib/training/requirements.ts";

const refused = (message: RegExp) => ({ code: "ERR_CONFIG", message: expect.stringMatching(message) });

test("a split must have tasks", async () => {
  const tasks = async (split: "train" | "test") => (split === "train" ? ["a"] : []);
  expect(await requireTasks({ name: "desk", tasks }, "train")).toEqual(["a"]);
  await expect(requireTasks({ name: "desk", tasks }, "test")).rejects.toMatchObject(
    refused(/desk has no tasks to test on/),
  );
  await expect(requireTasks(recorded(), "train")).rejects.toMatchObject(refused(/use nlac serve --train/));
});

test("only actions of the format tool can be constrained", () => {
  requireForm({ name: "desk", actionFormat: "tool" }, { constrainActions: true });
  requireForm({ name: "desk", actionFormat: "text" }, { constrainActions: false });
  const constrain = () => requireForm({ name: "desk", actionFormat: "text" }, { constrainActions: true });
  expect(constrain).toThrow(expect.objectContaining(refused(/desk has the format "text"/)));
});

test("several futures need tasks of several steps", () => {
  const solution = { name: "sums", actionFormat: "solution" } as const;
  const single = { name: "desk", actionFormat: "text", singleStep: true } as const;
  requireFuture(solution, { futures: 1 });
  requireFuture({ ...solution, singleStep: false }, { futures: 2 });
  for (const environment of [solution, single])
    expect(() => requireFuture(environment, { futures: 2 })).toThrow(
      expect.objectContaining(refused(/futures: .*(sums|desk)/)),
    );
});

test("demonstrations and hindsight are required by name", () => {
  requireDemonstrations({
    name: "desk",
    demonstrate: async () => ({ observation: { messages: [] }, turns: [] }),
  });
  requireHindsight({ name: "desk", hindsight: () => undefined });
  const missing = expect.objectContaining(refused(/^desk /));
  expect(() => requireDemonstrations({ name: "desk" })).toThrow(missing);
  expect(() => requireHindsight({ name: "desk" })).toThrow(missing);
});

const methods = {
  trainNlac,
  trainRft,
  trainGrpo,
  trainPpo,
  trainSac,
  trainCritiqueGrpo,
  trainArcher,
} as const;

test.each(Object.entries({ ...methods, trainSft, trainDpo, trainHope, evaluateReact }))(
  "%s refuses an option that does not exist, and a missing model or environment",
  async (_, train) => {
    const start = (options: object) => (train as (options: object) => Promise<unknown>)(options);
    const [model, environment] = [{}, { name: "desk" }];
    for (const [options, message] of [
      [{ model, environment, configs: {} }, /options has no "configs"; it takes model/],
      [{ environment }, /options\.model must be an object/],
      [{ model, environment: "desk" }, /options\.environment must be an object; it is "desk"/],
    ] as const)
      await expect(start(options)).rejects.toMatchObject(refused(message));
  },
);
