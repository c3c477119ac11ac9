/**
 * Mathematical problems as a single-step environment: one solution, graded by its final answer. The
 * default problems are MATH (Hendrycks et al., 2021) if its files are available, else a small
 * embedded set.
 */

import { createHash } from "node:crypto";
import { existsSync, statSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { isAbsolute, join } from "node:path";
import { z } from "zod";
import { NlacError, NotHere, throwIfAborted } from "../../base/errors.ts";
import { getOrAdd } from "../../base/get-or-add.ts";
import { permutation, streams } from "../../base/random.ts";
import { checkConfig, inOption, shown } from "../../base/validation.ts";
import type {
  Action,
  Environment,
  Episode,
  Observation,
  StartOptions,
  StepResult,
} from "../../contract/environment.ts";
import { checkSplit, episodeOver } from "../errors.ts";
import { hasBox } from "./extract.ts";
import { gradeEpisode } from "./grade.ts";
import { type MathProblem, ownProblems } from "./problems.ts";

const files = z.union([z.string(), z.array(z.string()).readonly()]);

const mathOptions = z.strictObject({
  /**
   * Directory of `train*.jsonl` and `test*.jsonl`-like files, or one JSONL file for both splits. A
   * line is an object with `problem` and `answer`. Default: `$NLAC_DATA/math`, or the embedded set
   * if NLAC_DATA is not set.
   */
  data: z.string().optional(),
  /** Files of each split, in `data` or absolute. Default: train12000.jsonl and test500.jsonl. */
  train: files.optional(),
  test: files.optional(),
  /**
   * Tests on this many of MATH's hardest test problems, and trains on all others. The hardest are
   * the 1,324 problems of level 5 in MATH's own test split; the test set is drawn from them by a
   * fixed seed, and smaller sets are prefixes of larger ones. Paper: 500, not published. Needs
   * MATH's own names, such as "test/algebra/1002.json". Default: none.
   */
  hard: z.int().min(1).optional(),
  /** Uses only these levels. Default: all. */
  levels: z.array(z.number()).readonly().optional(),
  /** Uses only these subjects. Default: all. */
  subjects: z.array(z.string()).readonly().optional(),
  /**
   * Whether an answer outside of \boxed{} scores 0, as stated in the acting prompt and the
   * critic's. Default true; with false, `gradeMath` reads the answer from the text.
   */
  requireBox: z.boolean().default(true),
  /**
   * Replaces the grader: whether a prediction is right. Another result than true or false is an
   * ERR_ENVIRONMENT. Default: `gradeMath`.
   */
  grade: z
    .custom<(gold: string, prediction: string) => Promise<boolean>>((given) => typeof given === "function")
    .default(() => gradeEpisode),
});

/** Options of `environments.math`. */
export type MathOptions = z.input<typeof mathOptions>;
/** The options with their defaults. */
type Settings = z.output<typeof mathOptions>;

const introduction =
  "You solve problems in mathematics. You have one attempt at each; only its final answer is graded.";

/** The environment of mathematical problems. Throws ERR_CONFIG for invalid options. */
export function math(options: MathOptions = {}): Environment<MathProblem> {
  const settings = inOption("math", () => checkConfig(mathOptions, options));
  const { grade, requireBox } = settings;
  const loaded = new Map<string, Promise<MathProblem[]>>();

  async function start(task: MathProblem, { signal }: StartOptions): Promise<Episode> {
    throwIfAborted(signal);
    let over = false;
    const observation: Observation = {
      messages: [
        { role: "system", content: introduction },
        { role: "user", content: task.problem },
      ],
    };
    return {
      observation,
      async step(action: Action): Promise<StepResult> {
        if (over) throw episodeOver("math");
        throwIfAborted(signal);
        over = true;
        const boxed = hasBox(action.text);
        const correct = (boxed || !requireBox) && (await grade(task.answer, action.text));
        if (typeof correct !== "boolean")
          throw new NlacError(
            "ERR_ENVIRONMENT",
            `math: grade must return true or false; it returned ${shown(correct)}.`,
          );
        return {
          observation: [],
          reward: correct ? 1 : 0,
          terminated: true,
          truncated: false,
          info: { correct, boxed, gold: task.answer },
        };
      },
      async close() {
        over = true;
      },
    };
  }

  return {
    name: "math",
    actionFormat: "solution",
    maxTurns: 1,
    idle: { text: "I do not know." },
    tasks(split) {
      checkSplit("math", split);
      const tasks = getOrAdd(loaded, split, () => {
        const loading = load(split, settings);
        loading.catch(() => loaded.delete(split)); // so that the next call reads the file again
        return loading;
      });
      return tasks.then((all) => [...all]);
    },
    taskId: (task) => task.id,
    start,
    close: async () => {},
  };
}

async function load(split: "train" | "test", options: Settings): Promise<MathProblem[]> {
  const all =
    options.hard === undefined
      ? await read(split, options)
      : await splitByHardness(split, options.hard, options);
  const kept = all.filter(
    (problem) =>
      (options.levels === undefined ||
        (problem.level !== undefined && options.levels.includes(problem.level))) &&
      (options.subjects === undefined ||
        (problem.subject !== undefined && options.subjects.includes(problem.subject))),
  );
  if (kept.length === 0)
    throw new NlacError("ERR_CONFIG", `math: the ${split} split has no problem that matches the options.`);
  return kept;
}

async function read(split: "train" | "test", options: Settings): Promise<MathProblem[]> {
  const files = filesOf(split, options);
  return files === undefined ? ownProblems[split] : (await Promise.all(files.map(readProblems))).flat();
}

/** Splits the problems of both files: the hard problems, and all others as the train split. */
async function splitByHardness(
  split: "train" | "test",
  count: number,
  options: Settings,
): Promise<MathProblem[]> {
  if (filesOf("test", options) === undefined) {
    throw new NotHere(
      `math: the ${count} hard problems are chosen from MATH's files; set NLAC_DATA or "data" to their directory.`,
    );
  }
  const both = [...(await read("train", options)), ...(await read("test", options))];
  // One file may serve both splits.
  const all = [...new Map(both.map((problem) => [problem.id, problem])).values()];
  const hardest = all
    .filter((problem) => problem.level === 5 && problem.id.startsWith("test/"))
    .sort((a, b) => (a.id < b.id ? -1 : 1));
  if (hardest.length < count) {
    throw new NlacError(
      "ERR_CONFIG",
      `math: hard is ${count}, but the data has only ${hardest.length} problems of level 5 whose id begins with "test/".`,
    );
  }
  const order = permutation(hardest.length, seedOfHard, streams.split);
  const hard = new Set(order.slice(0, count).map((i) => hardest[i]!));
  return split === "test" ? [...hard] : all.filter((problem) => !hard.has(problem));
}

/** Changing this changes which problems are the hard ones. */
const seedOfHard = 0;
const defaultFiles = { train: "train12000.jsonl", test: "test500.jsonl" };

/** Undefined for the embedded problems. */
function filesOf(split: "train" | "test", options: Settings): string[] | undefined {
  const named = options[split];
  const shared = process.env.NLAC_DATA;
  const data = options.data ?? (shared ? join(shared, "math") : undefined);
  if (named === undefined && data === undefined) return undefined;
  // If data was named, falling back to other problems would be misleading.
  if (data !== undefined && (named === undefined || options.data !== undefined) && !existsSync(data))
    throw new NotHere(`math: there is no ${data}. Set NLAC_DATA or "data" to the directory of MATH's files.`);
  if (named === undefined && statSync(data!).isFile()) return [data!];
  const names =
    named === undefined ? [defaultFiles[split]] : typeof named === "string" ? [named] : [...named];
  return names.map((name) => {
    const inData = data === undefined || isAbsolute(name) ? name : join(data, name);
    const path = options.data === undefined && !existsSync(inData) ? name : inData;
    if (!existsSync(path))
      throw new NotHere(`math: there is no ${path}. Set "data" to its directory, or "${split}" to the file.`);
    return path;
  });
}

async function readProblems(path: string): Promise<MathProblem[]> {
  let text: string;
  try {
    text = await readFile(path, "utf8");
  } catch (error) {
    throw new NlacError("ERR_IO", `math: cannot read ${path}.`, { cause: error });
  }
  const problems: MathProblem[] = [];
  for (const [i, line] of text.split("\n").entries()) {
    if (line.trim() === "") continue;
    problems.push(readProblem(line, `${path}:${i + 1}`));
  }
  return problems;
}

function readProblem(line: string, place: string): MathProblem {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch (error) {
    throw new NlacError("ERR_CONFIG", `math: ${place} is not JSON.`, { cause: error });
  }
  const { problem, answer, solution, subject, level, unique_id, id } = (value ?? {}) as Record<
    string,
    unknown
  >;
  if (typeof problem !== "string" || typeof answer !== "string") {
    throw new NlacError("ERR_CONFIG", `math: ${place} must have the strings "problem" and "answer".`);
  }
  const name = unique_id ?? id;
  return {
    id: typeof name === "string" ? name : createHash("sha256").update(problem).digest("hex").slice(0, 16),
    problem,
    answer,
    ...(typeof solution === "string" ? { solution } : {}),
    ...(typeof subject === "string" ? { subject } : {}),
    ...(typeof level === "number" ? { level } : {}),
  };
}
