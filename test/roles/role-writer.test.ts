import { expect, test } from "vitest";
import { parseCritique } from "../../lib/prompts/critic.ts";
import type { Role } from "../../lib/roles/role-writer.ts";
import { critique, roleWriter, scriptedRoles } from "../support/roles.ts";

const question = (model = scriptedRoles()) => model.conversation([{ role: "user", content: "?" }]);
const roles: Role[] = ["next", "future", "target", "attempt", "critique", "refinement", "correction"];

test("each role has its temperature and its longest completion; a correction may be as long as any", async () => {
  const model = scriptedRoles();
  const writer = roleWriter(model, {
    ...{ actionTemperature: 0.1, criticTemperature: 0.2, refinerTemperature: 0.3 },
    ...{ maxActionTokens: 3000, maxCriticTokens: 200 },
  });
  for (const role of roles) await writer.write(role, "online", [question()]);
  const settings = model.calls.map(({ request }) => [request.temperature, request.maxNewTokens]);
  expect(Object.fromEntries(roles.map((role, i) => [role, settings[i]]))).toEqual({
    next: [0.1, 3000],
    future: [0.2, 200],
    target: [0.2, 200],
    attempt: [0.1, 3000],
    critique: [0.2, 200],
    refinement: [0.3, 3000],
    correction: [0.2, 3000],
  });
});

test("seeds differ by role, call, conversation, update and run, and repeat", async () => {
  const seeds = async (seed: number, update: number) => {
    const model = scriptedRoles();
    const writer = roleWriter(model, { seed }, undefined, update);
    for (const role of [...roles, ...roles]) await writer.write(role, "online", [question(), question()]);
    return model.calls.map(({ request }) => request.seed);
  };
  const all = [...(await seeds(0, 0)), ...(await seeds(0, 1)), ...(await seeds(1, 0))];
  expect(new Set(all).size).toBe(3 * 2 * 2 * roles.length);
  expect(await seeds(0, 0)).toEqual(all.slice(0, 4 * roles.length));
});

test("a prompt that does not fit gives undefined; the prompt limit applies to the policy only", async () => {
  const model = scriptedRoles();
  const [short, long] = [question(), model.conversation([{ role: "user", content: "?".repeat(200) }])];
  const before = long.tokens.length;
  const writer = roleWriter(model, { maxPromptTokens: 100 });
  const attempts = await writer.write("attempt", "online", [long.fork(), undefined, short]);
  expect(attempts.map((text) => text !== undefined)).toEqual([false, false, true]);
  expect(await writer.write("critique", "online", [long.fork()])).toEqual([expect.anything()]);
  Object.assign(model, { maxPositions: long.prompt().length + 3 });
  await writer.write("critique", "online", [long.fork()]);
  expect(model.calls.at(-1)!.request.maxNewTokens).toBe(3); // what the context has room for
  Object.assign(model, { maxPositions: long.prompt().length });
  expect(await writer.write("critique", "online", [long])).toEqual([undefined]);
  expect(long.tokens).toHaveLength(before);
});

test("counts tokens, readable completions and verdicts by role", async () => {
  const model = scriptedRoles();
  const replies = [critique, "Future:\nfine\nOptimality:\nYes", "no form"];
  model.reply = (_, __, i) => replies[i]!;
  const writer = roleWriter(model);
  const texts = await writer.write("critique", "online", [question(), question(), question()]);
  const parsed = texts.map((text) =>
    writer.read("critique", text!, (answer) => parseCritique(answer, false)),
  );
  expect(parsed.map(({ ok }) => ok)).toEqual([true, true, false]);
  const tokens = texts.reduce((sum, text) => sum + text!.tokens.length, 0);
  expect(writer.metrics()).toMatchObject({
    ...{ "parse/critique": 2 / 3, "yes/critique": 1 / 2, "tokens/critique": tokens },
    ...{ "share/critique": 1, "entropy/critique": 0.5, "tokens/generated": tokens, "tokens/cached": 0 },
    "tokens/prompted": 3 * question().prompt().length,
  });
});

test("an answer is a completion without its thought, for reasoning models", () => {
  const text = { text: "<think>why</think>because" } as never;
  expect(roleWriter(scriptedRoles(), { reasoning: true }).answer(text)).toBe("because");
  expect(roleWriter(scriptedRoles()).answer(text)).toBe("<think>why</think>because");
});
