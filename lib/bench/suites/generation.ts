/**
 * Writing texts with a small language model in bfloat16: one, some and many at once, and NLAC's own pattern, several
 * texts on each of many long beginnings. Prompts are random ids; nothing of a call is left for the next.
 */

import { Learner } from "../../learner.ts";
import { DEFAULT_MODEL, KNOWN_MODELS } from "../../models.ts";
import { randomBits } from "../inputs.ts";
import type { Case, CaseOptions, Job, Subject, Suite } from "../suite.ts";
import { cudaCases, prepareCuda } from "./generation-cuda.ts";

type Parameters = {
  /** File of the model in the cache, for the peers. */
  file: string;
  /** Beginnings, and texts on each: their tokens, those of a text's own part of the prompt, and those written. */
  groups: number;
  texts: number;
  shared: number;
  own: number;
  written: number;
};

/** Ids that are words in every vocabulary of the model's family. */
const firstId = 1000;
const ids = 40_000;

export const generation: Suite = {
  name: "generation",
  summary: "writing texts in bfloat16, one to many at once",

  cases({ device, quick }: CaseOptions): Case[] {
    if (device !== "cpu" && !quick) return cudaCases();
    const { file } = KNOWN_MODELS.find(({ name }) => name === DEFAULT_MODEL)!;
    const make = (id: string, title: string, what: Omit<Parameters, "file">): Case => {
      const parameters: Parameters = { file, ...what };
      const shares = what.texts > 1;
      const row = { resultBytes: null };
      return {
        id,
        title: `${DEFAULT_MODEL} · ${title}`,
        parameters,
        timing: { warmup: 1, calls: quick || shares ? 1 : 3, seconds: 0 },
        work: { amount: what.groups * what.texts * what.written, unit: "tokens/s" },
        tolerance: 0,
        rows: [
          { ...row, name: "nlac", role: "ours", implementation: "nlac" },
          ...(shares
            ? [{ ...row, name: "nlac, one text a call", role: "ours", implementation: "alone" } as const]
            : []),
          {
            ...{ ...row, name: "transformers", role: "peer", implementation: "transformers" },
            script: "generation.py",
          },
        ],
      };
    };
    const written = quick ? 4 : 100;
    const plain = (count: number) =>
      make(`${count}-at-once`, `${count} at once, prompt 200, ${written} written`, {
        ...{ groups: count, texts: 1, shared: 0, own: 200, written },
      });
    if (quick) return [plain(2)];
    return [
      ...[1, 8, 32].map(plain),
      make("nlac-pattern", "16 beginnings of 1,000 tokens, 5 texts of 40 more on each, 60 written", {
        ...{ groups: 16, texts: 5, shared: 1000, own: 40, written: 60 },
      }),
    ];
  },

  async prepare(job: Job): Promise<Subject> {
    const { implementation, parameters, device, threads } = job;
    if (implementation === "written") return prepareCuda(job);
    const { groups, texts, shared, own, written } = parameters as Parameters;
    const learner = await Learner.load(DEFAULT_MODEL, { device, threads, dtype: "bfloat16" });
    const random = (seed: number, count: number) =>
      Array.from(randomBits(seed, count), (bits) => firstId + (bits % ids));
    const requests = Array.from({ length: groups * texts }, (_, i) => ({
      tokens: [...random(1 + Math.floor(i / texts), shared), ...random(1 + groups + i, own)],
      // Every text is written to its full length.
      ...{ maxNewTokens: written, temperature: 1, seed: i, forbidden: learner.info.eosTokenIds },
    }));
    return {
      before: () => learner.dropCaches(),
      async call() {
        if (implementation !== "alone") {
          await learner.generate(requests);
          return;
        }
        // Without what texts share: batches in which every prompt is read whole.
        for (let text = 0; text < texts; text++) {
          await learner.dropCaches();
          await learner.generate(requests.filter((_, i) => i % texts === text));
        }
      },
    };
  },
};
