import { describe, expect, it } from "vitest";
import { streams, uniform } from "../../../lib/base/random.ts";
import type { ScriptedPolicy } from "../../../lib/environments/check.ts";
import { cityByName, questionAbout, topicNames } from "../../../lib/environments/guess-my-city/facts.ts";
import { cityGuesser, guessMyCity } from "../../../lib/environments/guess-my-city/index.ts";
import { play, saying } from "../../support/city-games.ts";

describe("players", () => {
  /** Asks random questions and in the end guesses a random city. */
  const randomPlayer =
    (seed: number): ScriptedPolicy =>
    ({ observation, history }) => {
      const random = uniform(seed, streams.policy, history.length);
      const listed = observation.messages[0]!.content.split(/; |\n|\.\n/).filter((name) =>
        cityByName.has(name),
      );
      return history.length < 9
        ? { text: questionAbout(topicNames[Math.floor(random * topicNames.length)]!) }
        : { text: `Is the city ${listed[Math.floor(random * listed.length)]}?` };
    };

  async function successes(
    testSplit: "test" | "validation",
    split: "train" | "test",
    policy: (i: number) => ScriptedPolicy,
  ) {
    const tasks = await guessMyCity({ testSplit }).tasks(split);
    let won = 0;
    let total = 0;
    for (const [i, { city }] of tasks.entries()) {
      const game = await play({}, city, policy(i));
      won += Number(game.success);
      total += game.total;
    }
    return { won, total, games: tasks.length };
  }

  it("that know the facts win every game, in one question", async () => {
    expect(await successes("test", "train", () => cityGuesser())).toEqual({
      won: 120,
      total: -120,
      games: 120,
    });
    expect(await successes("test", "test", () => cityGuesser())).toEqual({ won: 30, total: -30, games: 30 });
    expect(await successes("validation", "test", () => cityGuesser())).toEqual({
      won: 30,
      total: -30,
      games: 30,
    });
    const { won, total } = await successes("test", "train", (i) => cityGuesser({ seed: i }));
    expect(won).toBe(120);
    expect(total).toBeLessThan(-180);
  });

  it("that do nothing never win", async () => {
    const idle = saying(guessMyCity().idle!.text);
    expect(await successes("test", "train", () => idle)).toEqual({ won: 0, total: -1200, games: 120 });
    expect(await successes("test", "test", () => idle)).toEqual({ won: 0, total: -300, games: 30 });
    expect(await successes("validation", "test", () => idle)).toEqual({ won: 0, total: -300, games: 30 });
  });

  it("that guess at random rarely win", async () => {
    const { won } = await successes("test", "train", randomPlayer);
    expect(won).toBeLessThanOrEqual(6);
  });
});
