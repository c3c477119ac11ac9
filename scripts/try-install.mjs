#!/usr/bin/env node
// Installs nlac as a user does. Run with --help.
import { execFileSync, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { importLib } from "./build-native.mjs";
import { describe } from "./prebuild.mjs";

const HELP = `usage: node scripts/try-install.mjs [TARBALL] [--short] [--clients LIST] [--nodes LIST]

Offers a tarball in a registry on this machine, installs it from there into empty
projects with several clients, runs the command line, and loads the core in a main thread and in a
worker, as ES modules and as CommonJS, with several versions of Node; each process must exit without
help. Then makes a project with "nlac init", installs it, and runs its tests. Prints one line for
each step. Without a TARBALL, packs the checkout with the addon of build/cpu.

  --short         the client npm that comes with this Node, and this Node only
  --clients LIST  default: npm@11,npm@12,pnpm,yarn@1,yarn@4,bun
  --nodes LIST    major versions, default: 20,22,24,26`;

const root = fileURLToPath(new URL("..", import.meta.url)).replace(/\/$/, "");
const minutes = 60_000;

/** How each client installs `nlac`: the package that it comes from, its program, and its arguments. */
const clients = {
  npm: { package: "npm", program: "npm", args: ["install", "nlac", "--no-audit", "--no-fund"] },
  pnpm: { package: "pnpm", program: "pnpm", args: ["add", "nlac"] },
  yarn: { package: "yarn", program: "yarn", args: ["add", "nlac"] },
  "yarn@4": { package: "@yarnpkg/cli-dist", program: "yarn", args: ["add", "nlac"] },
  bun: { package: "bun", program: "bun", args: ["add", "nlac"] },
};

const body = `const sampler = new PrioritizedSampler({ capacity: 4, alpha: 1 });
sampler.set(Int32Array.of(2), Float32Array.of(1));
if (sampler.sample(1).indices[0] !== 2) throw new Error("wrong draw");
console.log("loaded");`;
/** Programs that load the core, by name. */
const programs = {
  "main.mjs": `import { PrioritizedSampler } from "nlac";\n${body}`,
  "main.cjs": `const { PrioritizedSampler } = require("nlac");\n${body}`,
  "worker.mjs": `import { Worker } from "node:worker_threads";
new Worker(new URL("./main.mjs", import.meta.url));`,
  "worker.cjs": `const { Worker } = require("node:worker_threads");
new Worker(require.resolve("./main.cjs"));`,
};

let failed = 0;
function report(name, started, problem) {
  if (problem !== undefined) failed++;
  const seconds = Math.round((Date.now() - started) / 1000);
  console.log(
    `${problem === undefined ? "ok    " : "FAILED"} ${name} (${seconds} s)${problem ? `: ${problem}` : ""}`,
  );
}

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

async function step(name, program, args, options) {
  const started = Date.now();
  const problem = await run(program, args, options);
  report(name, started, problem);
  return problem === undefined;
}

/** Installs a package from the default registry into `directory`; returns its programs' directory. */
async function tool(directory, ...packages) {
  mkdirSync(directory, { recursive: true });
  const problem = await run("npm", [
    "install",
    "--prefix",
    directory,
    "--no-audit",
    "--no-fund",
    ...packages,
  ]);
  if (problem !== undefined) throw new Error(`${packages}: ${problem}`);
  return join(directory, "node_modules", ".bin");
}

/** Packs the checkout, with the addon of build/cpu as its prebuilt core. */
async function pack(scratch) {
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

/**
 * Starts a registry that has the tarball as nlac, and passes requests for other packages on to npm's
 * registry. Returns it with its address.
 */
async function startRegistry(tarball) {
  const stdout = execFileSync("npm", ["config", "get", "registry"], { encoding: "utf8" });
  const upstream = stdout.trim().replace(/\/$/, "");
  const bytes = readFileSync(tarball);
  const manifest = JSON.parse(
    execFileSync("tar", ["xzOf", tarball, "package/package.json"], { encoding: "utf8" }),
  );
  const { version } = manifest;
  const digest = (algorithm, encoding) => createHash(algorithm).update(bytes).digest(encoding);
  const server = createServer(async (request, response) => {
    try {
      const address = `http://127.0.0.1:${server.address().port}/`;
      if (request.url === "/nlac") {
        const dist = {
          tarball: `${address}nlac/-/nlac-${version}.tgz`,
          shasum: digest("sha1", "hex"),
          integrity: `sha512-${digest("sha512", "base64")}`,
        };
        const time = new Date().toISOString();
        response.setHeader("content-type", "application/json").end(
          JSON.stringify({
            name: "nlac",
            "dist-tags": { latest: version },
            time: { created: time, modified: time, [version]: time },
            versions: { [version]: { ...manifest, dist } },
          }),
        );
      } else if (request.url === `/nlac/-/nlac-${version}.tgz`) {
        response.setHeader("content-type", "application/octet-stream").end(bytes);
      } else {
        const { accept = "*/*" } = request.headers;
        const answer = await fetch(upstream + request.url, { headers: { accept } });
        const type = answer.headers.get("content-type") ?? "application/octet-stream";
        response.writeHead(answer.status, { "content-type": type });
        response.end(Buffer.from(await answer.arrayBuffer()));
      }
    } catch (error) {
      response.writeHead(502).end(String(error));
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, address: `http://127.0.0.1:${server.address().port}/` };
}

/** What makes every client use the registry at `address`, and accept a package of today. */
function settings(address, scratch) {
  return {
    npm_config_registry: address,
    npm_config_userconfig: join(scratch, "npmrc"),
    npm_config_cache: join(scratch, "npm-cache"),
    pnpm_config_registry: address,
    pnpm_config_minimum_release_age: "0",
    pnpm_config_store_dir: join(scratch, "pnpm-store"),
    YARN_REGISTRY: address,
    YARN_NPM_REGISTRY_SERVER: address,
    YARN_NPM_MINIMAL_AGE_GATE: "0",
    YARN_UNSAFE_HTTP_WHITELIST: "127.0.0.1",
    YARN_NODE_LINKER: "node-modules",
    YARN_ENABLE_IMMUTABLE_INSTALLS: "false",
    YARN_ENABLE_TELEMETRY: "0",
    YARN_CACHE_FOLDER: join(scratch, "yarn-cache"),
    BUN_CONFIG_REGISTRY: address,
    BUN_INSTALL_CACHE_DIR: join(scratch, "bun-cache"),
  };
}

/** An empty project. */
function project(scratch, name) {
  const cwd = join(scratch, name.replaceAll(/[@/]/g, "-"));
  mkdirSync(cwd);
  writeFileSync(join(cwd, "package.json"), '{ "name": "project", "private": true, "version": "1.0.0" }\n');
  for (const [file, text] of Object.entries(programs)) writeFileSync(join(cwd, file), text);
  return cwd;
}

async function main() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      short: { type: "boolean" },
      clients: { type: "string" },
      nodes: { type: "string" },
      help: { type: "boolean", short: "h" },
    },
  });
  if (values.help) return console.log(HELP);
  const list = (text) => text.split(",").filter((item) => item !== "");
  const chosen = values.short ? ["npm"] : list(values.clients ?? "npm@11,npm@12,pnpm,yarn@1,yarn@4,bun");
  const nodes = values.short ? [] : list(values.nodes ?? "20,22,24,26");
  const scratch = mkdtempSync(join(tmpdir(), "nlac-install-"));
  let registry;
  try {
    writeFileSync(join(scratch, "npmrc"), "");
    const tarball = positionals[0] === undefined ? await pack(scratch) : resolve(positionals[0]);
    registry = await startRegistry(tarball);
    const env = settings(registry.address, scratch);

    let installed;
    for (const client of chosen) {
      const { package: name, program, args } = clients[client] ?? clients[client.split("@")[0]] ?? {};
      if (name === undefined) throw new Error(`unknown client ${client}`);
      const version = client.split("@")[1];
      const bin =
        version === undefined && name === "npm"
          ? undefined
          : await tool(
              join(scratch, `client-${client.replace("@", "-")}`),
              version ? `${name}@${version}` : name,
            );
      const cwd = project(scratch, client);
      const call = bin === undefined ? program : join(bin, program);
      if (!(await step(`${client}: install`, call, args, { env, cwd }))) continue;
      const nlac = (...rest) => [join("node_modules", "nlac", "bin", "nlac.js"), ...rest];
      await step(`${client}: setup`, process.execPath, nlac("setup"), { cwd });
      await step(`${client}: doctor`, process.execPath, nlac("doctor"), { cwd });
      await step(`${client}: load`, process.execPath, ["main.mjs"], { cwd, expect: /^loaded$/m });
      installed ??= { cwd, call, env };
    }
    if (installed === undefined) return;
    const { cwd } = installed;
    for (const major of values.short ? [undefined] : nodes) {
      const name = `node-${process.platform}-${process.arch}`;
      const directory = join(scratch, `node-${major}`);
      if (major !== undefined) await tool(directory, `${name}@${major}`);
      const binary =
        major === undefined ? process.execPath : join(directory, "node_modules", name, "bin", "node");
      const version = execFileSync(binary, ["--version"], { encoding: "utf8" }).trim();
      for (const file of Object.keys(programs))
        await step(`Node ${version}: ${file}`, binary, [file], {
          cwd,
          expect: /^loaded$/m,
          timeout: 5 * minutes,
        });
    }

    const made = join(scratch, "my-agent");
    const inMade = { cwd: made, env: installed.env };
    if (
      (await step("init", process.execPath, [join("node_modules", "nlac", "bin", "nlac.js"), "init", made], {
        cwd,
      })) &&
      (await step("init: npm install", "npm", ["install", "--no-audit", "--no-fund"], inMade))
    ) {
      await step("init: npm test", "npm", ["test"], inMade);
      await step("init: npm run typecheck", "npm", ["run", "typecheck"], inMade);
      await step("init: npm run check", "npm", ["run", "check"], inMade);
    }
  } finally {
    registry?.server.closeAllConnections();
    registry?.server.close();
    rmSync(scratch, { recursive: true, force: true });
  }
}

await main();
console.log(failed === 0 ? "all passed" : `${failed} failed`);
process.exitCode = failed === 0 ? 0 : 1;
