import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { packageRoot } from "../lib/native/paths.ts";
import { temporaryDirectory, write } from "./support/files-and-servers.ts";

async function faults(files: Record<string, string>): Promise<string[]> {
  const { checkLayers } = (await import(join(packageRoot(), "scripts/check-layers.mjs"))) as {
    checkLayers(root: string): string[];
  };
  const root = temporaryDirectory();
  for (const [path, text] of Object.entries(files)) write(join(root, path), text);
  return checkLayers(root);
}

const errors = { "lib/base/errors.ts": "" };

describe("check-layers", () => {
  it("accepts imports that point down", async () => {
    const fine = {
      "lib/cli/train.ts": 'import { train } from "../algorithms/nlac.ts";\nconst x = import("./x.ts");',
      "lib/cli/x.ts": '// import "../nowhere.ts"',
      "lib/algorithms/nlac.ts": 'import type { A } from "../roles/a.ts";\nimport "../base/errors.ts";',
      "lib/roles/a.ts": 'import { b } from "../native/b.ts";',
      "lib/native/b.ts": 'createRequire(import.meta.url)("x.node");',
      "native/core/loss/a.cc": '#include "core/loss/a.h"\n#include <torch/torch.h>',
      "native/cuda/a.cu": '#include <cuda_runtime.h>\n#include "core/host_device.h"',
    };
    expect(await faults({ ...errors, ...fine })).toEqual([]);
  });

  it.each<[string, Record<string, string>, RegExp]>([
    [
      "upwards",
      { "lib/native/a.ts": 'import { x } from "../roles/b.ts";', "lib/roles/b.ts": "" },
      /layer above/,
    ],
    [
      "types upwards",
      { "lib/run/a.ts": 'import type { X } from "../cli/b.ts";', "lib/cli/b.ts": "" },
      /layer above/,
    ],
    [
      "re-exports upwards",
      { "lib/base/errors.ts": 'export { x } from "../native/b.ts";', "lib/native/b.ts": "" },
      /above/,
    ],
    [
      "a folder of the same layer",
      { "lib/run/a.ts": 'import { x } from "../playing/b.ts";', "lib/playing/b.ts": "" },
      /another folder of its layer/,
    ],
    [
      "an algorithm in another",
      { "lib/algorithms/ppo.ts": 'import { x } from "./nlac.ts";', "lib/algorithms/nlac.ts": "" },
      /another \(lib\/algorithms\/nlac.ts\)/,
    ],
    ["a .node elsewhere", { "lib/tokens/a.ts": 'const file = "build/nlac.node";' }, /only lib\/native/],
    ["a file of no layer", { "lib/stray/a.ts": "" }, /belongs to no layer/],
    ["what does not exist", { "lib/cli/a.ts": 'import "./gone.ts";' }, /does not exist/],
    [
      "cycles",
      { "lib/run/a.ts": 'import { b } from "./b.ts";', "lib/run/b.ts": 'import { a } from "./a.ts";' },
      /^import cycle: lib\/run\/a.ts → lib\/run\/b.ts → lib\/run\/a.ts$/,
    ],
    [
      "cycles through types and re-exports",
      {
        "lib/run/a.ts": 'export { b } from "./b.ts";',
        "lib/run/b.ts": 'import type { C } from "./c.ts";',
        "lib/run/c.ts": 'import { type A } from "./a.ts";',
      },
      /^import cycle: lib\/run\/a.ts → lib\/run\/b.ts → lib\/run\/c.ts → lib\/run\/a.ts$/,
    ],
    [
      "a component's imports",
      { "lib/dash/browser/a.tsx": 'import "../../cli/b.ts";', "lib/cli/b.ts": "" },
      /above/,
    ],
    ["Node in the core", { "native/core/a.cc": "#include <node_api.h>" }, /must not use Node/],
    ["the binding in the core", { "native/core/a.h": '  #include "binding/convert.h"' }, /must not use Node/],
    ["torch in a kernel", { "native/cuda/a.cu": "#include <ATen/ATen.h>" }, /plain pointers/],
    [
      "torch in the plain half",
      { "native/core/io/a.cc": "#include <c10/util/Exception.h>" },
      /have no torch/,
    ],
  ])("reports %s", async (_name, files, message) => {
    const found = await faults({ ...errors, ...files });
    expect(found).toHaveLength(1);
    expect(found[0]).toMatch(message);
  });
});
