import {
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { trainNlac } from "../../lib/algorithms/nlac.ts";
import { silentProgress } from "../../lib/display/progress.ts";
import { readEvaluations } from "../../lib/episodes/records.ts";
import { writeChecksums } from "../../lib/files/checksums.ts";
import { RecordWriter, readRecords } from "../../lib/files/records.ts";
import { numericsWarning } from "../../lib/run/build.ts";
import {
  checkpointNumbers,
  checkpointPath,
  chooseCheckpoint,
  newestCheckpoint,
} from "../../lib/run/checkpoints.ts";
import { readDescription, writeDescription } from "../../lib/run/description.ts";
import { RunDirectory } from "../../lib/run/directory.ts";
import { countersSchema, newCounters, parseState } from "../../lib/run/training-run.ts";
import { verifyRun } from "../../lib/run/verify.ts";
import { errandEnvironment } from "../support/errand.ts";
import { pipe } from "../support/files-and-servers.ts";
import { ScriptedModel } from "../support/scripted-model.ts";
import { inDirectory } from "../support/tiny.ts";

const config = {
  ...{ iterations: 2, episodesPerIteration: 2, updatesPerIteration: 2, batchSize: 2 },
  ...{ maxActionTokens: 100, maxCriticTokens: 100, priorityExponent: 1 },
};

function seededModel(): ScriptedModel {
  return new ScriptedModel((prompt, _weights, _index, request) => {
    const word = ["key", "lamp", "map", "soap"][Number(request.seed) % 4]!;
    const last = prompt.slice(prompt.lastIndexOf("<|im_start|>user"));
    if (last.includes("Optimality:")) return `Future:\nit is ${word}\nOptimality:\nNo, bring the ${word}.`;
    return `Thought:\nhm\nAction:\n${word}`;
  });
}

const options = () => ({
  signal: new AbortController().signal,
  progress: silentProgress,
  description: { recipe: { name: "test", seed: 1 } },
  checkpointSeconds: 0,
  keepCheckpoints: 3,
});

/** Trains in `path`, or continues there from checkpoint `number`. */
async function train(
  path: string,
  more: { number?: number; iterations?: number; seed?: number; evaluation?: object } = {},
): Promise<string[]> {
  const { number, ...changed } = more;
  const [model, warnings] = [seededModel(), [] as string[]];
  const run = existsSync(join(path, "run.json"))
    ? await RunDirectory.resume(
        path,
        model,
        options(),
        await chooseCheckpoint(path, { number, warn: (line) => warnings.push(line) }),
      )
    : RunDirectory.create(path, options());
  await trainNlac({ model, environment: errandEnvironment(), config: { ...config, ...changed }, run });
  run.close();
  return warnings;
}

const records = (path: string) =>
  ["trajectories.jsonl", "samples.jsonl"].map((name) => readFileSync(join(path, name), "utf8"));

function flip(file: string, byte = 10): void {
  const content = readFileSync(file);
  content[byte]! ^= 1;
  writeFileSync(file, content);
}

async function faultsOf(path: string): Promise<string[]> {
  const faults: string[] = [];
  for await (const part of verifyRun(path)) faults.push(...part.faults);
  return faults;
}

test("a damaged checkpoint is skipped, and the newest undamaged one repeats the rest bit for bit", () =>
  inDirectory(async (directory) => {
    const [path, whole] = [join(directory, "run"), join(directory, "whole")];
    await train(path);
    await train(whole, { iterations: 3 });
    const [newest, older] = checkpointNumbers(path);
    const file = join(newestCheckpoint(path), "state.json");
    flip(file);
    expect(await faultsOf(path)).toEqual([`${file} is damaged: its SHA-256 differs.`]);
    expect(await train(path, { iterations: 3 })).toEqual([
      `${file} is damaged: its SHA-256 differs. Resuming from checkpoint ${older}.`,
    ]);
    expect(records(path)).toEqual(records(whole));
    expect(readdirSync(join(path, "checkpoints"))).toContain(`${String(newest).padStart(6, "0")}.aside`);
    expect(checkpointNumbers(path)[0]).toBeGreaterThan(newest!);
    expect(await faultsOf(path)).toEqual([]);
  }));

test("the files of a served run are verified too", () =>
  inDirectory(async (directory) => {
    const path = join(directory, "run");
    RunDirectory.create(path, options()).close();
    for (const name of ["episodes.jsonl", "open.jsonl", "corrections.jsonl"]) {
      const file = join(path, name);
      const writer = RecordWriter.resume(file);
      writer.append({ reward: 1, turns: [], conversation: {} });
      writer.close();
      expect(await faultsOf(path)).toEqual([]);
      flip(file, 40);
      expect(await faultsOf(path)).toEqual([`${file}: line 1 is damaged (wrong checksum).`]);
      flip(file, 40);
    }
  }));

test("a pipe among the files of a run is damage, and is not waited for", () =>
  inDirectory(async (directory) => {
    const path = join(directory, "run");
    await train(path);
    for (const name of ["samples.jsonl", "open.jsonl", "latest"]) {
      rmSync(join(path, name), { force: true });
      pipe(join(path, name));
    }
    const faults = (await faultsOf(path)).join("\n");
    expect(faults).toMatch(/samples\.jsonl is not a (regular )?file/);
    expect(faults).toContain("open.jsonl is not a regular file");
    expect(faults).toContain("latest is not a regular file");
  }));

test("a checkpoint that a training removes while the run is verified is no damage", () =>
  inDirectory(async (directory) => {
    const path = join(directory, "run");
    await train(path);
    const [, second, oldest] = checkpointNumbers(path);
    const found: string[] = [];
    for await (const part of verifyRun(path)) {
      found.push(...part.faults);
      if (part.path === checkpointPath(path, oldest!))
        rmSync(checkpointPath(path, second!), { recursive: true });
    }
    expect(existsSync(checkpointPath(path, second!))).toBe(false);
    expect(found).toEqual([]);
  }));

test("a checkpoint can be chosen; the later ones are set aside", () =>
  inDirectory(async (directory) => {
    const path = join(directory, "run");
    await train(path);
    const before = records(path);
    const numbers = checkpointNumbers(path);
    expect(numbers).toHaveLength(3);
    await expect(chooseCheckpoint(path, { number: 99 })).rejects.toMatchObject({
      code: "ERR_CHECKPOINT",
      message: expect.stringContaining(`It has: ${numbers.toReversed().join(", ")}.`),
    });
    flip(join(checkpointPath(path, numbers[0]!), "replay.json"), 2);
    await expect(chooseCheckpoint(path, { number: numbers[0]! })).rejects.toThrow(/replay\.json is damaged/);
    expect(await train(path, { number: numbers[2]! })).toEqual([]);
    expect(records(path)).toEqual(before);
    expect(readdirSync(join(path, "checkpoints")).filter((name) => name.endsWith(".aside"))).toHaveLength(2);
  }));

test("a file that is damaged, missing or of another run is refused by name", () =>
  inDirectory(async (directory) => {
    const [source, path, other] = ["source", "run", "other"].map((name) => join(directory, name)) as [
      string,
      string,
      string,
    ];
    await train(source);
    await train(other, { seed: 1 });
    const last = (run: string) => newestCheckpoint(run);
    const cases: [string, RegExp, (at: string) => void][] = [
      ["a file is missing", /sampler\.bin is missing/, (at) => rmSync(join(at, "sampler.bin"))],
      [
        "a file is cut",
        /sampler\.bin is damaged: it has 9 bytes/,
        (at) => writeFileSync(join(at, "sampler.bin"), readFileSync(join(at, "sampler.bin")).subarray(0, 9)),
      ],
      [
        "a file is empty",
        /replay\.json is damaged: it has 0 bytes/,
        (at) => writeFileSync(join(at, "replay.json"), ""),
      ],
      ["a file of the model", /events\.json is damaged/, (at) => flip(join(at, "learner/events.json"), 0)],
      [
        "an added file",
        /more\.json is not listed/,
        (at) => writeFileSync(join(at, "learner/more.json"), "{}"),
      ],
      [
        "a directory in place of a file",
        /replay\.json is not a file/,
        (at) => {
          rmSync(join(at, "replay.json"));
          mkdirSync(join(at, "replay.json"));
        },
      ],
      ["the list itself", /checksums\.json is damaged/, (at) => flip(join(at, "checksums.json"), 60)],
      ["no list", /checksums\.json is missing/, (at) => rmSync(join(at, "checksums.json"))],
      [
        "a checkpoint of another run",
        /belongs to another run/,
        (at) => {
          rmSync(at, { recursive: true });
          cpSync(last(other), at, { recursive: true });
        },
      ],
      [
        "episodes of another run",
        /trajectories\.jsonl (is damaged|has \d+ bytes)/,
        () => cpSync(join(other, "trajectories.jsonl"), join(path, "trajectories.jsonl")),
      ],
      ["no episodes", /trajectories\.jsonl is missing/, () => rmSync(join(path, "trajectories.jsonl"))],
    ];
    for (const [name, message, harm] of cases) {
      rmSync(path, { recursive: true, force: true });
      cpSync(source, path, { recursive: true });
      harm(last(path));
      const number = checkpointNumbers(path)[0]!;
      await expect(chooseCheckpoint(path, { number }), name).rejects.toMatchObject({
        code: "ERR_CHECKPOINT",
        message: expect.stringMatching(message),
      });
      expect((await faultsOf(path)).join(" "), name).toMatch(message);
    }
  }));

test("a damaged record of metrics is a warning, nlac verify finds it, and the run continues", () =>
  inDirectory(async (directory) => {
    const [path, whole] = [join(directory, "run"), join(directory, "whole")];
    await train(whole, { iterations: 3 });
    await train(path);
    flip(join(path, "metrics.jsonl"), 40);
    expect((await faultsOf(path)).join(" ")).toContain("metrics.jsonl: line 1 is damaged");
    const warnings = await train(path, { iterations: 3 });
    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toContain("metrics.jsonl is damaged");
    expect(records(path)).toEqual(records(whole));
    const lines = (run: string) => readFileSync(join(run, "metrics.jsonl"), "utf8").split("\n").length;
    expect(lines(path)).toBe(lines(whole));
  }));

test("a checkpoint of an earlier version, which had fewer record files, is resumed", () =>
  inDirectory(async (directory) => {
    const [path, whole] = [join(directory, "run"), join(directory, "whole")];
    await train(whole, { iterations: 3 });
    await train(path);
    const checkpoint = newestCheckpoint(path);
    const saved = JSON.parse(readFileSync(join(checkpoint, "state.json"), "utf8"));
    for (const name of ["draws", "probes", "evaluations"]) {
      delete saved.files[name];
      rmSync(join(path, `${name}.jsonl`));
    }
    writeFileSync(join(checkpoint, "state.json"), JSON.stringify(saved));
    await writeChecksums(checkpoint, ["learner"]);
    expect(await train(path, { iterations: 3, evaluation: { every: 1, episodes: 2 } })).toEqual([]);
    expect(records(path)).toEqual(records(whole));
    expect([...readEvaluations(join(path, "evaluations.jsonl"))]).toHaveLength(4); // after two and three iterations
    expect(await faultsOf(path)).toEqual([]);
  }));

test("nlac verify finds a damaged episode of an evaluation, and one without its place", () =>
  inDirectory(async (path) => {
    await train(path, { evaluation: { every: 1, episodes: 2 } });
    expect(await faultsOf(path)).toEqual([]);
    const file = join(path, "evaluations.jsonl");
    const found = [...readEvaluations(file)];
    expect(found.map(({ id, update, split }) => [id, update, split])).toEqual(
      [0, 2, 4].flatMap((update) => [0, 1].map((id) => [id, update, "test"])),
    );
    const { update: _, ...rest } = found[0]!;
    const writer = RecordWriter.resume(file);
    writer.append(rest);
    writer.close();
    expect(await faultsOf(path)).toEqual([
      expect.stringMatching(/line 7 does not say after how many updates/),
    ]);
    flip(file, 40);
    expect(await faultsOf(path)).toContainEqual(
      expect.stringContaining("evaluations.jsonl: line 1 is damaged"),
    );
  }));

test("run.json is checked, and may be edited without its checksum", () =>
  inDirectory((path) => {
    writeDescription(path, { recipe: { name: "a", secret: undefined, apiKey: "k" } });
    expect(readDescription(path)).toEqual({ recipe: { name: "a" } });
    const file = join(path, "run.json");
    const edited = readFileSync(file, "utf8").replace('"a"', '"b"');
    writeFileSync(file, edited);
    expect(() => readDescription(path)).toThrow(
      expect.objectContaining({
        code: "ERR_RUN",
        message: expect.stringContaining("delete its field sha256"),
      }),
    );
    writeFileSync(file, JSON.stringify({ ...JSON.parse(edited), sha256: undefined }));
    expect(readDescription(path)).toEqual({ recipe: { name: "b" } });
  }));

test("a state with an unknown or missing field is refused by name", () => {
  const { updatesDone, ...rest } = newCounters();
  for (const state of [
    { ...rest, updatesFone: 4 },
    { ...newCounters(), evaluatee: 1 },
  ])
    expect(() => parseState(countersSchema, state)).toThrow(
      expect.objectContaining({ code: "ERR_CHECKPOINT" }),
    );
  expect(parseState(countersSchema, { ...rest, updatesDone })).toEqual(newCounters());
});

test("a clock that goes back changes nothing that is resumed", () =>
  inDirectory(async (directory) => {
    const [path, whole] = [join(directory, "run"), join(directory, "whole")];
    await train(whole, { iterations: 3 });
    await train(path);
    const clock = vi.spyOn(Date, "now").mockReturnValue(1000);
    await train(path, { iterations: 3 });
    clock.mockRestore();
    expect(records(path)).toEqual(records(whole));
    expect([...readRecords(join(path, "metrics.jsonl"))]).toHaveLength(
      [...readRecords(join(whole, "metrics.jsonl"))].length,
    );
  }));

test("another number of threads is a warning that says both", () => {
  const before = { device: "cpu", dtype: "bfloat16", instructionSet: "avx2", threads: 4 };
  expect(numericsWarning([before], before)).toBeUndefined();
  expect(numericsWarning(undefined, before)).toBeUndefined();
  expect(numericsWarning([null, before], { ...before, threads: 2 })).toMatch(
    /threads 4; now it is threads 2/,
  );
});

test("a run without checkpoints, or whose checkpoints are all damaged, names each reason", () =>
  inDirectory(async (directory) => {
    const path = join(directory, "run");
    await train(path);
    const numbers = checkpointNumbers(path);
    for (const number of numbers) flip(join(checkpointPath(path, number), "replay.json"), 1);
    const error = (await chooseCheckpoint(path).catch((thrown) => thrown)) as Error;
    expect(error).toMatchObject({ code: "ERR_CHECKPOINT" });
    for (const number of numbers) expect(error.message).toContain(checkpointPath(path, number));
    renameSync(join(path, "checkpoints"), join(path, "gone"));
    await expect(chooseCheckpoint(path)).rejects.toMatchObject({ code: "ERR_CHECKPOINT" });
  }));
