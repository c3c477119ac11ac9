/**
 * Generation with a small language model: one, some and many sequences at a time, and NLAC's
 * pattern of several sequences on each of many long shared prefixes. Calls share no caches.
 */

import { DEFAULT_MODEL, KNOWN_MODELS } from "../../hub/resolve-model.ts";
import { Learner } from "../../learner/learner.ts";
import { type PromptParameters, prompts } from "../prompts.ts";
import type { Case, CaseOptions, Job, Row, Subject, Suite } from "../suite.ts";
import { cudaCases, prepareCuda } from "./generation-cuda.ts";

export type GenerationParameters = PromptParameters & {
  /** Tokens per sequence. */
  written: number;
};

type Parameters = GenerationParameters & {
  /** The model's file in the cache, for the other libraries. */
  file: string;
};

const row = { resultBytes: null };
const ours: Row = { ...row, name: "nlac", role: "ours", implementation: "nlac" };
const float32: Row = { ...row, name: "nlac, float32", role: "ours", implementation: "float32" };
const int8: Row = { ...row, name: "nlac, int8", role: "ours", implementation: "int8" };
const unshared: Row = { ...row, name: "nlac, nothing shared", role: "ours", implementation: "unshared" };
const transformers: Row = {
  ...{ ...row, name: "transformers, bfloat16", role: "peer", implementation: "transformers" },
  script: "generation.py",
};
const transformersFloat32: Row = {
  ...transformers,
  name: "transformers, float32",
  implementation: "transformers-float32",
};
const llama: Row = {
  ...{ ...row, name: "node-llama-cpp, Q4_1", role: "peer", implementation: "node-llama-cpp" },
  script: "generation-llama.mjs",
};
const llama8: Row = { ...llama, name: "node-llama-cpp, Q8_0", implementation: "node-llama-cpp-q8" };

export const generation: Suite = {
  name: "generation",
  summary: "generation in bfloat16 and float32, one to many sequences at a time",

  cases({ device, quick }: CaseOptions): Case[] {
    if (device !== "cpu" && !quick) return cudaCases();
    const { file } = KNOWN_MODELS.find(({ name }) => name === DEFAULT_MODEL)!;
    const make = (
      id: string,
      title: string,
      what: Omit<Parameters, "file">,
      timing: Pick<Case["timing"], "warmup" | "calls">,
      rows: readonly Row[],
    ): Case => {
      const parameters: Parameters = { file, ...what };
      return {
        ...{ id, title: `${DEFAULT_MODEL} · ${title}`, parameters, rows },
        timing: { ...timing, seconds: 0 },
        work: { amount: what.groups * what.texts * what.written, unit: "tokens/s" },
        tolerance: 0,
      };
    };
    const plain = (count: number, own: number, written: number) =>
      make(
        `${count}-at-once`,
        `${count} at once, prompt ${own}, ${written} generated`,
        { groups: count, texts: 1, shared: 0, own, written },
        { warmup: 1, calls: quick ? 1 : 2 },
        device === "cpu"
          ? [ours, float32, int8, transformers, transformersFloat32, llama, llama8]
          : [ours, transformers],
      );
    const pattern = (transitions: number, shared: number, warmup: number, rows: readonly Row[]) =>
      make(
        `pattern-${transitions}`,
        `${transitions} transitions of ${shared.toLocaleString("en")} tokens, 5 texts of 40 more on each, 60 generated`,
        { groups: transitions, texts: 5, shared, own: 40, written: 60 },
        { warmup, calls: 1 },
        rows,
      );
    const both = [ours, unshared];
    if (quick) return [plain(2, 20, 4), pattern(2, 100, 1, [...both, transformers])];
    return [
      ...[1, 8, 32].map((count) => plain(count, 200, 100)),
      pattern(4, 1000, 1, [...both, transformers]),
      // Minutes: `prepare` has warmed it up.
      pattern(64, 1000, 0, both),
    ];
  },

  async prepare(job: Job): Promise<Subject> {
    const { implementation, parameters, device, threads } = job;
    if (implementation === "written") return prepareCuda(job);
    const int8Generation = implementation === "int8";
    const dtype = implementation === "float32" ? "float32" : "bfloat16";
    const learner = await Learner.load(DEFAULT_MODEL, { device, threads, dtype, int8Generation });
    return generateTexts(learner, parameters as Parameters, implementation !== "unshared");
  },
};

/** Sequences generated to their full length, from prompts as in prompts.ts. */
export async function generateTexts(
  learner: Learner,
  given: GenerationParameters,
  sharing = true,
): Promise<Subject> {
  const requests = prompts(given, sharing).map((tokens, seed) => ({
    ...{ tokens, seed, maxNewTokens: given.written, temperature: 1, forbidden: learner.info.eosTokenIds },
  }));
  // The first sequence packs the matrices.
  await learner.generate([{ ...requests[0]!, maxNewTokens: 1 }]);
  return {
    before: () => learner.dropCaches(),
    async call() {
      await learner.generate(requests);
    },
  };
}
