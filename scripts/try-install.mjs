#!/usr/bin/env node
// Installs nlac as a user does. Run with --help.
import { execFileSync, spawn } from "node:child_process";
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
import { delimiter, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { importLib } from "./build-native.mjs";
import { clientSettings, manifestOf, startRegistry } from "./local-registry.mjs";
import { describe } from "./prebuild.mjs";

const HELP = `usage: node scripts/try-install.mjs [TARBALL] [--short] [--clients LIST] [--nodes LIST]

Offers a tarball in a registry on this machine, and installs it from there into
empty projects with several clients, without install scripts. In each project:
loads the core as an ES module, as CommonJS and in a Worker, and checks types in
both module systems. Then the same programs run with several versions of Node,
and a project of "nlac init" runs its tests. Prints a table. Exits with 1 after
a failure. A client that cannot be fetched is reported as SKIPPED. Without a
TARBALL, packs the checkout (dist/) with the addon of build/cpu.

  --short         the npm of this Node, and pnpm; no other Node, no nlac init
  --clients LIST  default: npm@10,npm@11,npm@12,pnpm@10,pnpm@12,yarn@1,yarn@4,bun
  --nodes LIST    major versions, default: 20,22,24,26
  --typescript V  version of TypeScript, default: as nlac's own`;

const root = fileURLToPath(new URL("..", import.meta.url)).replace(/\/$/, "");
const minutes = 60_000;

/**
 * How each client installs: the package that it comes from, its program, and its arguments; `node`
 * is the oldest Node that runs the client.
 */
const clients = {
  npm: { package: "npm", program: "npm", args: ["install", "--no-audit", "--no-fund"] },
  "npm@12": { package: "npm", program: "npm", args: ["install", "--no-audit", "--no-fund"], node: 24 },
  pnpm: { package: "pnpm", program: "pnpm", args: ["add"] },
  "pnpm@11": { package: "pnpm", program: "pnpm", args: ["add"], node: 24 },
  yarn: { package: "yarn", program: "yarn", args: ["add", "--non-interactive"] },
  "yarn@4": { package: "@yarnpkg/cli-dist", program: "yarn", args: ["add"] },
  bun: { package: "bun", program: "bun", args: ["add", "--ignore-scripts"] },
};

const body = `const sampler = new PrioritizedSampler({ capacity: 4, alpha: 1 });
sampler.set(Int32Array.of(2), Float32Array.of(1));
if (sampler.sample(1).indices[0] !== 2) throw new Error("wrong draw");
console.log("loaded");
`;
const types = `const sampler: PrioritizedSampler = new PrioritizedSampler({ capacity: 4, alpha: 1 });
export const indices: Int32Array = sampler.sample(1).indices;
// @ts-expect-error: if the types were lost, this would be no error.
new PrioritizedSampler({ capacity: "4", alpha: 1 });
export const load = (): Promise<Learner> => Learner.load("nlac-tiny", { device: "cpu" });
`;
const files = {
  "package.json": '{ "name": "project", "private": true, "version": "1.0.0" }\n',
  "main.mjs": `import { PrioritizedSampler } from "nlac/ops";\n${body}`,
  "main.cjs": `const { PrioritizedSampler } = require("nlac/ops");\n${body}`,
  "worker.mjs": `import { Worker } from "node:worker_threads";
new Worker(new URL("./main.mjs", import.meta.url));\n`,
  "worker.cjs": `const { Worker } = require("node:worker_threads");
new Worker(require.resolve("./main.cjs"));\n`,
  "types.mts": `import { Learner } from "nlac";
import { PrioritizedSampler } from "nlac/ops";
import { defineEnvironment } from "nlac/environments";\n${types}export const define = defineEnvironment;\n`,
  "types.cts": `import { Learner } from "nlac";\nimport { PrioritizedSampler } from "nlac/ops";\n${types}`,
  "tsconfig.json": `{
  "compilerOptions": {
    "module": "nodenext", "target": "es2023", "strict": true, "noEmit": true, "skipLibCheck": true, "types": ["node"]
  },
  "files": ["types.mts", "types.cts"]
}\n`,
};
/** Programs that load the core. */
const programs = ["main.mjs", "main.cjs", "worker.mjs", "worker.cjs"];

let failed = 0;
let skipped = 0;

/** Runs a program. Resolves with undefined, or why it failed. */
function run(program, args, { cwd, env = {}, expect, timeout = 15 * minutes } = {}) {
  return new Promise((resolve) => {
    const child = spawn(program, args, {
      cwd,
      env: { ...process.env, ...env },
      stdio: ["ignore", "pipe", "pipe"],
      timeout,
      killSignal: "SIGKILL",
    });
    let text = "";
    for (const stream of [child.stdout, child.stderr])
      stream.on("data", (chunk) => {
        text += chunk;
      });
    child.on("error", (error) => resolve(error.message));
    child.on("close", (code, signal) => {
      const last = text.trim().split("\n").slice(-12).join("\n  ");
      if (code !== 0) resolve(`exit ${code ?? signal}: ${last}`);
      else resolve(expect?.test(text) === false ? `printed ${JSON.stringify(last)}` : undefined);
    });
  });
}

/** Runs a step, prints its result, and returns the cell of a table: its seconds, or "FAILED". */
async function step(name, program, args, options) {
  const started = Date.now();
  const problem = await run(program, args, options);
  const seconds = `${Math.round((Date.now() - started) / 1000)} s`;
  if (problem !== undefined) failed++;
  console.log(
    problem === undefined ? `ok     ${name} (${seconds})` : `FAILED ${name} (${seconds}): ${problem}`,
  );
  return problem === undefined ? seconds : "FAILED";
}

/**
 * Installs a package of the default registry into `directory`, without scripts; returns its
 * version, or why not.
 */
async function fetchTool(directory, name, version) {
  mkdirSync(directory, { recursive: true });
  const wanted = version === undefined ? name : `${name}@${version}`;
  const args = ["install", "--prefix", directory, "--no-audit", "--no-fund", "--ignore-scripts", wanted];
  const problem = await run("npm", args, { timeout: 5 * minutes });
  const path = join(directory, "node_modules", name, "package.json");
  if (problem !== undefined || !existsSync(path)) return { problem: problem ?? `${name} is not there` };
  return { version: JSON.parse(readFileSync(path, "utf8")).version };
}

/**
 * Packs the checkout into `scratch`, an empty directory, with the addon of build/cpu as its
 * prebuilt core.
 */
export async function pack(scratch) {
  const { ADDON_FILES } = await importLib("native/load");
  const pack = async (cwd) => {
    const problem = await run("npm", ["pack", "--ignore-scripts", "--pack-destination", scratch], { cwd });
    if (problem !== undefined) throw new Error(`npm pack: ${problem}`);
    return join(
      scratch,
      readdirSync(scratch).find((name) => name.endsWith(".tgz")),
    );
  };
  const bare = await pack(root);
  const unpacked = join(scratch, "package");
  await run("tar", ["xzf", bare, "-C", scratch]);
  rmSync(bare);
  const target = join(unpacked, "prebuilds", `${process.platform}-${process.arch}`, "cpu");
  rmSync(join(unpacked, "prebuilds"), { recursive: true, force: true });
  mkdirSync(target, { recursive: true });
  for (const name of ADDON_FILES) {
    cpSync(join(root, "build", "cpu", name), join(target, name));
    await run("strip", ["--strip-all", join(target, name)]);
  }
  console.log("symbols of the addon:", (await describe(target, "cpu")).symbols);
  return pack(unpacked);
}

/** Why npm would run a script when it installs this package; undefined if it would not. */
function installScriptOf(tarball) {
  const { scripts = {}, gypfile } = manifestOf(tarball);
  const named = ["preinstall", "install", "postinstall"].find((name) => name in scripts);
  if (named !== undefined) return `the script ${named}`;
  const list = execFileSync("tar", ["tzf", tarball], { encoding: "utf8" });
  return gypfile !== false && list.includes("package/binding.gyp") ? "binding.gyp" : undefined;
}

/**
 * Where a client or a Node is, and its version; it is fetched once. Undefined, and a message, if it
 * cannot be fetched.
 */
function tools(scratch) {
  const found = new Map();
  const get = async (key, name, version) => {
    if (!found.has(key)) {
      const directory = join(scratch, `tool-${key.replaceAll(/[@/]/g, "-")}`);
      const { problem, version: actual } = await fetchTool(directory, name, version);
      if (problem !== undefined) {
        skipped++;
        console.log(`SKIPPED ${key}: it cannot be fetched: ${problem}`);
      }
      found.set(key, problem === undefined ? { directory, version: actual } : undefined);
    }
    return found.get(key);
  };
  return {
    /** The directory of the program of a Node. */
    async node(major) {
      const name = `node-${process.platform}-${process.arch}`;
      const tool = await get(`node@${major}`, name, major);
      return tool && { ...tool, bin: join(tool.directory, "node_modules", name, "bin") };
    },
    async client(key, name, version) {
      const tool = await get(key, name, version);
      if (tool === undefined) return undefined;
      // bun's own package gets its program by an install script; an optional dependency has it
      // already.
      const arch = process.arch === "arm64" ? "aarch64" : process.arch;
      const program = join(tool.directory, "node_modules", "@oven", `bun-${process.platform}-${arch}`, "bin");
      return { ...tool, bin: name === "bun" ? program : join(tool.directory, "node_modules", ".bin") };
    },
  };
}

/** An empty project. */
function project(scratch, name) {
  const cwd = join(scratch, name.replaceAll(/[@/]/g, "-"));
  mkdirSync(cwd);
  for (const [file, text] of Object.entries(files)) writeFileSync(join(cwd, file), text);
  return cwd;
}

function printTable(head, rows) {
  const widths = head.map((title, i) => Math.max(title.length, ...rows.map((row) => row[i]?.length ?? 0)));
  const line = (row) => `| ${widths.map((width, i) => (row[i] ?? "").padEnd(width)).join(" | ")} |`;
  console.log([line(head), line(widths.map((width) => "-".repeat(width))), ...rows.map(line)].join("\n"));
}

/**
 * Installs with every client, and runs the programs. Returns the table's rows, and the first
 * project.
 */
async function tryClients(chosen, { scratch, available, env, packages, once }) {
  const rows = [];
  let first;
  for (const client of chosen) {
    const { package: name, program, args, node } = clients[client] ?? clients[client.split("@")[0]] ?? {};
    if (name === undefined) throw new Error(`unknown client ${client}`);
    const [, version] = client.split("@");
    let path = process.env.PATH;
    // The client that came with this Node is on the PATH.
    let used = { version: "" };
    if (version !== undefined || name !== "npm") {
      used = await available.client(client, name, version);
      const runs = node === undefined || Number(process.versions.node.split(".")[0]) >= node;
      const runtime = runs ? { bin: dirname(process.execPath) } : await available.node(node);
      if (used === undefined || runtime === undefined) {
        rows.push([client, "SKIPPED"]);
        continue;
      }
      path = [used.bin, runtime.bin, path].join(delimiter);
    } else used.version = execFileSync("npm", ["--version"], { encoding: "utf8" }).trim();
    const label = `${program} ${used.version}`;
    const cwd = project(scratch, client);
    const call = { cwd, env: { ...env, PATH: path } };
    const installed = await step(`${label}: install`, program, [...args, "nlac", ...packages], call);
    const row = [label, installed];
    rows.push(row);
    if (installed === "FAILED") continue;
    if (first === undefined) {
      first = { cwd, client: label };
      await once(first);
    }
    const load = (file) =>
      step(`${label}: ${file}`, process.execPath, [file], { cwd, expect: /^loaded$/m, timeout: 5 * minutes });
    for (const file of ["main.mjs", "main.cjs", "worker.mjs"]) row.push(await load(file));
    const tsc = join("node_modules", "typescript", "bin", "tsc");
    row.push(await step(`${label}: tsc`, process.execPath, [tsc], { cwd }));
  }
  return { rows, first };
}

async function tryNodes(nodes, { cwd, available }) {
  const rows = [];
  for (const major of nodes) {
    const node = await available.node(major);
    const row = [`Node ${node?.version ?? `${major} SKIPPED`}`];
    rows.push(row);
    const options = { cwd, expect: /^loaded$/m, timeout: 5 * minutes };
    for (const file of node ? programs : [])
      row.push(await step(`${row[0]}: ${file}`, join(node.bin, "node"), [file], options));
  }
  return rows;
}

/** What `nlac init` makes installs, and its own commands pass. */
async function tryInit({ cwd, scratch, env }) {
  const made = join(scratch, "my-agent");
  const here = { cwd: made, env };
  const nlac = join("node_modules", "nlac", "bin", "nlac.js");
  if ((await step("nlac init", process.execPath, [nlac, "init", made], { cwd })) === "FAILED") return;
  const install = ["install", "--no-audit", "--no-fund"];
  if ((await step("nlac init: npm install", "npm", install, here)) === "FAILED") return;
  await step("nlac init: npm test", "npm", ["test"], here);
  await step("nlac init: npm run typecheck", "npm", ["run", "typecheck"], here);
  await step("nlac init: npm run check", "npm", ["run", "check"], here);
}

async function main() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      short: { type: "boolean" },
      clients: { type: "string", default: "npm@10,npm@11,npm@12,pnpm@10,pnpm@12,yarn@1,yarn@4,bun" },
      nodes: { type: "string", default: "20,22,24,26" },
      typescript: { type: "string" },
      help: { type: "boolean", short: "h" },
    },
  });
  if (values.help) return console.log(HELP);
  const list = (text) => text.split(",").filter((item) => item !== "");
  const { devDependencies } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  const packages = [
    `typescript@${values.typescript ?? devDependencies.typescript}`,
    `@types/node@${devDependencies["@types/node"]}`,
  ];
  const scratch = mkdtempSync(join(tmpdir(), "nlac-install-"));
  let registry;
  try {
    writeFileSync(join(scratch, "npmrc"), "");
    const tarball = positionals[0] === undefined ? await pack(scratch) : resolve(positionals[0]);
    const script = installScriptOf(tarball);
    if (script !== undefined) throw new Error(`an installation would run ${script}`);
    registry = await startRegistry(tarball);
    const env = clientSettings(registry.address, scratch);
    const available = tools(scratch);
    // The core that loads must be the tarball's, not one that setup compiled.
    const once = async ({ cwd }) => {
      const nlac = join("node_modules", "nlac", "bin", "nlac.js");
      const expect = /addon loads \(.*\/node_modules\/nlac\/prebuilds\//;
      await step("nlac setup", process.execPath, [nlac, "setup"], { cwd, expect });
      if (!values.short) await step("nlac doctor", process.execPath, [nlac, "doctor"], { cwd });
    };
    const chosen = values.short ? ["npm", "pnpm@10"] : list(values.clients);
    const { rows, first } = await tryClients(chosen, { scratch, available, env, packages, once });
    const nodes =
      first && !values.short ? await tryNodes(list(values.nodes), { cwd: first.cwd, available }) : [];
    if (first && !values.short) await tryInit({ cwd: first.cwd, scratch, env });
    printTable(["client", "install", "ESM", "CommonJS", "Worker", "types"], rows);
    if (nodes.length > 0) printTable(["Node", "ESM", "CommonJS", "Worker, ESM", "Worker, CommonJS"], nodes);
  } finally {
    registry?.server.closeAllConnections();
    registry?.server.close();
    rmSync(scratch, { recursive: true, force: true });
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  await main();
  console.log(
    `${failed === 0 ? "all passed" : `${failed} failed`}${skipped > 0 ? `, ${skipped} SKIPPED` : ""}`,
  );
  process.exitCode = failed === 0 ? 0 : 1;
}
