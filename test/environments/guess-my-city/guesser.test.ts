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

  /** Wins and mean reward on the splits of training, validation and test. */
  async function results(policy: (seed: number) => ScriptedPolicy, gamesPerTask = 1) {
    const rows = [];
    for (const [testSplit, split] of [
      ["test", "train"],
      ["validation", "test"],
      ["test", "test"],
    ] as const) {
      const tasks = await guessMyCity({ testSplit }).tasks(split);
      let won = 0;
      let total = 0;
      for (let game = 0; game < gamesPerTask; game++) {
        for (const [i, { city }] of tasks.entries()) {
          const played = await play({}, city, policy(i + 1000 * game));
          won += Number(played.success);
          total += played.total;
        }
      }
      const games = gamesPerTask * tasks.length;
      rows.push([won, games, (total / games).toFixed(1)]);
    }
    return rows;
  }

  // The table in docs/environments/guess-my-city.md.
  it.each<[string, (seed: number) => ScriptedPolicy, number, (number | string)[][]]>([
    [
      "that know the facts win every game, in one question",
      () => cityGuesser(),
      1,
      [
        [120, 120, "-1.0"],
        [30, 30, "-1.0"],
        [30, 30, "-1.0"],
      ],
    ],
    [
      "that know the facts and ask at random win every game",
      (seed) => cityGuesser({ seed }),
      5,
      [
        [600, 600, "-2.0"],
        [150, 150, "-2.0"],
        [150, 150, "-1.7"],
      ],
    ],
    [
      "that guess at random rarely win",
      randomPlayer,
      5,
      [
        [7, 600, "-10.0"],
        [5, 150, "-10.0"],
        [5, 150, "-10.0"],
      ],
    ],
    [
      "that do nothing never win",
      () => saying(guessMyCity().idle!.text),
      1,
      [
        [0, 120, "-10.0"],
        [0, 30, "-10.0"],
        [0, 30, "-10.0"],
      ],
    ],
  ])("%s", async (_, policy, gamesPerTask, expected) => {
    expect(await results(policy, gamesPerTask)).toEqual(expected);
  });
});
