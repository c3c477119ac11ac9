import { availableParallelism } from "node:os";
import { defineConfig } from "vitest/config";
import { BaseSequencer, type TestSpecification } from "vitest/node";

// Files whose tests use several threads, or measure time or memory: one after another.
const alone = [
  "test/dash/server.test.ts",
  "test/learner/**/*.test.ts",
  "test/ops/**/*.test.ts",
  "test/ranks/{measure,silence}.test.ts",
  "test/serve/{answers,call-forms,chat,conversation-cache,episodes,hostile,server}.test.ts",
  "test/services/storm.test.ts",
  "test/sinks/**/*.test.ts",
  "test/tokens/conversation.test.ts",
];

/** Starts the longest files first, so that none of them runs alone at the end. */
class LongestFirst extends BaseSequencer {
  static readonly longest = ["test/torture/campaigns", "test/ranks/", "test/package", "test/run/", "test/cli/"];

  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const rank = ({ moduleId }: TestSpecification) => {
      const index = LongestFirst.longest.findIndex((part) => moduleId.includes(part));
      return index < 0 ? LongestFirst.longest.length : index;
    };
    const sorted = await super.sort(files);
    return sorted.sort((a, b) => rank(a) - rank(b));
  }
}

// The tests' own servers need no proxy.
const env = { NO_PROXY: "127.0.0.1,localhost", no_proxy: "127.0.0.1,localhost" };

export default defineConfig({
  test: {
    globalSetup: ["test/support/temporary.ts"],
    setupFiles: ["test/support/properties.ts"],
    testTimeout: 120_000,
    hookTimeout: 120_000,
    sequence: { sequencer: LongestFirst },
    projects: [
      {
        extends: true,
        test: {
          name: "parallel",
          include: ["test/**/*.test.ts"],
          exclude: alone,
          // A file per core, and a thread per file.
          maxWorkers: availableParallelism(),
          env: { ...env, NLAC_THREADS: "1", OMP_NUM_THREADS: "1" },
          sequence: { groupOrder: 0 },
        },
      },
      {
        extends: true,
        test: { name: "alone", include: alone, fileParallelism: false, env, sequence: { groupOrder: 1 } },
      },
    ],
  },
  resolve: {
    alias: [
      { find: /^nlac$/, replacement: new URL("./lib/index.ts", import.meta.url).pathname },
      { find: /^nlac\/(models|serving)$/, replacement: new URL("./lib/$1.ts", import.meta.url).pathname },
      { find: /^nlac\/(.+)$/, replacement: new URL("./lib/$1/index.ts", import.meta.url).pathname },
    ],
  },
});
