import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import type { Transition } from "../../lib/episodes/trajectory.ts";
import { criticRequest } from "../../lib/prompts/critic.ts";
import { refine, refinementMetrics } from "../../lib/roles/refinements.ts";
import { user } from "../../lib/roles/role-writer.ts";
import { errandEnvironment } from "../support/errand.ts";
import {
  act,
  callsOf,
  critique,
  roleOf,
  roleWriter,
  scriptedRoles,
  transitionsFrom,
} from "../support/roles.ts";
import { endOfTurn, ScriptedModel } from "../support/scripted-model.ts";

/** Refinements at the three states of an episode. */
async function refinementsOf(model = scriptedRoles(), config: Parameters<typeof roleWriter>[1] = {}) {
  const environment = errandEnvironment();
  const transitions = await transitionsFrom(model, environment);
  const writer = roleWriter(model, config, environment);
  const refinements = await refine(writer, transitions);
  const metrics = { ...writer.metrics(), ...refinementMetrics(refinements) };
  return { refinements, metrics, states: transitions.map(({ state }) => state.prompt()) };
}

test("attempt, critique and refinement are one append-only conversation under θ; a^r is scored after s", async () => {
  const model = scriptedRoles();
  const { refinements, metrics, states } = await refinementsOf(model);
  expect(new Set(model.calls.map(({ weights }) => weights))).toEqual(new Set(["online"]));
  const [attempts, critics, refiners] = ["policy", "critic", "refiner"].map((role) => callsOf(model, role));
  for (const i of [0, 1, 2]) {
    expect(critics![i]!.prompt.startsWith(`${attempts![i]!.prompt}${act("soap")}<|im_end|>`)).toBe(true);
    expect(refiners![i]!.prompt.startsWith(`${critics![i]!.prompt}${critique}<|im_end|>`)).toBe(true);
    const { text, judgements } = refinements[i]!;
    expect(text).toEqual({ prompt: states[i], response: [...model.encode(act("key")), endOfTurn] });
    expect(judgements).toEqual([{ futures: ["foreseen"], yes: false }]);
  }
  expect(metrics).toMatchObject({
    "refinements/kept": 3,
    "refinements/changed": 1,
    "refinements/dropped": 0,
  });
  expect(metrics["tokens/l2"]).toBe(3 * refinements[0]!.text!.response.length);
});

test("the stored action can replace a new attempt", async () => {
  const model = scriptedRoles();
  const { refinements } = await refinementsOf(model, { attempt: "stored" });
  expect(callsOf(model, "policy")).toEqual([]);
  expect(refinements.map(({ attempt }) => attempt)).toEqual([undefined, undefined, undefined]);
  for (const { prompt } of callsOf(model, "critic")) expect(prompt).toContain(act("soap"));
});

test.each([
  ["unreadable", "just bring the key"],
  ["cut_off", `${act("key")}…`],
])("a refinement that cannot be used is dropped as %s, with a reason", async (dropped, refiner) => {
  const { refinements } = await refinementsOf(scriptedRoles({ refiner }));
  for (const refinement of refinements) {
    expect(refinement).toMatchObject({ dropped, reason: expect.any(String) });
    expect(refinement.text).toBeUndefined();
  }
});

test("with refinementsKept approved, only refinements with a critique of Yes stay", async () => {
  const no = await refinementsOf(scriptedRoles(), { refinementsKept: "approved" });
  expect(no.metrics).toMatchObject({ "refinements/kept": 0, "refinements/dropped_not_approved": 3 });
  const unreadable = await refinementsOf(scriptedRoles({ critic: "Fine!" }), { refinementsKept: "approved" });
  expect(unreadable.metrics).toMatchObject({ "refinements/kept": 0, "refinements/dropped_not_approved": 3 });
  const critic = "Future:\nfine\nOptimality:\nYes";
  const yes = await refinementsOf(scriptedRoles({ critic }), { refinementsKept: "approved" });
  expect(yes.metrics).toMatchObject({ "refinements/kept": 3, "yes/critique": 1 });
});

test.each([
  ["Yes", "No. Bring the key.", 0],
  ["No. Bring the key.", "Yes", 3],
])("of several critiques the last decides on approval: %s, then %s", async (first, second, kept) => {
  const model = scriptedRoles();
  const { reply } = model;
  // The first critique is of the attempt "soap", the second one of its refinement.
  model.reply = (prompt, ...rest) => {
    if (roleOf(prompt) !== "critic") return reply(prompt, ...rest);
    const attempt = prompt.slice(prompt.lastIndexOf("Action:\n")).startsWith("Action:\nsoap");
    return `Future:\nfine\nOptimality:\n${attempt ? first : second}`;
  };
  const { metrics } = await refinementsOf(model, { refinements: 2, refinementsKept: "approved" });
  expect(metrics["refinements/kept"]).toBe(kept);
});

test("without rounds the attempt is the result, without a critique unless approval is required", async () => {
  const plain = scriptedRoles();
  const { refinements, metrics } = await refinementsOf(plain, { refinements: 0 });
  expect(plain.calls.map(({ prompt }) => roleOf(prompt))).toEqual(["policy", "policy", "policy"]);
  for (const { text } of refinements)
    expect(text!.response).toEqual([...plain.encode(act("soap")), endOfTurn]);
  expect(metrics).toMatchObject({ "refinements/kept": 3, "refinements/changed": 0 });
  expect(metrics["parse/refinement"]).toBeUndefined();

  const approval = { refinements: 0, refinementsKept: "approved" } as const;
  const refused = scriptedRoles();
  expect((await refinementsOf(refused, approval)).metrics["refinements/kept"]).toBe(0);
  expect([callsOf(refused, "critic").length, callsOf(refused, "refiner").length]).toEqual([3, 0]);
  const approved = scriptedRoles({ critic: "Future:\nfine\nOptimality:\nYes" });
  expect((await refinementsOf(approved, approval)).metrics["refinements/kept"]).toBe(3);
});

test("k = 3: three futures of each attempt, each with its own seed, then the evaluator", async () => {
  const model = scriptedRoles();
  const { refinements } = await refinementsOf(model, { futures: 3 });
  const successor = callsOf(model, "successor");
  expect(new Set(successor.map(({ request }) => request.seed)).size).toBe(9);
  expect(callsOf(model, "evaluator")).toHaveLength(3);
  for (const { prompt } of callsOf(model, "evaluator")) expect(prompt).toContain("3. a successor text");
  expect(refinements[0]!.judgements[0]!.futures).toEqual(Array(3).fill("a successor text"));
});

test.each([1, 2])(
  "m = 3: a critique of k = %i reads only s and its own attempt (eq. 3), the refiner all",
  async (k) => {
    const model = scriptedRoles();
    const { reply } = model;
    // Numbered attempts: "soap", then "key 1", "key 2", …
    model.reply = (prompt, ...rest) =>
      roleOf(prompt) === "refiner"
        ? act(`key ${prompt.split("Action:\nkey").length}`)
        : reply(prompt, ...rest);
    const { states, refinements } = await refinementsOf(model, { refinements: 3, futures: k });
    expect(refinements.map(({ action }) => action!.text)).toEqual(["key 3", "key 3", "key 3"]); // the last
    const judged = callsOf(model, k === 1 ? "critic" : "evaluator");
    const attempts = ["soap", "key 1", "key 2"].flatMap((word) => states.map(() => act(word)));
    expect(judged).toHaveLength(attempts.length);
    for (const [i, { prompt }] of judged.entries()) {
      const state = model.decode(states[i % states.length]!);
      // Nothing is between the attempt and the request, and no critique before it.
      expect(prompt.startsWith(`${state}${attempts[i]}<|im_end|>`)).toBe(true);
      expect(prompt.slice(state.length).split("<|im_start|>assistant")).toHaveLength(2);
      expect(prompt).not.toContain("bring the key");
    }
    const last = callsOf(model, "refiner").slice(-3);
    for (const { prompt } of last)
      expect(prompt).toMatch(/Action:\nsoap.*bring the key.*key 1.*bring the key.*key 2.*bring the key/s);
  },
);

test("a request that is given is that of the first critique; the refiner reads the critic's in its place", async () => {
  const model = scriptedRoles();
  const transitions = await transitionsFrom(model, errandEnvironment());
  const writer = roleWriter(model, { attempt: "stored", refinements: 2 });
  const given = transitions.map((_, i) => user(`The end was ${i}. Judge your last action in its light.`));
  await refine(writer, transitions, given);
  const critics = callsOf(model, "critic").map(({ prompt }) => prompt);
  expect(critics.map((prompt) => prompt.includes("The end was"))).toEqual([
    ...[true, true, true],
    ...[false, false, false],
  ]);
  for (const { prompt } of callsOf(model, "refiner")) {
    expect(prompt).not.toContain("The end was");
    expect(prompt).toContain(criticRequest(false, "text"));
  }
});

test("calls are parsed with the tools of their own episode, which another one may not have", async () => {
  const call = (word: string) =>
    `<tool_call>\n<function=${word}>\n<parameter=count>\n2\n</parameter>\n</function>\n</tool_call>`;
  const template = readFileSync("test/fixtures/tokens/templates/tags-like.jinja", "utf8");
  const model = new ScriptedModel((prompt) => {
    if (roleOf(prompt) === "critic") return critique;
    return call(prompt.includes("Use lamp.") ? "lamp" : "key");
  }, template);
  const parameters = { type: "object", properties: { count: { type: "integer" } } };
  const transitions = ["key", "lamp"].map((name, trajectory): Transition => {
    const tools = [{ name, description: "", parameters }];
    const state = model.conversation([{ role: "user", content: `Use ${name}.` }], { tools });
    return {
      ...{ trajectory, turn: 0, state, action: model.encode(call(name)), observation: [] },
      ...{ reward: 0, received: 0, terminated: true, truncated: false, rest: { turns: [] } },
    };
  });
  const environment = { ...errandEnvironment(), actionFormat: "call" as const };
  const refinements = await refine(roleWriter(model, { maxActionTokens: 500 }, environment), transitions);
  for (const [i, name] of ["key", "lamp"].entries()) {
    const tool = { name, arguments: { count: 2 } };
    expect(refinements[i]).toMatchObject({ attempted: { tool }, action: { tool } });
    expect(refinements[i]!.dropped).toBeUndefined();
  }
});
