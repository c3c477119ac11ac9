/**
 * Guess My City (Abdulhai et al., 2023; in the setting of HOPE: Wang and Choudhury, 2025, appendix
 * H). An oracle comes from a city, and the agent finds out which by open questions. It may guess
 * once: a wrong guess ends the game, and the last turn must be the guess.
 *
 * Every turn before the last costs 1, a right guess costs nothing, and a lost game costs as much as
 * needed for a total of -10. Optionally, the reward is 1 for the right guess and else 0. The city
 * is revealed at the end only with `revealAtEnd`.
 */

import { z } from "zod";
import { NlacError, throwIfAborted } from "../../base/errors.ts";
import { checkConfig } from "../../base/validation.ts";
import type {
  Action,
  Environment,
  Episode,
  Message,
  Observation,
  StartOptions,
  StepResult,
} from "../../contract/environment.ts";
import type { ServiceSource } from "../../services/open-service.ts";
import { checkSplit, episodeOver } from "../errors.ts";
import { openServiceOption } from "../open-service-option.ts";
import { demonstrate } from "./demonstrate.ts";
import { cities as embeddedCities, type Split } from "./facts.ts";
import { cityNames, countryNames, Guesses, Mentions, type NamedCity } from "./names.ts";
import {
  asksForSpelling,
  cannotTell,
  mayNotTell,
  type Oracle,
  type Reply,
  scriptedOracle,
  serviceOracle,
} from "./oracle.ts";

const name = z
  .string()
  .trim()
  .max(60)
  .regex(/[\p{L}\p{N}]/u, "a name needs a letter");

const guessMyCityOptions = z
  .strictObject({
    /**
     * The oracle. "scripted" (default): the embedded facts, free and deterministic. Or a language
     * model: anything that `openService` opens.
     */
    oracle: z.custom<"scripted" | ServiceSource>().default("scripted"),
    /**
     * Hidden cities. Default: the embedded ones. Others need an oracle other than the scripted one.
     */
    cities: z
      .array(
        z.strictObject({
          name,
          /** Other accepted names and spellings. */
          aliases: z.array(name).default([]),
          country: name,
          countryAliases: z.array(name).default([]),
          split: z.enum(["train", "validation", "test"]),
        }),
      )
      .optional(),
    /**
     * The cities that `tasks("test")` returns. "test" (default): cities of unseen countries.
     * "validation": unseen cities of known countries.
     */
    testSplit: z.enum(["test", "validation"]).default("test"),
    /** Turns per game, including the guess. Default 10, as in the paper. */
    turns: z.int().min(2).max(100).default(10),
    /**
     * "turns" (default, the paper's): -1 per turn and a total of -turns for a lost game. "success":
     * 1 for the right guess, else 0.
     */
    reward: z.enum(["turns", "success"]).default("turns"),
    /**
     * Reveals the city when the game is over. Only NLAC's backup reads an episode's last
     * observation, so this is an advantage over the other methods. Default false.
     */
    revealAtEnd: z.boolean().default(false),
  })
  .refine(
    ({ oracle, cities }) => cities === undefined || oracle !== "scripted",
    "the scripted oracle knows the embedded cities alone; give a model as oracle",
  );

/** Options of `environments.guessMyCity`. */
export type GuessMyCityOptions = z.input<typeof guessMyCityOptions>;

/** A task of Guess My City. */
export interface GuessMyCityTask {
  city: string;
}

/** Longer texts are not treated as questions. */
const maxQuestionLength = 300;

/** The environment of Guess My City. Throws ERR_CONFIG for invalid options. */
export function guessMyCity(options: GuessMyCityOptions = {}): Environment<GuessMyCityTask> {
  const {
    turns,
    testSplit,
    reward: rewardKind,
    oracle: source,
    revealAtEnd,
    ...given
  } = checkConfig(guessMyCityOptions, options);
  const cities: readonly (NamedCity & { split: Split })[] = given.cities ?? embeddedCities;
  const service = source === "scripted" ? undefined : openServiceOption("guessMyCity.oracle", source);
  const oracle = service === undefined ? scriptedOracle : serviceOracle(service);
  const guesses = guessesOf(cities);
  const byName = new Map(cities.map((city) => [city.name, city]));
  const ofCities = new Mentions(cities.flatMap(cityNames));
  const ofCountries = new Mentions(cities.flatMap(countryNames));

  /** The result of the text of turn `used` (from 0); the episode has no other state. */
  async function play(
    who: Oracle,
    city: NamedCity,
    text: string,
    used: number,
    options: StartOptions,
  ): Promise<StepResult> {
    const remaining = turns - used - 1;
    const guess = guesses.read(text);
    if (guess !== undefined || remaining === 0) {
      const success = guess === city;
      const [won, lost] = rewardKind === "turns" ? [0, used - turns] : [1, 0];
      return {
        observation: [{ role: "user", content: ending(guess, city, revealAtEnd) }],
        reward: success ? won : lost,
        terminated: true,
        truncated: false,
        info: { success, ...(guess === undefined ? {} : { guess: guess.name }), city: city.name, remaining },
      };
    }
    const reply = await answer(who, city, text, options);
    const last =
      remaining === 1 ? ' That was the last answer: now guess, in the form "Is the city ...?".' : "";
    return {
      observation: [{ role: "user", content: `${reply.text}${last}` }],
      reward: rewardKind === "turns" ? -1 : 0,
      terminated: false,
      truncated: false,
      info: { ...reply.info, remaining },
    };
  }

  /**
   * Filters questions before they reach the oracle: texts that name a city or a country, and
   * requests for their spelling, so that the game cannot be won by trial. `Mentions` lists the
   * names it finds; a model may confirm others.
   */
  async function answer(who: Oracle, city: NamedCity, text: string, options: StartOptions): Promise<Reply> {
    if (text.trim() === "" || text.length > maxQuestionLength) {
      return { text: `${cannotTell} Please ask one short question.`, info: { understood: "nothing" } };
    }
    if (ofCities.in(text)) {
      const advice = 'I do not compare cities. To guess one, ask "Is the city ...?".';
      return { text: advice, info: { understood: "other cities" } };
    }
    if (ofCountries.in(text)) return { text: mayNotTell, info: { understood: "country" } };
    if (asksForSpelling(text)) return { text: mayNotTell, info: { understood: "spelling" } };
    return who.answer(city, text, options);
  }

  function cityOf(task: GuessMyCityTask): NamedCity & { split: Split } {
    const city = byName.get(task.city);
    if (city !== undefined) return city;
    throw new NlacError("ERR_ENVIRONMENT", `guessMyCity: there is no city ${JSON.stringify(task.city)}.`);
  }

  function observe(city: { split: Split }): Observation {
    const listed = cities.filter(({ split }) => split === city.split).map(({ name }) => name);
    return { messages: opening(turns, listed) };
  }

  async function start(task: GuessMyCityTask, options: StartOptions): Promise<Episode> {
    throwIfAborted(options.signal);
    const city = cityOf(task);
    let used = 0;
    let over = false;
    let last: StepResult | undefined;
    return {
      observation: observe(city),
      async step(action: Action): Promise<StepResult> {
        if (over) throw episodeOver("guessMyCity");
        throwIfAborted(options.signal);
        const result = await play(oracle, city, action.text, used, options);
        used++;
        over = result.terminated;
        last = result;
        return result;
      },
      privileged: () => ({
        secret: city.name,
        hidden: city.aliases,
        ...(last?.info.success === true
          ? {}
          : { failureReason: over ? "The city was not guessed." : "There was no guess." }),
      }),
      async close() {
        over = true;
      },
    };
  }

  return {
    name: "guessMyCity",
    actionFormat: "text",
    maxTurns: turns,
    turnLimitEnds: true,
    rewardRange: rewardKind === "turns" ? [-turns, 0] : [0, 1],
    idle: { text: "I have nothing to ask." },
    async tasks(split) {
      checkSplit("guessMyCity", split);
      const wanted = split === "train" ? "train" : testSplit;
      return cities.flatMap((city) => (city.split === wanted ? [{ city: city.name }] : []));
    },
    taskId: (task) => task.city,
    start,
    ...(cities === embeddedCities
      ? {
          // Always with the facts' oracle, whose answers the scripted player can parse.
          demonstrate: async (task: GuessMyCityTask, options: StartOptions) => {
            const city = cityOf(task);
            const turn = (text: string, used: number) => play(scriptedOracle, city, text, used, options);
            return demonstrate(observe(city), city.name, turn, turns, options.seed);
          },
        }
      : {}),
    ...(service === undefined ? {} : { usage: () => service.usage() }),
    close: async () => service?.close?.(),
  };
}

function opening(turns: number, listed: readonly string[]): Message[] {
  return [
    {
      role: "system",
      content: [
        "You play a guessing game: find out from which city the other player comes. It is one of these:",
        `${listed.join("; ")}.`,
        "",
        "Each turn, ask one open question that helps to tell the cities apart, about the place or the life there. You may",
        "not ask for the name of the city or of the country, nor about their spelling, and no city or country may be named",
        'in a question. When you know the city, ask "Is the city ...?" with its name. You may guess only once: with a wrong',
        `guess the game is lost. You have ${turns} turns, and in the last one you must guess. The fewer you need, the better.`,
      ].join("\n"),
    },
    { role: "user", content: "Hello! I come from one of these cities. What is your first question?" },
  ];
}

function ending(guess: NamedCity | undefined, city: NamedCity, reveal: boolean): string {
  const told = reveal ? ` The city was "${city.name}".` : "";
  if (guess === city) return `Yes! You found it.${told}`;
  const lost = guess === undefined ? "That was your last turn, and it was no guess of a listed city." : "No.";
  return `${lost} The game is over.${told}`;
}

function guessesOf<City extends NamedCity>(cities: readonly City[]): Guesses<City> {
  try {
    return new Guesses(cities);
  } catch (error) {
    throw new NlacError("ERR_CONFIG", `guessMyCity: ${(error as Error).message}.`, { cause: error });
  }
}
