#!/usr/bin/env node
// Checks the import rules: imports go to lower layers only and form no cycles, algorithms do not
// import each other, one folder loads .node files, the core does not use Node or the binding, and
// .cu files do not use torch. Imports of types count too.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize, relative } from "node:path";
import { fileURLToPath } from "node:url";

// From the lowest layer up. A file may import from its own folder and from folders of lower layers.
// Folders of the same layer do not import each other.
const LAYERS = [
  ["base"],
  ["contract", "display", "files", "statistics"],
  ["native", "tokens"],
  ["hub", "ops"],
  ["model"],
  ["episodes", "learner", "prompts"],
  ["ranks", "replay", "services"],
  ["environments", "playing", "run", "serve"],
  ["roles", "rollouts", "sinks"],
  ["training"],
  ["algorithms"],
  ["recipe"],
  ["agents"],
  ["estimate", "bench"],
  ["compare"],
  ["report", "dash"],
  ["cli", "index.ts", "models.ts", "serving.ts"],
];

/** Every violation below `root`, one line each. */
export function checkLayers(root) {
  const faults = [];
  const lib = join(root, "lib");
  const folderOf = (file) => relative(lib, file).split("/")[0];
  const layer = (file) => LAYERS.findIndex((folders) => folders.includes(folderOf(file)));
  const graph = new Map();
  for (const file of walk(lib, /\.tsx?$/)) {
    const name = relative(root, file);
    const text = withoutComments(readFileSync(file, "utf8"));
    if (layer(file) < 0)
      faults.push(`${name}: belongs to no layer; add it to LAYERS in scripts/check-layers.mjs`);
    const targets = imports(text, file);
    for (const target of targets) {
      const to = relative(root, target);
      if (!existsSync(target)) faults.push(`${name}: imports ${to}, which does not exist`);
      if (layer(target) > layer(file)) faults.push(`${name}: imports ${to}, a layer above its own`);
      if (layer(target) === layer(file) && folderOf(target) !== folderOf(file))
        faults.push(`${name}: imports ${to}, another folder of its layer`);
      if (name.startsWith("lib/algorithms/") && to.startsWith("lib/algorithms/"))
        faults.push(`${name}: an algorithm imports another (${to})`);
    }
    graph.set(file, targets);
    if (
      !name.startsWith("lib/native/") &&
      /\bprocess\.dlopen\b|\bcreateRequire\b|["'`][^"'`]*\.node["'`]/.test(text)
    )
      faults.push(`${name}: loads native code; only lib/native may`);
  }
  for (const cycle of cycles(graph))
    faults.push(`import cycle: ${cycle.map((f) => relative(root, f)).join(" → ")}`);

  const forbid = (folder, kinds, pattern, why) => {
    for (const file of walk(join(root, folder), kinds))
      for (const [, header] of readFileSync(file, "utf8").matchAll(/^\s*#\s*include\s*[<"]([^>"]+)[>"]/gm))
        if (pattern.test(header)) faults.push(`${relative(root, file)}: includes ${header}; ${why}`);
  };
  const torch = /^(torch|ATen|c10)\//;
  forbid(
    "native/core",
    /\.(h|cc|inc)$/,
    /^(node|napi|uv|v8|js_native)|(^|\/)binding\//,
    "the core must not use Node",
  );
  forbid("native/core/io", /\.(h|cc)$/, torch, "sanitizer and fuzzer builds have no torch");
  forbid("native/core/replay", /\.(h|cc)$/, torch, "sanitizer and fuzzer builds have no torch");
  forbid("native/cuda", /\.(cu|cuh|h)$/, torch, "kernels take plain pointers");
  forbid("native/loader", /\.(h|cc)$/, torch, "the loader runs before libtorch is loaded");
  return faults;
}

function walk(directory, kinds) {
  if (!existsSync(directory)) return [];
  return readdirSync(directory, { withFileTypes: true }).flatMap((entry) => {
    const path = join(directory, entry.name);
    return entry.isDirectory() ? walk(path, kinds) : kinds.test(entry.name) ? [path] : [];
  });
}

function withoutComments(text) {
  return text.replace(/\/\*[\s\S]*?\*\//g, "").replace(/^\s*\/\/.*$/gm, "");
}

/** The files that `text` imports or re-exports by a relative path. */
function imports(text, file) {
  const specifiers = [
    ...text.matchAll(/\b(?:import|export)\b[^;"'()]*?\bfrom\s*["']([^"']+)["']/g),
    ...text.matchAll(/\bimport\s*\(?\s*["']([^"']+)["']/g),
  ].map(([, specifier]) => specifier);
  return specifiers
    .filter((specifier) => specifier.startsWith("."))
    .map((specifier) => normalize(join(dirname(file), specifier)));
}

/** Each cycle of imports, as the path from a file back to it. */
function cycles(graph) {
  const found = [];
  const state = new Map();
  const visit = (file, path) => {
    if (state.get(file) === "done") return;
    if (state.get(file) === "open") return found.push([...path.slice(path.indexOf(file)), file]);
    state.set(file, "open");
    for (const next of graph.get(file) ?? []) visit(next, [...path, file]);
    state.set(file, "done");
  };
  for (const file of graph.keys()) visit(file, []);
  return found;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const faults = checkLayers(fileURLToPath(new URL("..", import.meta.url)).replace(/\/$/, ""));
  for (const fault of faults) console.error(fault);
  console.log(faults.length === 0 ? "The layers hold." : `${faults.length} faults.`);
  process.exitCode = faults.length === 0 ? 0 : 1;
}
