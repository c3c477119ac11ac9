/**
 * Twenty Questions: an oracle has a word in mind, and the agent finds it out by yes/no questions.
 * The reward is 1 for naming the word within the allowed turns, else 0.
 *
 * Every turn counts as a question, including guesses, unanswerable questions and other texts. A
 * wrong guess is answered "No." The word is revealed at the end only with `revealAtEnd`: other
 * methods do not read that observation, and NLAC's backup of the last transition would learn what
 * the policy had to find out.
 *
 * By the rules of a second paper (Wang and Choudhury, "HOPE", 2025, appendices D and G) a turn
 * costs 1, except the one that names the word; all possible words are listed; and the last question
 * must be a guess.
 */

import { z } from "zod";
import { NlacError, throwIfAborted } from "../../base/errors.ts";
import { checkConfig, inOption, shown } from "../../base/validation.ts";
import type {
  Action,
  Environment,
  Episode,
  Message,
  StartOptions,
  StepResult,
} from "../../contract/environment.ts";
import type { ChatService } from "../../services/chat-service.ts";
import type { ServiceSource } from "../../services/open-service.ts";
import { checkSplit, episodeOver } from "../errors.ts";
import { openServiceOption } from "../open-service-option.ts";
import { demonstrate } from "./demonstrate.ts";
import { Names, type Word } from "./names.ts";
import { type Oracle, scriptedOracle, serviceOracle } from "./oracle.ts";
import { RecordedAnswers, readGames, recordedOracle } from "./recorded.ts";
import { byName, objectNamed, table } from "./table.ts";
import {
  dialogueFile,
  readCategories,
  readThings,
  type Split,
  shuffled,
  splitCategories,
  tidy,
} from "./words.ts";

/** A task of 20 Questions. */
export interface TwentyQuestionsTask {
  word: string;
}

const twentyQuestionsOptions = z.strictObject({
  /**
   * The oracle. "scripted" (default): the embedded table, free and deterministic. "recorded": other
   * models' games about the words of THINGS, read from `data`; offline, deterministic and noisy. Or
   * anything that `openService` opens (a model behind an API or in this process, a recording, a
   * script), which also judges whether a guess names the word.
   */
  oracle: z.custom<"scripted" | "recorded" | ServiceSource | Oracle>().default("scripted"),
  /**
   * Hidden words. "table": the embedded table's. "things": the 1,823 of THINGS, as in the paper,
   * 1,000 for training and 500 for testing. "lmrl": the 158 of LMRL-Gym, as in HOPE, 110 for
   * training and 20 of two other categories for testing. Or a list. Words that the scripted oracle
   * does not know need another oracle. Default "table"; "lmrl" with the rules of HOPE.
   */
  words: z.union([z.enum(["table", "things", "lmrl"]), z.array(z.string()).readonly()]).optional(),
  /**
   * Directory of things_1823.txt, selfplay_*.json and lmrl_twenty_questions_objects.json. Default:
   * `$NLAC_DATA/dialogue`.
   */
  data: z.string().optional(),
  /** Number of training words; not with "lmrl". The rest is for testing. Default: two thirds. */
  trainWords: z.int().min(1).optional(),
  /** Number of test words; not with "lmrl". Default: all that are not for training. */
  testWords: z.int().min(1).optional(),
  /** Seed of the split. Default 0. */
  splitSeed: z.int().min(0).default(0),
  /**
   * With "lmrl": what `tasks("test")` returns; "validation" is 28 words of the training categories.
   * Default "test".
   */
  testSplit: z.enum(["test", "validation"]).default("test"),
  /**
   * "nlac", or "hope": the words are listed, and the last question must be a guess. Default "nlac".
   */
  rules: z.enum(["nlac", "hope"]).default("nlac"),
  /**
   * "success": 1 for naming the word, else 0. "turns": -1 per turn, but 0 for the one that names
   * it. Default: "success", and "turns" with the rules of HOPE.
   */
  reward: z.enum(["success", "turns"]).optional(),
  /** Questions per game. Default 20, as in both papers. */
  turns: z.int().min(1).default(20),
  /**
   * Reveals the word when the game is over. Only NLAC's backup reads an episode's last observation,
   * so this is an advantage over the other methods. Default false. Paper: not mentioned.
   */
  revealAtEnd: z.boolean().default(false),
});

/** Options of `environments.twentyQuestions`. */
export type TwentyQuestionsOptions = z.input<typeof twentyQuestionsOptions>;
/** The options with their defaults. */
type Settings = z.output<typeof twentyQuestionsOptions>;

/** The environment of Twenty Questions. Throws ERR_CONFIG for invalid options or missing data. */
export function twentyQuestions(options: TwentyQuestionsOptions = {}): Environment<TwentyQuestionsTask> {
  const settings = inOption("twentyQuestions", () => checkConfig(twentyQuestionsOptions, options));
  const { turns, revealAtEnd, rules, reward = rules === "hope" ? "turns" : "success" } = settings;
  const { all, train, test } = splitWords(settings);
  const names = new Names(all);
  const { oracle, service } = openOracle(settings, all, names);
  // Sorted by name, so that the order does not reveal the splits.
  const listed = rules === "hope" ? all.map(({ name }) => name).sort() : undefined;
  const rewards = reward === "turns" ? { found: 0, otherwise: -1 } : { found: 1, otherwise: 0 };

  async function start(task: TwentyQuestionsTask, startOptions: StartOptions): Promise<Episode> {
    const { signal } = startOptions;
    throwIfAborted(signal);
    const { word } = task;
    if (typeof word !== "string" || word === "") {
      throw new NlacError("ERR_ENVIRONMENT", "twentyQuestions: a task must have a word.");
    }
    let used = 0;
    let over = false;
    let won = false;
    return {
      observation: { messages: opening(turns, listed) },
      async step(action: Action): Promise<StepResult> {
        if (over) throw episodeOver("twentyQuestions");
        throwIfAborted(signal);
        const { verdict, info } = await oracle.answer(word, action.text, startOptions);
        // The oracle may be user code.
        if (!Object.hasOwn(sayings, verdict)) {
          throw new NlacError(
            "ERR_ENVIRONMENT",
            `twentyQuestions: the oracle's verdict must be one of ${Object.keys(sayings).join(", ")}; it is ${shown(verdict)}.`,
          );
        }
        used++;
        const remaining = turns - used;
        const found = verdict === "found";
        won ||= found;
        over = found || remaining === 0;
        const told = revealAtEnd ? ` The word was "${word}".` : "";
        const last = over
          ? `${found ? "" : " That was the last question."}${told}`
          : rules === "hope" && remaining === 1
            ? " One question is left: name the word."
            : "";
        return {
          observation: [{ role: "user", content: `${sayings[verdict]}${last}` }],
          reward: found ? rewards.found : rewards.otherwise,
          terminated: over,
          truncated: false,
          info: { ...info, verdict, remaining, ...(over ? { word, success: found } : {}) },
        };
      },
      privileged: () => ({
        secret: word,
        hidden: all.find(({ name }) => name === word)?.aliases ?? [],
        ...(won ? {} : { failureReason: "The word was not named in time." }),
      }),
      async close() {
        over = true;
      },
    };
  }

  return {
    name: "twentyQuestions",
    actionFormat: "text",
    maxTurns: turns,
    turnLimitEnds: true,
    rewardRange: reward === "turns" ? [-turns, 0] : [0, 1],
    idle: { text: "I have no question." },
    async tasks(which) {
      checkSplit("twentyQuestions", which);
      return (which === "train" ? train : test).map(({ name }) => ({ word: name }));
    },
    taskId: (task) => task.word,
    start,
    // The scripted player knows only the words of the table.
    ...(train.every(({ name }) => objectNamed(name) !== undefined)
      ? {
          demonstrate: async (task: TwentyQuestionsTask, options: StartOptions) =>
            demonstrate(
              () => start(task, options),
              train.map(({ name }) => name),
              turns,
              options,
            ),
        }
      : {}),
    ...(service === undefined ? {} : { usage: () => service.usage() }),
    close: async () => service?.close?.(),
  };
}

const sayings = {
  yes: "Yes.",
  no: "No.",
  unknown: "I can't tell.",
  found: "Yes! You found it.",
  invalid: "That is not a question I can answer with yes or no. Please ask one yes-or-no question.",
};

function opening(turns: number, listed: readonly string[] | undefined): Message[] {
  return [
    {
      role: "system",
      content: [
        `You play a game of ${turns} questions. The other player has a word in mind: the name of a thing, such as an`,
        "animal, a plant, a food, a tool, a vehicle or something found at home. Find out which.",
        "",
        'Each turn, ask one question that can be answered with yes or no. The answer is "Yes.", "No." or "I can\'t',
        'tell." To guess, ask "Is it a ...?" with the name of the thing. You win when you name it, and lose when you',
        `have not named it after ${turns} questions; a guess counts as a question. Begin with questions that rule out`,
        "many things at once, and guess when few are left.",
        ...(listed === undefined ? [] : ["", `The word is one of these: ${listed.join(", ")}.`]),
      ].join("\n"),
    },
    { role: "user", content: "I have a word in mind. What is your first question?" },
  ];
}

/** The game's words: the embedded table's, a paper's list, or the caller's. */
function splitWords(settings: Settings): Split & { all: Word[] } {
  const { rules, words: given = rules === "hope" ? "lmrl" : "table", data, splitSeed, testSplit } = settings;
  if (given === "lmrl") {
    if (settings.trainWords !== undefined || settings.testWords !== undefined) {
      fault('the split of "lmrl" is the paper\'s: trainWords and testWords do not apply');
    }
    const split = splitCategories(
      readCategories(dialogueFile("lmrl_twenty_questions_objects.json", data)),
      splitSeed,
    );
    return {
      all: [...split.train, ...split.validation, ...split.test],
      train: split.train,
      test: testSplit === "test" ? split.test : split.validation,
    };
  }
  if (testSplit === "validation") fault('only the words "lmrl" have a validation split');
  const all = hiddenWords(given, data);
  const [trainWords = Math.round((all.length * 2) / 3), testWords = all.length - trainWords] =
    given === "things"
      ? [settings.trainWords ?? 1000, settings.testWords ?? 500]
      : [settings.trainWords, settings.testWords];
  if (trainWords >= all.length) fault(`trainWords must lie between 1 and ${all.length - 1}`);
  if (trainWords + testWords > all.length)
    fault(`testWords must lie between 1 and ${all.length - trainWords}`);
  const ordered = shuffled(all, ({ name }) => name, splitSeed);
  return {
    all,
    train: ordered.slice(0, trainWords),
    test: ordered.slice(trainWords, trainWords + testWords),
  };
}

function hiddenWords(given: "table" | "things" | readonly string[], data: string | undefined): Word[] {
  if (given === "table") return [...table];
  if (given === "things") return readThings(dialogueFile("things_1823.txt", data)).map(withAliases);
  for (const word of given)
    if (word.trim() === "" || word.length > 60) fault(`${JSON.stringify(word)} is not a word`);
  const words = [...new Set(given.map(tidy))];
  if (words.length < 2) fault("there must be at least two words");
  return words.map((name) => withAliases({ name, aliases: [] }));
}

/** Adds the other names that the table has for the word. */
function withAliases(word: Word): Word {
  const known = byName.get(word.name);
  return known?.name === word.name ? { name: word.name, aliases: known.aliases } : word;
}

function openOracle(
  { oracle, data }: Settings,
  words: readonly Word[],
  names: Names,
): { oracle: Oracle; service?: ChatService } {
  if (oracle === "scripted") {
    const missing = words.filter(({ name }) => objectNamed(name) === undefined);
    if (missing.length > 0) {
      const some = missing.slice(0, 5).map(({ name }) => name);
      fault(`the scripted oracle does not know ${some.join(", ")}; choose another oracle`);
    }
    return { oracle: scriptedOracle(names) };
  }
  if (oracle === "recorded") {
    const games = ["selfplay_gpt4.json", "selfplay_gpt35.json"].map((name) =>
      readGames(dialogueFile(name, data)),
    );
    return { oracle: recordedOracle(new RecordedAnswers(games), words, names) };
  }
  if (typeof oracle === "object" && oracle !== null && "answer" in oracle) return { oracle };
  const service = openServiceOption("twentyQuestions.oracle", oracle);
  return { oracle: serviceOracle(service, names), service };
}

function fault(message: string): never {
  throw new NlacError("ERR_CONFIG", `twentyQuestions: ${message}.`);
}
