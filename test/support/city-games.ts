/** Games of Guess My City, and the names in them. */

import type { ScriptedPolicy } from "../../lib/environments/check.ts";
import { type City, cityByName } from "../../lib/environments/guess-my-city/facts.ts";
import { type GuessMyCityOptions, guessMyCity } from "../../lib/environments/guess-my-city/index.ts";
import { cityNames, countryNames, Mentions } from "../../lib/environments/guess-my-city/names.ts";
import { scriptedOracle } from "../../lib/environments/guess-my-city/oracle.ts";

export const ask = async (city: string, question: string): Promise<string> =>
  (await scriptedOracle.answer(cityByName.get(city)!, question, { seed: 0 })).text;

export const secretsOf = (city: City) => new Mentions([...cityNames(city), ...countryNames(city)]);

/** Plays one game with a policy. */
export async function play(options: GuessMyCityOptions, city: string, policy: ScriptedPolicy) {
  const environment = guessMyCity(options);
  const episode = await environment.start({ city }, { seed: 0 });
  const history = [];
  for (;;) {
    const action = policy({ observation: episode.observation, history });
    const result = await episode.step(action);
    history.push({ action, result });
    if (!result.terminated) continue;
    const total = history.reduce((sum, step) => sum + step.result.reward, 0);
    return { history, total, success: result.info.success as boolean, last: result };
  }
}

/** Says these texts in order, then the last one again. */
export const saying =
  (...texts: string[]): ScriptedPolicy =>
  ({ history }) => ({ text: texts[Math.min(history.length, texts.length - 1)]! });
