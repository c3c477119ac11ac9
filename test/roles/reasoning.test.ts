/** Episodes of models whose chat template drops the reasoning of earlier turns. */

import { describe, expect, test } from "vitest";
import { trainGrpo } from "../../lib/algorithms/grpo.ts";
import { trainNlac } from "../../lib/algorithms/nlac.ts";
import { generalizedAdvantages, trainPpo } from "../../lib/algorithms/ppo.ts";
import type { Environment } from "../../lib/contract/environment.ts";
import { figuresOf } from "../../lib/episodes/figures.ts";
import { fromRecord, toRecord } from "../../lib/episodes/records.ts";
import { transitionsOf } from "../../lib/episodes/trajectory.ts";
import { findShape } from "../../lib/estimate/shape.ts";
import { workOf } from "../../lib/estimate/work.ts";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { parseRecipe } from "../../lib/recipe/recipe.ts";
import { refine, refinementMetrics } from "../../lib/roles/refinements.ts";
import { targetMetrics, writeTargets } from "../../lib/roles/targets.ts";
import { memoryRun } from "../../lib/run/training-run.ts";
import { episodeTexts } from "../../lib/training/episode-texts.ts";
import { type Errand, errandEnvironment } from "../support/errand.ts";
import { likeDeepSeek, likeQwq } from "../support/reasoning-templates.ts";
import { roleWriter } from "../support/roles.ts";
import { endOfTurn, ScriptedModel } from "../support/scripted-model.ts";
import { ScriptedPolicy } from "../support/scripted-policy.ts";

const act = (word: string) => `Thought:\nhm\nAction:\n${word}`;
const reasoned = (text: string) => `SECRET reasoning\n</think>\n\n${text}`;

function play(model: ScriptedModel, environment: Environment<Errand>, maxPromptTokens = 100_000) {
  return collectTrajectories({
    model,
    environment,
    episodes: [{ id: 0, task: { word: "key" } }],
    seed: 0,
    maxActionTokens: 24_576,
    maxPromptTokens,
    temperature: 1,
  });
}

describe("an episode of 30 turns", () => {
  /** With completions as long as an estimate assumes; here a token is a byte. */
  async function turnsWithin(name: string, chatTemplate: string) {
    const recipe = parseRecipe(
      { name: "x", model: "QwQ-32B", environment: { name }, config: { reasoning: true } },
      "a test",
    );
    const { lengths } = workOf(recipe, findShape("QwQ-32B"));
    const { thought, observation, opening } = lengths;
    const said = act("soap ".repeat((lengths.action - thought) / 5)).slice(0, lengths.action - thought);
    const model = new ScriptedModel(() => `${"r".repeat(thought)}\n</think>\n\n${said}`, chatTemplate);
    const environment = errandEnvironment({ turns: 30 });
    const { start } = environment;
    environment.start = async (task, options) => {
      const episode = await start(task, options);
      const answer = [{ role: "user" as const, content: "o".repeat(observation) }];
      return {
        ...episode,
        observation: { messages: [{ role: "user", content: "p".repeat(opening) }] },
        step: async (action) => ({ ...(await episode.step(action)), observation: answer }),
      };
    };
    const [trajectory] = await play(model, environment, 8192);
    return trajectory!.turns.length;
  }

  test.each(["twentyQuestions", "guessMyCity"])("fits into 8,192 tokens of prompt, of %s", async (name) => {
    expect(await turnsWithin(name, likeQwq)).toBe(30);
    expect(await turnsWithin(name, likeDeepSeek)).toBe(30);
    // With the reasoning in its history it reaches the prompt limit after some turns.
    const { chatTemplate } = new ScriptedModel(() => "").tokenizer;
    expect(await turnsWithin(name, chatTemplate!)).toBeLessThan(5);
  });

  test("of tau-bench begins with a policy of 4,200 tokens: the paper's limit then allows eleven turns, not two", async () => {
    const { chatTemplate } = new ScriptedModel(() => "").tokenizer;
    expect(await turnsWithin("tauBench", chatTemplate!)).toBe(2);
    expect(await turnsWithin("tauBench", likeQwq)).toBe(11);
  });
});

test("the next state leaves the reasoning out; the turn has all its ids, also in a record", async () => {
  const model = new ScriptedModel(() => reasoned(act("soap")), likeQwq);
  const [trajectory] = await play(model, errandEnvironment());
  const all = [...model.encode(reasoned(act("soap"))), endOfTurn];
  expect(trajectory!.turns).toHaveLength(3);
  for (const { state, tokens, logProbs } of trajectory!.turns) {
    expect(model.decode(state.tokens)).not.toContain("SECRET");
    expect(tokens).toEqual(all);
    expect(logProbs).toHaveLength(all.length);
  }
  const { conversation, turns } = trajectory!;
  expect(model.decode(conversation.tokens).split(`assistant\n${act("soap")}`)).toHaveLength(4);
  const record = JSON.parse(JSON.stringify(toRecord(trajectory!)));
  const again = fromRecord(record, model);
  expect(again.turns.map(({ tokens, logProbs }) => [tokens, logProbs])).toEqual(
    turns.map(({ tokens, logProbs }) => [tokens, logProbs]),
  );
  expect(again.turns.map(({ state }) => state.tokens)).toEqual(turns.map(({ state }) => state.tokens));
  expect(toRecord(again)).toEqual(toRecord(trajectory!));
  for (const episode of [trajectory!, record]) expect(figuresOf(episode).tokens).toBe(3 * all.length);
});

test("the record of a turn that the history drops has that turn's ids, not the next one's", async () => {
  const next = [...new ScriptedModel(() => "").encode(act("soap")), endOfTurn];
  const unended = "r".repeat(next.length);
  const model: ScriptedModel = new ScriptedModel(
    () => (model.calls.length === 1 ? `${unended}…` : act("soap")),
    likeQwq,
  );
  const [trajectory] = await play(model, errandEnvironment());
  const sampled = trajectory!.turns.map(({ tokens }) => tokens);
  expect(sampled.slice(0, 2)).toEqual([model.encode(unended), next]);
  const record = toRecord(trajectory!);
  const again = fromRecord(JSON.parse(JSON.stringify(record)), model);
  expect(again.turns.map(({ tokens }) => tokens)).toEqual(sampled);
  expect(figuresOf(record).tokens).toBe(figuresOf(trajectory!).tokens);
});

test("truncated reasoning is not an action, and is not in the history", async () => {
  const model = new ScriptedModel(() => "SECRET reasoning that does not end …", likeQwq);
  const environment = errandEnvironment();
  const { start } = environment;
  environment.start = async (task, options) => ({
    ...(await start(task, options)),
    step: () => Promise.reject(new Error("nothing was said")),
  });
  const [trajectory] = await play(model, environment);
  expect(trajectory!.outcome).toBe("malformed");
  expect(model.decode(trajectory!.conversation.tokens)).not.toContain("SECRET");
});

describe("training on them", () => {
  const corrected = "I rewrite.\n</think>\n\n<corrected_think>I believe so.</corrected_think>";
  const config = {
    iterations: 1,
    episodesPerIteration: 1,
    updatesPerIteration: 1,
    batchSize: 8,
    maxPromptTokens: 50_000,
    reasoning: true,
  };
  const isCorrection = (prompt: string) =>
    prompt.slice(prompt.lastIndexOf("<|im_start|>user")).includes("corrected_think");

  test("NLAC's prompts have actions, futures and critiques without reasoning; trained completions have their own", async () => {
    const model = new ScriptedModel((prompt) => {
      const last = prompt.slice(prompt.lastIndexOf("<|im_start|>user"));
      if (isCorrection(prompt)) return corrected;
      if (last.includes("revised action")) return reasoned(act("key"));
      if (/judge your latest action|Judge your last action/.test(last))
        return reasoned("Future:\nforeseen\nOptimality:\nNo, bring the key.");
      if (last.includes("Starting from this point")) return reasoned("a future");
      return reasoned(act("soap"));
    }, likeQwq);
    const run = memoryRun();
    await trainNlac({ model, environment: errandEnvironment(), config, run });
    expect(run.rows[1]!.values).toMatchObject({ "targets/dropped": 0, "refinements/dropped": 0 });
    const [asking, others] = [true, false].map((wanted) =>
      model.calls.filter(({ prompt }) => isCorrection(prompt) === wanted),
    );
    // The one thought that the request refers to is in the prompt.
    expect(asking).toHaveLength(16);
    for (const { prompt } of asking!) expect(prompt.split("SECRET")).toHaveLength(2);
    for (const { prompt } of others!) expect(prompt).not.toContain("SECRET");
    const kls = model.events.flatMap((event) => (event.kind === "kl" ? event.texts : []));
    const nlls = model.events.flatMap((event) => (event.kind === "nll" ? event.texts : []));
    expect([kls.length, nlls.length]).toEqual([8, 8]);
    for (const [prompt, response] of [
      ...kls.map(({ student, response }) => [student, response] as const),
      ...nlls.map(({ prompt, response }) => [prompt, response] as const),
    ]) {
      expect(model.decode(prompt)).not.toContain("SECRET");
      expect(model.decode(prompt).endsWith("<|im_start|>assistant\n<think>\n")).toBe(true);
      expect(model.decode(response)).toMatch(/^I believe so\.\n<\/think>\n\n(Future|Thought):\n/);
    }
    // The stored action equals the sampled one.
    const [trajectory] = run.trajectories;
    for (const { action } of transitionsOf(trajectory!))
      expect(model.decode(action)).toBe(`${reasoned(act("soap"))}<|im_end|>`);
  });

  test.each([
    ["a future", "Starting from this point", 1, "targets/dropped_cut_off", 2],
    ["a critique", "Judge your last action", 1, "refinements/dropped_cut_off", 3],
    ["one of two futures of the attempt", "Picture what follows", 2, "refinements/dropped_cut_off", 3],
  ])(
    "%s that ends in its thought drops what would be made of it",
    async (_, asked, futures, dropped, count) => {
      const model = new ScriptedModel((prompt) => {
        const last = prompt.slice(prompt.lastIndexOf("<|im_start|>user"));
        if (isCorrection(prompt)) return corrected;
        if (last.includes(asked)) return "SECRET reasoning …";
        if (last.includes("revised action")) return reasoned(act("key"));
        if (/judge your latest action|Judge your last action|Weigh them/.test(last))
          return reasoned("Future:\nforeseen\nOptimality:\nNo, bring the key.");
        if (/Starting from this point|Picture what follows/.test(last)) return reasoned("a future");
        return reasoned(act("soap"));
      }, likeQwq);
      const environment = errandEnvironment();
      const transitions = transitionsOf((await play(model, environment))[0]!);
      const writer = roleWriter(model, { reasoning: true, futures, maxCriticTokens: 1000 }, environment);
      const targets = await writeTargets(writer, transitions);
      const refinements = await refine(writer, transitions);
      const drops = { ...targetMetrics(targets), ...refinementMetrics(refinements) };
      expect(drops[dropped]).toBe(count);
      expect(drops["targets/dropped"]! + drops["refinements/dropped"]!).toBe(count);
    },
  );

  test("an episode has one sequence per turn, each after the state in which it was generated", async () => {
    const model = new ScriptedModel(() => reasoned(act("soap")), likeQwq);
    const [trajectory] = await play(model, errandEnvironment());
    const texts = episodeTexts(trajectory!);
    expect(texts.map(({ prompt, response }) => [prompt, response])).toEqual(
      trajectory!.turns.map(({ state, tokens }) => [state.prompt(), tokens]),
    );
    expect(texts.map(({ next }) => next)).toEqual([
      trajectory!.turns[1]!.state.prompt(),
      trajectory!.turns[2]!.state.prompt(),
      undefined,
    ]);
  });

  const policy = () => {
    const reply = (prompt: string) => reasoned(act(prompt.includes("wants key") ? "key" : "soap"));
    return new ScriptedPolicy(reply, likeQwq);
  };
  const gradient = {
    iterations: 1,
    episodesPerIteration: 4,
    batchSize: 4,
    klCoefficient: 0,
    maxPromptTokens: 50_000,
    seed: 1,
  };

  test("PPO's chain of advantages continues from one turn's sequence to the next", async () => {
    const model = policy();
    const run = memoryRun();
    const environment = errandEnvironment({ words: ["key"] });
    const shape = { ...gradient, epochs: 1, lambda: 0.9, discount: 0.95, whiten: false };
    await trainPpo({ model, environment, config: shape, run });
    const texts = model.surrogates.flatMap((call) => call.texts);
    expect(texts).toHaveLength(8); // four episodes of two turns
    const [first, second] = texts;
    expect(model.decode(second!.prompt)).not.toContain("SECRET");
    const values = [...Array.from(first!.oldValues!), ...Array.from(second!.oldValues!)];
    const rewards = values.map((_, t) => (t === values.length - 1 ? 1 : 0));
    const { advantages, returns } = generalizedAdvantages(rewards, values, 0.95, 0.9);
    expect([...Array.from(first!.advantages), ...Array.from(second!.advantages)]).toEqual(advantages);
    expect([...Array.from(first!.returns!), ...Array.from(second!.returns!)]).toEqual(returns);
    const weights = texts.flatMap(({ weight }) => weight as number[]);
    expect(weights.reduce((a, b) => a + b, 0)).toBeCloseTo(1, 9);
  });

  test("GRPO weights an episode as a whole, however many sequences it has", async () => {
    const model = policy();
    await trainGrpo({
      model,
      environment: errandEnvironment({ words: ["key", "lamp"] }),
      config: gradient,
      run: memoryRun(),
    });
    const texts = model.surrogates.flatMap((call) => call.texts);
    expect(texts.length).toBeGreaterThan(4);
    const weights = texts.flatMap(({ weight }) => weight as number[]);
    expect(weights.reduce((a, b) => a + b, 0)).toBeCloseTo(1, 9);
    // "sequence": four episodes of equal shares, each spread over its own tokens.
    const episodes = new Map<string, number>();
    for (const { weight } of texts) {
      const [one] = weight as number[];
      episodes.set(String(one), (episodes.get(String(one)) ?? 0) + (weight as number[]).length);
    }
    for (const [one, count] of episodes) expect((Number(one) * count * 4) % 1).toBeCloseTo(0, 9);
  });
});
