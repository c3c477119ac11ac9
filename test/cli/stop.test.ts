import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { setTimeout } from "node:timers/promises";
import { expect, test } from "vitest";

test.each([
  ["SIGINT", 130],
  ["SIGTERM", 143],
] as const)(
  "%s twice at once, as through npx, stops cleanly; one more ends with %i",
  async (name, code) => {
    const child = spawn(process.execPath, ["--import", "jiti/register", "test/support/stop-child.ts"]);
    const ended = once(child, "exit");
    let output = "";
    const shows = async (text: string) => {
      while (!output.includes(text)) await once(child.stdout, "data");
    };
    child.stdout.on("data", (chunk) => {
      output += chunk;
    });
    await shows("ready");
    child.kill(name);
    await shows("aborted");
    child.kill(name);
    await setTimeout(1500);
    expect(child.exitCode).toBeNull();
    expect(output.match(/stopping later/g)).toHaveLength(1);
    child.kill(name);
    expect(await ended).toEqual([code, null]);
  },
  60_000,
);

async function nlac(stray: string, ...argv: string[]) {
  const program = ["--import", "jiti/register", "lib/cli/main.ts", ...argv];
  const child = spawn(process.execPath, program, { env: { ...process.env, STRAY: stray } });
  const [output, errors, [code]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, "close"),
  ]);
  return { output, errors, code };
}

test("a rejection that nothing catches ends a training with a checkpoint, from which it continues", async () => {
  const root = mkdtempSync(join(tmpdir(), "nlac-stray-"));
  const environment = join(root, "stray.mjs");
  writeFileSync(
    environment,
    `import { environments } from "nlac";
    const errands = environments.errands();
    let started = 0;
    export default { ...errands, start: (task, options) => {
      if (++started === 6 && process.env.STRAY) void Promise.reject(new Error("the audit log is gone"));
      return errands.start(task, options);
    } };`,
  );
  const run = join(root, "run");
  const changes = [
    "iterations=3",
    "episodesPerIteration=4",
    "updatesPerIteration=1",
    "batchSize=2",
    "rehearsal=1",
  ];
  const settings = changes.flatMap((change) => ["--set", `config.${change}`]);
  const train = ["train", "errands", "--set", `environment.name=${environment}`, ...settings, "--run", run];
  const stopped = await nlac("yes", ...train);
  expect(stopped.errors).toMatch(/Error: the audit log is gone\n +at .+stray\.mjs/);
  expect(stopped.errors).toMatch(
    /nlac: ERR_ENVIRONMENT: An error was not caught, .+: the audit log is gone\n$/,
  );
  expect(stopped.code).toBe(1);
  const continued = await nlac("", "train", "--resume", "--run", run);
  expect(continued.errors).not.toContain("ERR_");
  expect(continued.output).toContain("12 episodes");
  expect(continued.code).toBe(0);
}, 120_000);

test("an environment that never answers, and that nothing can wake, ends a training with an error", async () => {
  const root = mkdtempSync(join(tmpdir(), "nlac-silent-"));
  const environment = join(root, "silent.mjs");
  writeFileSync(
    environment,
    `import { environments } from "nlac";
    const errands = environments.errands();
    export default { ...errands, start: async (task, options) => {
      const episode = await errands.start(task, options);
      return { ...episode, step: () => new Promise(() => {}) };
    } };`,
  );
  const run = join(root, "run");
  const settings = ["--set", `environment.name=${environment}`, "--set", "config.rehearsal=1"];
  const { errors, code } = await nlac("", "train", "errands", ...settings, "--run", run);
  expect(errors).toMatch(/\nnlac: ERR_ENVIRONMENT: An environment never answers: .+\n$/);
  expect(code).toBe(1);
  expect(JSON.parse(readFileSync(join(run, "status.json"), "utf8"))).toMatchObject({ state: "stopped" });
}, 120_000);
