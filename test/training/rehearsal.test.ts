import { expect, test } from "vitest";
import { twentyQuestions } from "../../lib/environments/twenty-questions/index.ts";
import { rehearse } from "../../lib/training/rehearsal.ts";
import { errandEnvironment } from "../support/errand.ts";
import { ScriptedModel } from "../support/scripted-model.ts";

const environment = twentyQuestions({ turns: 12 });
const tasks = await environment.tasks("train");
const { signal } = new AbortController();

async function texts(count: number, seed: number) {
  const model = new ScriptedModel(() => "");
  const { nll, tokens } = await rehearse({ model, environment, tasks, count, seed, signal });
  return {
    model,
    nll,
    tokens,
    texts: model.events.flatMap((event) => (event.kind === "nll" ? event.texts : [])),
  };
}

test("rehearsal uses the backup's and the refiner's examples, drawn by seed", async () => {
  const { model, nll, tokens, texts: first } = await texts(12, 1);
  expect(tokens).toBe(first.reduce((sum, { response }) => sum + response.length, 0));
  expect(first).toHaveLength(12);
  expect(new Set(first.map(({ response }) => model.decode(response))).size).toBeGreaterThan(6);
  const requests = first.map(({ prompt }) => model.decode(prompt).split("<|im_start|>user").at(-1)!);
  const ofBackup = requests.filter((request) => /[Nn]ow judge your latest action/.test(request));
  const ofRefiner = requests.filter((request) => request.includes("revised action"));
  expect(ofBackup.length + ofRefiner.length).toBe(12);
  expect(Math.min(ofBackup.length, ofRefiner.length)).toBeGreaterThan(0);
  // The scripted model gives every token 0.5 nats; examples have equal weight at any length.
  expect(nll).toBeCloseTo(0.5, 12);
  for (const { response, weight } of first)
    expect((weight as number) * response.length).toBeCloseTo(1 / 12, 12);
  expect((await texts(12, 1)).texts).toEqual(first);
  expect((await texts(12, 2)).texts).not.toEqual(first);
});

test("without rehearsal the environment is not used, and one without demonstrations is an error", async () => {
  const model = new ScriptedModel(() => "");
  const options = { model, tasks: [{ word: "key" }], seed: 0, signal };
  expect(await rehearse({ ...options, environment: errandEnvironment(), count: 0 })).toEqual({
    nll: Number.NaN,
    tokens: 0,
  });
  expect(model.events).toEqual([]);
  await expect(rehearse({ ...options, environment: errandEnvironment(), count: 1 })).rejects.toMatchObject({
    code: "ERR_CONFIG",
  });
  const mute = {
    ...errandEnvironment(),
    demonstrate: async () => ({
      observation: { messages: [{ role: "user" as const, content: "?" }] },
      turns: [],
    }),
  };
  await expect(rehearse({ ...options, environment: mute, count: 1 })).rejects.toThrow(/can be rehearsed/);
});
