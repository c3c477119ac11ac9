import { describe, expect, test } from "vitest";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { type EpisodeText, episodeTexts } from "../../lib/training/episode-texts.ts";
import { errandEnvironment, play } from "../support/errand.ts";
import { likeQwq } from "../support/reasoning-templates.ts";
import { act } from "../support/roles.ts";
import { endOfTurn, ScriptedModel } from "../support/scripted-model.ts";

const model = new ScriptedModel(() => "");

describe("an episode as one sequence", () => {
  test("begins with the first prompt, ends with the last action, with weight 1 on each turn's own ids", async () => {
    // Unreadable once, wrong once, then right.
    const [trajectory] = await play((prompt) =>
      prompt.includes("could not be read") ? act(prompt.includes("wants key") ? "key" : "lamp") : "lamp!",
    );
    const { turns } = trajectory!;
    expect(turns).toHaveLength(3);
    const [text, ...others] = episodeTexts(trajectory!) as [EpisodeText, ...EpisodeText[]];
    expect(others).toEqual([]);
    expect(text.prompt).toEqual(turns[0]!.state.prompt());
    const all = [...text.prompt, ...text.response];
    expect(all).toEqual(trajectory!.conversation.tokens.slice(0, all.length));
    expect(text.weight).toHaveLength(text.response.length);
    // Turn by turn, as generated after its own prompt.
    for (const [i, { start, end, reward }] of text.turns.entries()) {
      const turn = turns[i]!;
      expect(all.slice(0, text.prompt.length + start)).toEqual(turn.state.prompt());
      expect(text.response.slice(start, end)).toEqual(turn.tokens);
      expect(reward).toBe(turn.reward);
    }
    expect(text.response.filter((_, t) => text.weight[t] === 1)).toEqual(
      turns.flatMap(({ tokens }) => tokens),
    );
    expect(model.decode(text.response.filter((_, t) => text.weight[t] === 0))).toContain(
      "OBSERVED wants key",
    );
    expect(text.response.at(-1)).toBe(endOfTurn);
    expect(model.decode(text.response)).not.toContain("OBSERVED thanks"); // nobody reads what came last
    expect(text.turns.map(({ reward }) => reward)).toEqual([0, 0, 1]);
  });

  test("a scripted assistant's turn among the observations is not the policy's", async () => {
    const environment = errandEnvironment();
    const start = environment.start;
    environment.start = async (task, options) => {
      const episode = await start(task, options);
      return {
        ...episode,
        step: async (action) => {
          const result = await episode.step(action);
          const said = { role: "assistant", content: "Let me think." } as const;
          return {
            ...result,
            observation: [...result.observation, said, { role: "user", content: "Go on." }],
          };
        },
      };
    };
    const [trajectory] = await play(() => act("lamp"), environment);
    const [text, ...others] = episodeTexts(trajectory!) as [EpisodeText, ...EpisodeText[]];
    expect(others).toEqual([]);
    expect(text.response.filter((_, t) => text.weight[t] === 1)).toEqual(
      trajectory!.turns.flatMap(({ tokens }) => tokens),
    );
    expect(model.decode(text.response)).toContain("Let me think.");
  });

  test("a fault's last turn is left out; an episode without turns has no sequence", async () => {
    const environment = errandEnvironment();
    const start = environment.start;
    let steps = 0;
    environment.start = async (task, options) => {
      const episode = await start(task, options);
      return {
        ...episode,
        step: (action) => (++steps === 2 ? Promise.reject(new Error("closed")) : episode.step(action)),
      };
    };
    const [broken] = await play(() => act("lamp"), environment);
    expect(broken!.outcome).toBe("environment-fault");
    expect(broken!.turns).toHaveLength(2);
    const [text] = episodeTexts(broken!) as [EpisodeText];
    expect(text.turns).toHaveLength(1);
    expect(text.response).toEqual(broken!.turns[0]!.tokens);
    expect(text.weight.every((one) => one === 1)).toBe(true);
    environment.start = () => Promise.reject(new Error("closed"));
    const [never] = await play(() => act("lamp"), environment);
    expect(episodeTexts(never!)).toEqual([]);
  });
});

test("a history without the reasoning begins a sequence, however much the environment then says", async () => {
  const environment = errandEnvironment();
  const { start } = environment;
  environment.start = async (...options) => {
    const episode = await start(...options);
    const observation = [{ role: "user" as const, content: "No. ".repeat(50) }];
    return { ...episode, step: async (action) => ({ ...(await episode.step(action)), observation }) };
  };
  const [trajectory] = await collectTrajectories({
    // The policy opens the reasoning itself, so that the prompts alone do not differ.
    model: new ScriptedModel(
      () => `<think>\nwhy\n</think>\n\n${act("soap")}`,
      likeQwq.replace("<think>\n", ""),
    ),
    ...{ environment, episodes: [{ id: 0, task: { word: "key" } }], seed: 0, temperature: 1 },
    ...{ maxActionTokens: 100, maxPromptTokens: 10_000 },
  });
  const { turns } = trajectory!;
  expect(turns).toHaveLength(3);
  // The next prompt is longer than the turn, whose ids it does not have.
  const [first, second] = turns.map(({ state }) => state.prompt());
  expect(second!.length).toBeGreaterThan(first!.length + turns[0]!.tokens.length);
  expect(episodeTexts(trajectory!).map(({ prompt, response }) => [prompt, response])).toEqual(
    turns.map(({ state, tokens }) => [state.prompt(), tokens]),
  );
});
