#!/usr/bin/env node
// Packs what scripts/gpu-check.sh needs on a GPU machine that has Python with torch, but neither Node nor a network:
// Node, the packages that the tests and benchmarks load, and build/cuda's addon and test programs. Build them first:
//   node scripts/build-native.mjs --cuda --tests
//   node scripts/gpu-bundle.mjs DIR
// There, in a copy of the tree with DIR: bash DIR/unpack.sh, which prints the command to go on with.
import { execFileSync } from "node:child_process";
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url)).replace(/\/$/, "");

/** Packages that are large and only needed for types, pages or grading. */
const omitted = /^(@types\/.*|typescript|esbuild|@esbuild\/.*|mathjs|playwright.*|jsdom|happy-dom)$/;
const roots = ["vitest", "jiti", "fast-check"];

/** The directories of `names` and of all that they depend on, as Node finds them. */
function closure(names, from = root, found = new Set()) {
  for (const name of names.filter((name) => !omitted.test(name))) {
    const directory = directoryOf(name, from);
    if (directory === undefined || found.has(directory)) continue;
    found.add(directory);
    const { dependencies, optionalDependencies } = packageAt(directory);
    closure(Object.keys({ ...dependencies, ...optionalDependencies }), directory, found);
  }
  return found;
}

function directoryOf(name, from) {
  for (let at = from; ; at = dirname(at)) {
    const directory = join(at, "node_modules", name);
    if (existsSync(join(directory, "package.json"))) return directory;
    if (at === root) return undefined;
  }
}

const packageAt = (directory) => JSON.parse(readFileSync(join(directory, "package.json"), "utf8"));

/** Packs `paths` of `directory` into a file. */
function pack(file, directory, paths, options = []) {
  const [tar, xz] = [
    ["cf", "-", ...options, "-C", directory, ...paths],
    ["-9", "-T0"],
  ];
  const archive = execFileSync("tar", tar, { maxBuffer: 2 ** 31 });
  const packed = execFileSync("xz", xz, { input: archive, maxBuffer: 2 ** 31 });
  writeFileSync(file, packed);
  console.log(`${relative(process.cwd(), file)}: ${(packed.length / 2 ** 20).toFixed(1)} MiB`);
}

const UNPACK = `#!/bin/bash
# Unpacks this bundle into the tree around it, and prints the command to go on with.
set -euo pipefail
bundle="$(cd "$(dirname "$0")" && pwd)"
cd "$bundle" && while [ ! -f scripts/gpu-check.sh ]; do
  [ "$PWD" != / ] || { echo "This bundle is not in a copy of nlac's tree." >&2; exit 1; }
  cd ..
done
for archive in node node_modules build; do tar xJf "$bundle/$archive.tar.xz"; done
torch="$(python3 -c 'import importlib.util; print(importlib.util.find_spec("torch").submodule_search_locations[0])')"
echo "NODE=$PWD/build/node/node NLAC_LIBTORCH=$torch NLAC_OFFLINE=1 scripts/gpu-check.sh tests training losses sanitizer"
`;

function main([target]) {
  if (target === undefined || target.startsWith("-")) {
    console.log("usage: node scripts/gpu-bundle.mjs DIR");
    return;
  }
  const out = resolve(target);
  mkdirSync(out, { recursive: true });
  const staged = mkdtempSync(join(tmpdir(), "nlac-bundle-"));
  try {
    mkdirSync(join(staged, "build/node"), { recursive: true });
    cpSync(process.execPath, join(staged, "build/node/node"), { dereference: true });
    const tests = join(root, "build/cuda/native/test");
    mkdirSync(join(staged, "build/cuda/native/test"), { recursive: true });
    const programs = readdirSync(tests).filter((name) => /^test_[a-z]+$/.test(name));
    const files = ["nlac.node", "nlac_loader.node", ...programs.map((name) => `native/test/${name}`)];
    for (const file of files) cpSync(join(root, "build/cuda", file), join(staged, "build/cuda", file));
    for (const file of ["build/node/node", ...files.map((file) => `build/cuda/${file}`)])
      execFileSync("strip", [join(staged, file)]);
    pack(join(out, "node.tar.xz"), staged, ["build/node"]);
    pack(join(out, "build.tar.xz"), staged, ["build/cuda"]);
  } finally {
    rmSync(staged, { recursive: true });
  }
  const packages = closure([...Object.keys(packageAt(root).dependencies), ...roots]);
  const documents = ["*.md", "*.map", "*.d.ts", "*.d.mts", "*.d.cts", "*.wasm"];
  pack(
    join(out, "node_modules.tar.xz"),
    root,
    [...packages].map((directory) => relative(root, directory)),
    documents.map((pattern) => `--exclude=${pattern}`),
  );
  writeFileSync(join(out, "unpack.sh"), UNPACK);
}

main(process.argv.slice(2));
