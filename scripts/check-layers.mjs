#!/usr/bin/env node
// Checks the import rules: imports go to lower layers only, algorithms do not import each other,
// one folder loads .node files, the core does not use Node or the binding, and .cu files do not use
// torch.
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
  ["replay", "services"],
  ["environments", "playing", "run", "serve"],
  ["roles"],
  ["training"],
  ["algorithms"],
  ["recipe"],
  ["estimate", "bench"],
  ["compare"],
  ["report"],
  ["cli", "index.ts"],
];

/** Every violation below `root`, one line each. */
export function checkLayers(root) {
  const faults = [];
  const lib = join(root, "lib");
  const room = (file) => relative(lib, file).split("/")[0];
  const layer = (file) => LAYERS.findIndex((rooms) => rooms.includes(room(file)));
  const graph = new Map();
  for (const file of walk(lib, /\.ts$/)) {
    const name = relative(root, file);
    const text = withoutComments(readFileSync(file, "utf8"));
    if (layer(file) < 0)
      faults.push(`${name}: belongs to no layer; add it to LAYERS in scripts/check-layers.mjs`);
    const values = [];
    for (const { target, typeOnly } of imports(text, file)) {
      const to = relative(root, target);
      if (!existsSync(target)) faults.push(`${name}: imports ${to}, which does not exist`);
      if (layer(target) > layer(file)) faults.push(`${name}: imports ${to}, a layer above its own`);
      if (layer(target) === layer(file) && room(target) !== room(file))
        faults.push(`${name}: imports ${to}, another room of its layer`);
      if (name.startsWith("lib/algorithms/") && to.startsWith("lib/algorithms/"))
        faults.push(`${name}: an algorithm imports another (${to})`);
      if (!typeOnly) values.push(target);
    }
    graph.set(file, values);
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
    "the core never knows Node",
  );
  forbid("native/core/io", /\.(h|cc)$/, torch, "what the sanitizers and fuzzers build needs no torch");
  forbid("native/core/replay", /\.(h|cc)$/, torch, "what the sanitizers and fuzzers build needs no torch");
  forbid("native/cuda", /\.(cu|cuh|h)$/, torch, "a kernel takes plain pointers");
  forbid("native/loader", /\.(h|cc)$/, torch, "the loader runs before libtorch is there");
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

function imports(text, file) {
  const found = [];
  const add = (specifier, typeOnly) => {
    if (specifier.startsWith("."))
      found.push({ target: normalize(join(dirname(file), specifier)), typeOnly });
  };
  for (const [, kind, what, specifier] of text.matchAll(
    /\b(import|export)\b([^;"'()]*?)\bfrom\s*["']([^"']+)["']/g,
  ))
    add(specifier, /^\s*type\b/.test(what) || (kind === "import" && onlyTypes(what)));
  for (const [, specifier] of text.matchAll(/\bimport\s*\(?\s*["']([^"']+)["']/g)) add(specifier, false);
  return found;
}

/** `import { type A, type B }` imports no values either. */
function onlyTypes(what) {
  const names = /^\s*\{([^}]*)\}\s*$/.exec(what)?.[1];
  return names?.split(",").every((name) => name.trim() === "" || name.trim().startsWith("type ")) ?? false;
}

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
