import { describe, expect, test } from "vitest";
import { derivedSeed, uniform } from "../../lib/base/random.ts";
import type { Action, Environment, PrivilegedInformation } from "../../lib/contract/environment.ts";
import { nothingUsed } from "../../lib/contract/environment.ts";
import { carDealer } from "../../lib/environments/car-dealer/index.ts";
import { errands } from "../../lib/environments/errands/index.ts";
import { guessMyCity } from "../../lib/environments/guess-my-city/index.ts";
import { twentyQuestions } from "../../lib/environments/twenty-questions/index.ts";
import type { Trajectory } from "../../lib/episodes/trajectory.ts";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { callAction } from "../../lib/prompts/calls.ts";
import { HindsightProposer } from "../../lib/roles/hindsight-proposer.ts";
import type { ChatService } from "../../lib/services/chat-service.ts";
import { errandEnvironment, play } from "../support/errand.ts";
import { act } from "../support/roles.ts";
import { ScriptedModel } from "../support/scripted-model.ts";

/** Letters and digits, in lower case: a check that shares no code with the one in lib. */
const letters = (text: string) => text.toLowerCase().replace(/[^\p{L}\p{N}]/gu, "");
const pick = <T>(values: readonly T[], seed: number, n: number): T =>
  values[Math.floor(uniform(seed, 0, n) * values.length)]!;

/** Sentences that a careless proposer writes with what it knows; `{}` stands for a hidden text. */
const careless = [
  "I name {}.",
  "It must be {}!",
  "Perhaps the {}s, as the summary says.",
  "{}",
  "first {} and then on",
  "(“{}”)",
];
const harmless = ["One more step.", "The last answer narrows it.", "Ask what matters."];

function texts({ secret, hidden = [] }: PrivilegedInformation): string[] {
  return [...(secret === undefined ? [] : [secret]), ...hidden.flat()];
}

/** A service that writes proposals with hidden texts in the action, in the reason, or in both. */
function carelessService(
  privileged: () => PrivilegedInformation,
  action: (text: string) => unknown,
): ChatService {
  let calls = 0;
  return {
    model: "careless",
    usage: () => nothingUsed,
    complete: async (messages) => {
      const seed = calls++;
      if (!messages[0]!.content.includes("You teach an agent")) return "It never found out.";
      const known = texts(privileged());
      const say = (n: number) =>
        pick(careless, seed, n).replaceAll("{}", `${pick(known, seed, n + 1)} ${pick(known, seed, n + 2)}`);
      const plain = (n: number) => pick(careless, seed, n).replaceAll("{}", pick(known, seed, n + 1));
      return JSON.stringify([
        { teacher_reason: known.join(), action: action(say(0)), player_reason: pick(harmless, seed, 10) },
        { teacher_reason: "t", action: action(pick(harmless, seed, 20)), player_reason: say(30) },
        { teacher_reason: "t", action: action(plain(40)), player_reason: plain(50) },
        {
          teacher_reason: "t",
          action: action(`What else, ${seed}?`),
          player_reason: pick(harmless, seed, 60),
        },
      ]);
    },
  };
}

const plainText = (text: string) => text.replaceAll(/\s+/g, " ");
const respond = (content: string) => ({ name: "respond", arguments: { content } });

describe("a secret is never in what the policy learns", () => {
  test.each<[string, Environment<never>, (text: string) => unknown, string[]]>([
    [
      "twentyQuestions",
      twentyQuestions({ turns: 6 }) as Environment<never>,
      plainText,
      ["Is it alive?", "Is it heavy?", "Is it made of metal?"],
    ],
    [
      "guessMyCity",
      guessMyCity({ turns: 6 }) as Environment<never>,
      plainText,
      ["What is the weather like?", "What do people eat?"],
    ],
    ["errands", errands({ deadEnds: 3 }) as Environment<never>, plainText, ["pen", "stamp", "form"]],
    [
      "carDealer",
      carDealer({ turns: 6 }) as Environment<never>,
      respond,
      ["Hello, what is your price range?", "What do you think of it?", "Which features matter?"],
    ],
  ])("%s, whatever a careless proposer writes", async (_, environment, action, said) => {
    const tool = environment.actionFormat === "tool";
    const model = new ScriptedModel((_prompt, _weights, i) => {
      const text = said[i % said.length]!;
      return tool
        ? `Thought:\nhm\nAction:\n${callAction("respond", { content: text }, "hm").text}`
        : `Thought:\nhm\nAction:\n${text}`;
    });
    const tasks = (await environment.tasks("train")).slice(0, 12);
    const { signal } = new AbortController();
    const episodes = await collectTrajectories({
      model,
      environment,
      episodes: tasks.map((task, id) => ({ id, task })),
      ...{ seed: 5, concurrency: 12, signal, temperature: 1, maxActionTokens: 400, maxPromptTokens: 100_000 },
    });
    let kept = 0;
    let leaked = 0;
    for (const trajectory of episodes) {
      expect(trajectory.privileged?.hidden).toBeInstanceOf(Array);
      const proposer = new HindsightProposer({
        ...{
          model,
          environment,
          signal,
          seed: derivedSeed(1, 2, trajectory.id),
          summary: "short" as const,
          hindsight: true,
        },
        ...{ maxSummaryTokens: 100, maxProposalTokens: 1000, maxActionTokens: 2000, maxTokens: 100_000 },
        ...{ temperature: 0.3, writer: carelessService(() => trajectory.privileged!, action) },
      });
      for (let turn = 0; turn < trajectory.turns.length; turn++) {
        const [proposals] = await proposer.propose([{ trajectory, turn }], 4);
        for (const { response } of proposals!) expectNoSecret(trajectory, turn, model.decode(response));
        kept += proposals!.length;
      }
      leaked += proposer.takeMetrics()["proposals/leaked"]!;
    }
    expect(kept).toBeGreaterThan(episodes.length);
    expect(leaked).toBeGreaterThan(episodes.length);
  });
});

/** What the policy would learn to say at that turn has nothing hidden that was not said before. */
function expectNoSecret({ turns, privileged }: Trajectory, turn: number, response: string): void {
  const before = letters(
    turns
      .slice(0, turn)
      .flatMap(({ text, observation }) => [text, ...observation.map(({ content }) => content)])
      .join(" "),
  );
  const { secret, hidden = [] } = privileged!;
  for (const entry of [secret!, ...hidden]) {
    const parts = [entry].flat().map(letters);
    // Short names, such as "la", are parts of other words.
    if (parts.some((part) => part.length < 5 || before.includes(part))) continue;
    const named = parts.filter((part) => letters(response).includes(part));
    expect(named.length, `${named} in ${response}`).toBeLessThan(parts.length);
  }
}

test.each([
  ["in hindsight", true],
  ["in the agent's place", false],
])("only what the episode did up to a turn is refused as repeated, %s", async (_, hindsight) => {
  const said = ["map", "lamp", "soap"];
  const script = [...said];
  const environment = errandEnvironment({ turns: 3 });
  const [trajectory] = await play(() => act(script.shift()!), environment);
  let asked = 0;
  let read = "";
  const writer: ChatService = {
    model: "repeating",
    usage: () => nothingUsed,
    complete: async (messages) => {
      read = messages.map(({ content }) => content).join("\n");
      if (!hindsight) return act(said[asked++]!);
      if (!messages[0]!.content.includes("You teach an agent")) return "It brought the wrong things.";
      return JSON.stringify(
        said.map((action) => ({ teacher_reason: "t", action, player_reason: "Try it." })),
      );
    },
  };
  const proposer = new HindsightProposer({
    ...{ model: new ScriptedModel(() => ""), environment, signal: new AbortController().signal, seed: 1 },
    ...{ summary: "short", hindsight, temperature: 1, writer },
    ...{ maxSummaryTokens: 100, maxProposalTokens: 1000, maxActionTokens: 100, maxTokens: 100_000 },
  });
  const [proposals] = await proposer.propose([{ trajectory: trajectory!, turn: 1 }], 3);
  expect(proposals!.map(({ action }) => action.text)).toEqual(["soap"]);
  // The proposer reads what was said before the turn, and at the turn nothing.
  expect(said.map((word) => read.includes(word))).toEqual([true, false, false]);
  expect(proposer.takeMetrics()).toMatchObject({ "proposals/repeated": 2, "proposals/kept": 1 });
});

test("the environment's proposals are judged too", async () => {
  const plain = errands();
  const talkative: Environment<never> = {
    ...(plain as Environment<never>),
    propose: (episode, actions, observations, count): Action[] =>
      plain.propose!(episode, actions, observations, count).map((one, i, all) => ({
        ...one,
        thought: i === 0 ? `First the ${all[0]!.text}, then the ${all.at(-1)!.text}.` : one.thought!,
      })),
  };
  const model = new ScriptedModel(() => "Thought:\nhm\nAction:\npaperclip");
  const { signal } = new AbortController();
  const [task] = await talkative.tasks("train");
  const [trajectory] = await collectTrajectories({
    ...{ model, environment: talkative, episodes: [{ id: 0, task: task! }] },
    ...{ seed: 1, concurrency: 1, signal, temperature: 1, maxActionTokens: 100, maxPromptTokens: 10_000 },
  });
  const proposer = new HindsightProposer({
    ...{ model, environment: talkative, signal, seed: 1, summary: "short", hindsight: true, temperature: 1 },
    ...{ maxSummaryTokens: 100, maxProposalTokens: 100, maxActionTokens: 100, maxTokens: 100_000 },
    writer: "environment",
  });
  const [proposals] = await proposer.propose([{ trajectory: trajectory!, turn: 0 }], 2);
  expect(proposals).toHaveLength(1);
  expect(proposer.takeMetrics()).toMatchObject({ "proposals/leaked": 1, "proposals/kept": 1 });
});
