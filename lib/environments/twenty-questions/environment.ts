/**
 * Twenty Questions: an oracle has a word in mind, the agent finds it out by questions that are answered by yes or
 * no. The reward is 1 for naming the word within the allowed turns, else 0.
 *
 * Every turn counts as a question, also a guess, a question nobody can answer and a text that is none. A wrong
 * guess is answered "No." When the turns are used up the word is told: the episode is over, so that nothing
 * leaks, and a critic that is trained on the ending learns what would have been right.
 */

import { NlacError, throwIfAborted } from "../../errors.ts";
import type { Action, Environment, Episode, Message, ResetOptions, StepResult } from "../contract.ts";
import { driver } from "../driver.ts";
import { chatService, type ServiceOptions } from "../service.ts";
import { demonstrate } from "./demonstrate.ts";
import { type Oracle, scriptedOracle, serviceOracle } from "./oracle.ts";
import { byName, table } from "./table.ts";

export interface TwentyQuestionsTask {
  word: string;
}

export interface TwentyQuestionsOptions {
  /**
   * Who answers. "scripted" (default): the embedded table, free and the same every time. Or a model behind an
   * OpenAI-compatible service, who also judges whether a guess names the word.
   */
  oracle?: "scripted" | ServiceOptions | Oracle;
  /** Hidden words. Default: the embedded table's. Other words need an oracle other than the scripted one. */
  words?: readonly string[];
  /** Which words are for training: their number. The rest is for testing. Default: two thirds. */
  trainWords?: number;
  /** Words for testing. Default: all that are not for training. */
  testWords?: number;
  /** Questions a game allows. Default 20, as in the paper. */
  turns?: number;
}

const knownOptions = new Set(["oracle", "words", "trainWords", "testWords", "turns"]);

/** The environment of Twenty Questions. Throws ERR_CONFIG for options that do not validate. */
export function twentyQuestions(options: TwentyQuestionsOptions = {}): Environment<TwentyQuestionsTask> {
  for (const key of Object.keys(options)) {
    if (!knownOptions.has(key)) fault(`there is no option "${key}"`);
  }
  const turns = options.turns ?? 20;
  if (!Number.isInteger(turns) || turns < 1) fault("turns must be a positive whole number");
  const words = [...new Set(options.words ?? table.map((object) => object.name))];
  if (words.length < 2) fault("there must be at least two words");
  for (const word of words) {
    if (typeof word !== "string" || word.trim() === "" || word.length > 60)
      fault(`${JSON.stringify(word)} is no word`);
  }
  const oracle = openOracle(options.oracle ?? "scripted");
  if (oracle === scriptedOracle) {
    const missing = words.filter((word) => !byName.has(word));
    if (missing.length > 0) {
      fault(`the scripted oracle does not know ${missing.slice(0, 5).join(", ")}; give a model as oracle`);
    }
  }
  const split = splitWords(words, options.trainWords, options.testWords);

  async function start(task: TwentyQuestionsTask, { signal }: ResetOptions): Promise<Episode> {
    throwIfAborted(signal);
    const { word } = task;
    if (typeof word !== "string" || word === "") {
      throw new NlacError("ERR_ENVIRONMENT", "twentyQuestions: a task must have a word.");
    }
    let used = 0;
    let over = false;
    return {
      observation: { messages: opening(turns) },
      async step(action: Action): Promise<StepResult> {
        if (over)
          throw new NlacError("ERR_ENVIRONMENT", "twentyQuestions: the episode is over; start a new one.");
        throwIfAborted(signal);
        const { verdict, info } = await oracle.answer(word, action.text, signal);
        used++;
        const remaining = turns - used;
        over = verdict === "found" || remaining === 0;
        const last =
          over && verdict !== "found" ? ` That was the last question. The word was "${word}".` : "";
        return {
          observation: [{ role: "user", content: `${sayings[verdict].replace("{word}", word)}${last}` }],
          reward: verdict === "found" ? 1 : 0,
          done: over,
          info: { ...info, verdict, remaining, ...(over ? { word } : {}) },
        };
      },
      async close() {
        over = true;
      },
    };
  }

  return {
    name: "twentyQuestions",
    actionFormat: "text",
    maxTurns: turns,
    async tasks(which) {
      if (which !== "train" && which !== "test") {
        throw new NlacError(
          "ERR_VALUE",
          `twentyQuestions: split must be "train" or "test", not ${JSON.stringify(which)}.`,
        );
      }
      return split[which].map((word) => ({ word }));
    },
    taskId: (task) => task.word,
    start,
    demonstrate: async (task, options) =>
      demonstrate(() => start(task, options), split.train, turns, options),
    ...driver("twentyQuestions", start),
  };
}

const sayings = {
  yes: "Yes.",
  no: "No.",
  unknown: "I can't tell.",
  found: 'Yes! You found it: the word was "{word}".',
  invalid: "That is not a question I can answer with yes or no. Please ask one yes-or-no question.",
};

function opening(turns: number): Message[] {
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
      ].join("\n"),
    },
    { role: "user", content: "I have a word in mind. What is your first question?" },
  ];
}

function openOracle(oracle: NonNullable<TwentyQuestionsOptions["oracle"]>): Oracle {
  if (oracle === "scripted") return scriptedOracle;
  if (typeof oracle !== "object" || oracle === null) fault('oracle must be "scripted" or name a model');
  if ("answer" in oracle) return oracle;
  return serviceOracle(chatService(oracle));
}

/**
 * Words in the order of a hash of their names, so that a word's place does not depend on the list it came in and
 * adding words moves few.
 */
function splitWords(
  words: readonly string[],
  trainWords = Math.round((words.length * 2) / 3),
  testWords = words.length - trainWords,
): { train: string[]; test: string[] } {
  if (!Number.isInteger(trainWords) || trainWords < 1 || trainWords >= words.length) {
    fault(`trainWords must lie between 1 and ${words.length - 1}`);
  }
  if (!Number.isInteger(testWords) || testWords < 1 || trainWords + testWords > words.length) {
    fault(`testWords must lie between 1 and ${words.length - trainWords}`);
  }
  const ordered = words
    .map((word) => ({ word, key: hash(word) }))
    .sort((a, b) => a.key - b.key || (a.word < b.word ? -1 : 1))
    .map(({ word }) => word);
  return { train: ordered.slice(0, trainWords), test: ordered.slice(trainWords, trainWords + testWords) };
}

/** FNV-1a with a final scramble: short words would fall near each other. */
function hash(word: string): number {
  let value = 0x811c9dc5;
  for (let i = 0; i < word.length; i++) value = Math.imul(value ^ word.charCodeAt(i), 0x01000193);
  value = Math.imul(value ^ (value >>> 16), 0x85ebca6b);
  value = Math.imul(value ^ (value >>> 13), 0xc2b2ae35);
  return (value ^ (value >>> 16)) >>> 0;
}

function fault(message: string): never {
  throw new NlacError("ERR_CONFIG", `twentyQuestions: ${message}.`);
}
