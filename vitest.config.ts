import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: ["test/support/temporary.ts"],
    setupFiles: ["test/support/properties.ts"],
    // The core uses every core; test files in parallel would only slow each other down.
    fileParallelism: false,
    testTimeout: 120_000,
    hookTimeout: 120_000,
  },
  resolve: {
    alias: [
      { find: /^nlac$/, replacement: new URL("./lib/index.ts", import.meta.url).pathname },
      { find: /^nlac\/(.+)$/, replacement: new URL("./lib/$1/index.ts", import.meta.url).pathname },
    ],
  },
});
