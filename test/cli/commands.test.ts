import { spawnSync } from "node:child_process";
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
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { nextStart } from "../../lib/agents/versions.ts";
import type { EpisodeRecord } from "../../lib/episodes/records.ts";
import { readRecords } from "../../lib/files/records.ts";
import { Learner } from "../../lib/learner/learner.ts";
import { unreadableMessage } from "../../lib/prompts/policy.ts";
import { nlac } from "../support/command-line.ts";
import { tinyConfig, tinyLearner } from "../support/tiny.ts";

const root = mkdtempSync(join(tmpdir(), "nlac-commands-"));
const model = join(root, "model");
const run = join(root, "run");
const recipe = join(root, "recipe.json");

beforeAll(async () => {
  mkdirSync(model);
  const learner = await tinyLearner({}, { ...tinyConfig, max_position_embeddings: 8192 });
  await learner.exportHuggingFace(model);
  await learner.dispose();
  writeFileSync(
    recipe,
    JSON.stringify({
      name: "tiny",
      model,
      learner: { dtype: "float32" },
      environment: { name: "twentyQuestions", options: { turns: 2 } },
      config: {
        iterations: 1,
        episodesPerIteration: 2,
        updatesPerIteration: 1,
        batchSize: 2,
        maxActionTokens: 8,
        maxCriticTokens: 8,
      },
    }),
  );
  const trained = await nlac("train", recipe, "--run", run, "--json");
  expect(trained.errors).not.toContain("ERR_");
  expect(JSON.parse(trained.output)).toMatchObject({ run, updates: 1, episodes: 2, stopped: false });
});
afterAll(() => rmSync(root, { recursive: true, force: true }));

describe("commands on a trained run", () => {
  test("view prints figures and samples with their texts", async () => {
    const { code, output } = await nlac("view", run, "--samples", "1");
    expect(code).toBe(0);
    expect(output).toContain("tiny:");
    expect(output).toContain("loss/l1");
    expect(output).toContain("▸ observation");
    const { metrics, samples } = JSON.parse((await nlac("view", run, "--json")).output);
    expect(samples).toMatchObject([{ update: 0 }, { update: 0 }]);
    const [first] = JSON.parse((await nlac("view", run, "--json", "--samples", "1")).output).samples;
    expect(first).toEqual(samples[0]);
    const episodes = metrics.map(({ values }: { values: Record<string, number> }) => values.episodes);
    expect(episodes).toEqual([2, undefined]);
    expect(output).toMatch(/\n {2}episodes +2 +2 +2 +1\n/);
  });

  test("eval plays the run's environment, records, and measures the critic on the record", async () => {
    const record = join(root, "held-out.jsonl");
    const played = await nlac("eval", run, "--episodes", "3", "--record", record);
    expect(played.code).toBe(0);
    expect(played.output).toContain("twentyQuestions, test: 3 episodes over 3 tasks");
    expect(played.output).toMatch(/success +0 +\[0, 0\.56/);
    expect([...readRecords<{ split?: string }>(record)].map(({ split }) => split)).toEqual(
      Array(3).fill("test"),
    );
    const critic = await nlac("eval", run, "--critic", record, "--transitions", "4", "--json");
    expect(critic.code).toBe(0);
    const figures = JSON.parse(critic.output);
    expect(figures).toMatchObject({ transitions: 4, episodes: 3, support: "full" });
    expect(figures.nll.estimate).toBeGreaterThan(figures.l1.estimate);
    expect((await nlac("eval", run, "--episodes", "1", "--record", record)).errors).toContain("ERR_IO");
    // Nothing trains on test tasks; the others have no mark.
    const offline = ["--set", "config.episodesPerIteration=0", "--set", `config.recorded=["${record}"]`];
    const trained = await nlac("train", recipe, "--run", join(root, "leaking"), ...offline);
    expect(trained.errors).toMatch(/ERR_RUN: .*all 3 episodes are on test tasks/);
    const own = join(root, "own.jsonl");
    await nlac("eval", run, "--episodes", "1", "--split", "train", "--record", own);
    expect([...readRecords<{ split?: string }>(own)].map(({ split }) => split)).toEqual([undefined]);
  });

  test("eval diagnoses a run's critic and refiner as its training does", async () => {
    const base = ["eval", "errands-base", "--environment", "errands", "--episodes", "6", "--no-floor"];
    const diagnose = [...base, "--max-action-tokens", "16", "--diagnose", "--transitions", "12"];
    const played = await nlac(...diagnose, "--json");
    expect(played.errors).not.toContain("ERR_");
    const { diagnosis, success } = JSON.parse(played.output);
    // The base was warmed up on all roles: it answers in their forms, and its branches are reached
    // again.
    expect(diagnosis["calibration/yes"]).toBeGreaterThan(0);
    expect(diagnosis["calibration/success"]).toBe(success.estimate);
    expect(diagnosis["gain/reached"]).toBe(1);
    expect(JSON.parse((await nlac(...diagnose, "--json")).output).diagnosis).toEqual(diagnosis);
    const { output } = await nlac(...diagnose, "--branches", "0");
    expect(output).toMatch(/\ncritic and refiner\n {2}calibration\/yes +[\d.]+\n/);
    expect(output).toMatch(/gain\/reached +–\n/);
    // The diagnosis does not change the run.
    const before = readFileSync(join(run, "metrics.jsonl"));
    const ofRun = await nlac("eval", run, "--episodes", "2", "--diagnose", "--json");
    expect(Object.keys(JSON.parse(ofRun.output).diagnosis)).toEqual(Object.keys(diagnosis));
    expect(readFileSync(join(run, "metrics.jsonl"))).toEqual(before);
  });

  test("a budget spent during the diagnosis is reported, with the results of the evaluation", async () => {
    const environment = join(root, "spent.mjs");
    writeFileSync(
      environment,
      `import { environments, NlacError } from "nlac";
      const errands = environments.errands();
      let started = 0;
      export default { ...errands, name: "spent", start: (task, options) => {
        if (++started > 2) throw new NlacError("ERR_BUDGET", "All is spent.");
        return errands.start(task, options);
      } };`,
    );
    const evaluation = [
      "eval",
      "errands-base",
      "--environment",
      environment,
      "--episodes",
      "2",
      "--no-floor",
    ];
    const stopped = await nlac(...evaluation, "--diagnose", "--json");
    expect(stopped.code).toBe(1);
    expect(stopped.errors).toContain(
      "nlac: stopped after 2 episodes, in the diagnosis (ERR_BUDGET: All is spent.)",
    );
    expect(JSON.parse(stopped.output)).toMatchObject({ episodes: 2, stopped: true });
    process.exitCode = undefined; // the commands of a test are one process
  });

  test("eval repeats tasks only with --trials, and distributes them evenly", async () => {
    const many = await nlac("eval", run, "--episodes", "9999");
    expect(many.code).toBe(1);
    const [, tasks, trials] =
      /^nlac: ERR_CONFIG: twentyQuestions, test: there are (\d+) tasks\..+--trials (\d+)\.\n$/
        .exec(many.errors)!
        .map(Number);
    expect(trials).toBe(Math.ceil(9999 / tasks!));
    const record = join(root, "repeated.jsonl");
    const repeated = await nlac("eval", run, "--episodes", "5", "--trials", "2", "--record", record);
    expect(repeated.output).toContain("5 episodes over 3 tasks");
    const episodes = [...readRecords<EpisodeRecord>(record)];
    const times = (task: string) => episodes.filter((episode) => episode.task === task).length;
    expect([...new Set(episodes.map(({ task }) => task))].map(times)).toEqual([2, 2, 1]);
    expect(new Set(episodes.map(({ seed }) => seed)).size).toBe(5);
    const json = JSON.parse((await nlac("eval", run, "--episodes", "2", "--json")).output);
    expect(json).toMatchObject({ episodes: 2, tasks: 2 });
  });

  test("eval measures the critic of a reasoning model as its training does", async () => {
    const [thinking, record] = [join(root, "thinking"), join(root, "thoughts.jsonl")];
    cpSync(run, thinking, { recursive: true });
    const { sha256: _, ...description } = JSON.parse(readFileSync(join(run, "run.json"), "utf8"));
    description.recipe.config.reasoning = true;
    writeFileSync(join(thinking, "run.json"), JSON.stringify(description));
    await nlac("eval", thinking, "--episodes", "1", "--record", record);
    const { output } = await nlac("eval", thinking, "--critic", record);
    expect(output).toContain("L1 is the cross entropy of the sampled tokens");
    expect((await nlac("eval", run, "--critic", record)).output).toContain("L1 is the KL over the whole");
  });

  test("verify checks runs, models and files of records", async () => {
    const record = join(root, "verified.jsonl");
    await nlac("eval", run, "--episodes", "2", "--record", record);
    for (const whole of [run, model, "errands-base", record]) {
      const { code, output, errors } = await nlac("verify", whole);
      expect([code, errors], output).toEqual([0, ""]);
      expect(output).toContain("Nothing is damaged.");
    }
    const damaged = join(root, "damaged");
    cpSync(run, damaged, { recursive: true });
    const file = join(damaged, "trajectories.jsonl");
    const content = readFileSync(file);
    content[content.length - 20]! ^= 1;
    writeFileSync(file, content);
    const found = await nlac("verify", damaged, "--json");
    process.exitCode = undefined; // the commands of a test are one process
    expect(found.code).toBe(1);
    const { whole, parts } = JSON.parse(found.output) as { whole: boolean; parts: { faults: string[] }[] };
    expect(whole).toBe(false);
    expect(parts.flatMap(({ faults }) => faults).join(" ")).toContain(`${file}: line`);
    expect((await nlac("verify", join(root, "nowhere"))).errors).toContain("ERR_MODEL_NOT_FOUND");
    const resumed = await nlac("train", "--resume", "--run", damaged, "--checkpoint", "9999");
    expect(resumed.errors).toContain("has no checkpoint 9999");
    expect((await nlac("train", "quickstart", "--checkpoint", "1")).errors).toContain("needs --resume");
  });

  test("generate, of a run and of a model", async () => {
    for (const source of [run, model]) {
      const { code, output } = await nlac("generate", source, "Hello", "--max-new-tokens", "5", "--json");
      expect(code).toBe(0);
      const generation = JSON.parse(output);
      expect(generation.tokens.length).toBe(generation.logProbs.length);
      expect(generation.tokens.length).toBeLessThanOrEqual(5);
    }
    expect((await nlac("generate", run, "Hello", "--max-new-tokens", "3")).output).toMatch(/\n$/);
  });

  test("a run trained with int8 generation uses it again only on request", async () => {
    const copy = join(root, "int8");
    cpSync(run, copy, { recursive: true });
    const { sha256: _, ...description } = JSON.parse(readFileSync(join(copy, "run.json"), "utf8"));
    description.recipe.learner = { dtype: "bfloat16", int8Generation: true };
    writeFileSync(join(copy, "run.json"), JSON.stringify(description));
    using resume = vi.spyOn(Learner, "resume");
    const generate = ["generate", copy, "Hello", "--max-new-tokens", "1"];
    expect((await nlac(...generate)).code).toBe(0);
    expect(resume.mock.lastCall![1]).toMatchObject({ dtype: "bfloat16", int8Generation: false });
    const refused = await nlac(...generate, "--int8-generation", "--device", "cuda");
    expect(refused.code).toBe(1);
    expect(refused.errors).toMatch(/ERR_CONFIG.*int8Generation/);
  });

  test("play shows an episode", async () => {
    const { code, output } = await nlac("play", run, "--max-action-tokens", "5");
    expect(code).toBe(0);
    expect(output).toContain("[system]");
    expect(output).toContain("(the task: ");
    expect(output).toContain("not readable");
  });

  test("play prints the total reward, including the cost of an unfinished episode", async () => {
    for (const [reward, terminated, shown] of [
      [0.75, true, "0.75"],
      [-1, false, "-7"],
    ] as const) {
      const file = join(root, `rewarding${shown}.mjs`);
      writeFileSync(
        file,
        `const step = async () => ({ observation: [], reward: ${reward}, terminated: ${terminated}, truncated: false, info: {} });
        const start = async () => ({ observation: { messages: [{ role: "user", content: "?" }] }, step, close: async () => {} });
        export default { name: "rewarding", actionFormat: "solution", maxTurns: 1, rewardRange: [-7, 1], tasks: async () => [1],
          taskId: String, start, close: async () => {} };`,
      );
      const { output } = await nlac("play", run, "--environment", file, "--max-action-tokens", "5");
      expect(output).toMatch(new RegExp(`\nReward: ${shown}\n$`));
    }
  });

  test("the floor has no prompt limit, because the run's is in other tokens", async () => {
    const file = join(root, "long.mjs");
    writeFileSync(
      file,
      `const step = async () => ({ observation: [], reward: 1, terminated: true, truncated: false, info: {} });
      const content = "hm ".repeat(10_000);
      const start = async () => ({ observation: { messages: [{ role: "user", content }] }, step, close: async () => {} });
      export default { name: "long", actionFormat: "text", maxTurns: 1, idle: { text: "nothing" }, tasks: async () => [1],
        taskId: String, start, close: async () => {} };`,
    );
    const { output } = await nlac("eval", run, "--environment", file, "--json");
    expect(JSON.parse(output)).toMatchObject({ outcomes: { "context-limit": 1 }, floor: { estimate: 1 } });
  });

  test("play reports an unreadable action to the model as training does", async () => {
    const generate = vi.spyOn(Learner.prototype, "generate");
    await nlac("play", run, "--max-action-tokens", "5");
    const [first, second] = generate.mock.calls.map(([[request]]) => request!.tokens!);
    generate.mockRestore();
    const learner = await Learner.load(model);
    const grown = learner.decode(second!.slice(first!.length));
    await learner.dispose();
    const reason = /That could not be read: (.+?)\. Write exactly this form/.exec(grown)?.[1];
    expect(grown).toContain(unreadableMessage(reason!, "text").content);
  });

  test("an exported model loads again", async () => {
    const out = join(root, "exported");
    expect((await nlac("export", run, out)).code).toBe(0);
    for (const file of ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]) {
      expect(existsSync(join(out, file))).toBe(true);
    }
    expect((await nlac("generate", out, "Hi", "--max-new-tokens", "1", "--json")).code).toBe(0);
    expect((await nlac("export", run, out)).errors).toContain("is not empty");
  });

  test("a run with an adapter is trained, resumed, exported merged or alone, and rejected as an initial model", async () => {
    const adapted = join(root, "adapted");
    const flags = ["--set", 'learner.adapter={"rank": 2, "alpha": 4}', "--run", adapted, "--json"];
    expect(JSON.parse((await nlac("train", recipe, ...flags)).output)).toMatchObject({ updates: 1 });
    const resumed = await nlac("train", "--resume", "--run", adapted, "--json");
    expect(JSON.parse(resumed.output)).toMatchObject({ updates: 1, stopped: false });

    const alone = join(root, "adapter");
    expect((await nlac("export", "--adapter", adapted, alone)).code).toBe(0);
    expect(readdirSync(alone).sort()).toEqual([
      ...["adapter_config.json", "adapter_model.safetensors", "checksums.json"],
    ]);
    const merged = join(root, "merged");
    expect((await nlac("export", adapted, merged)).code).toBe(0);
    expect((await nlac("generate", merged, "Hi", "--max-new-tokens", "1", "--json")).code).toBe(0);
    expect((await nlac("export", "--adapter", run, join(root, "none"))).errors).toContain("no adapter");
    const rewardModel = await nlac("export", "--reward-model", run, join(root, "none"));
    expect(rewardModel.errors).toMatch(/ERR_RUN: .+ has no reward model: it is not a run of hope\./);
    const noRun = await nlac("export", "--reward-model", "errands-base", join(root, "none"));
    expect(noRun.errors).toMatch(/ERR_RUN: errands-base /);
    const both = await nlac("export", "--reward-model", "--adapter", adapted, join(root, "both"));
    expect(both.errors).toContain("cannot be used with");

    const onTop = await nlac("train", recipe, "--set", `model=${adapted}`, "--run", join(root, "on-top"));
    expect(onTop.errors).toContain("export the merged model");
  });

  test("a run directory is not overwritten, and resuming a finished run ends at once", async () => {
    const again = await nlac("train", recipe, "--run", run);
    expect(again.errors).toContain("--resume");
    expect(again.errors).not.toContain("loading"); // it is reported before the model is loaded
    const resumed = await nlac("train", "--resume", "--run", run, "--json");
    expect(JSON.parse(resumed.output)).toMatchObject({ updates: 1, stopped: false });
  });

  test("--dry-run prints the resolved recipe and touches nothing", async () => {
    const { code, output } = await nlac("train", recipe, "--dry-run", "--json", "--set", "config.seed=9");
    expect(code).toBe(0);
    const { recipe: resolved, estimate } = JSON.parse(output);
    expect(resolved).toMatchObject({ config: { seed: 9, targetRate: 0.005 } });
    // The run's model is the one that it started from, and has its size.
    const further = await nlac("train", recipe, "--dry-run", "--json", "--set", `model=${run}`);
    expect(JSON.parse(further.output).estimate.shape).toEqual(estimate.shape);
  });
});

test("train prints the first and last measured success, and what to type next", async () => {
  const flags = ["--set", "config.evaluation.every=1", "--set", "config.evaluation.episodes=1"];
  const measured = await nlac("train", recipe, "--run", join(root, "measured"), ...flags);
  expect(measured.output).toMatch(/1 update\.\nSuccess: 0 at first, 0 at last\.\n/);
  expect(measured.output).toContain(`\nEvaluate:  npx nlac eval ${join(root, "measured")}\n`);
});

test("versions says that a run without a checkpoint has none", async () => {
  const started = join(root, "started");
  mkdirSync(started);
  writeFileSync(join(started, "run.json"), "{}");
  const { code, output, errors } = await nlac("versions", started);
  expect({ code, output }).toEqual({ code: 0, output: "" });
  expect(errors).toContain(`${started} has no version yet`);
  expect(JSON.parse((await nlac("versions", started, "--json")).output)).toEqual([]);
});

test("an error gives one line and an exit code", async () => {
  for (const argv of [
    ["train"],
    ["eval"],
    ["view", root],
    ["generate", join(root, "none"), "x"],
    ["train", "--resume"],
  ]) {
    const { code, errors } = await nlac(...argv);
    expect(code).toBe(1);
    expect(errors).toMatch(/^nlac: ERR_[A-Z_]+: .+\n$/);
  }
  expect(readFileSync(join(run, "run.json"), "utf8")).toContain('"name": "tiny"');
});

test("missing tasks or files are reported before the model is resolved", async () => {
  const environment = join(root, "bare.mjs");
  const closed = join(root, "closed");
  writeFileSync(
    environment,
    `import { writeFileSync } from "node:fs";
    const nothing = async () => ({ observation: { messages: [] }, step: nothing, close: nothing });
    export default ({ splits }) => ({ name: "bare", actionFormat: "text", maxTurns: 1, taskId: String,
      tasks: async (split) => splits.includes(split) ? [1] : [],
      start: nothing, close: async () => writeFileSync(${JSON.stringify(closed)}, "") });`,
  );
  const cases: [code: string, named: string, ...changes: string[]][] = [
    ["ERR_CONFIG", "bare has no tasks to train on.", "environment.options.splits=[]"],
    ["ERR_CONFIG", "bare has no tasks to test on.", "config.evaluation.every=1"],
    ["ERR_CONFIG", "constrainActions: only the action format", "config.constrainActions=true"],
    ["ERR_CONFIG", "bare has no scripted episodes", "warmup.steps=1"],
    ["ERR_CONFIG", "bare has no scripted episodes", "config.rehearsal=1"],
    ["ERR_CONFIG", "in hindsight", "algorithm=rft", "config.imitate=hindsight"],
    ["ERR_CONFIG", "bare has no tasks to test on.", "algorithm=hope", "config.rewardEvaluation.episodes=1"],
    ["ERR_CONFIG", "bare cannot propose actions", "algorithm=hope", "config.proposer=environment"],
    ["ERR_IO", join(root, "none.jsonl"), `config.recorded=["${join(root, "none.jsonl")}"]`],
    ["ERR_MODEL_NOT_FOUND", "no-such-model", "config.evaluation.split=train"],
  ];
  const bare = join(root, "bare.json");
  const options = { splits: ["train"] };
  writeFileSync(
    bare,
    JSON.stringify({ name: "bare", model: "no-such-model", environment: { name: environment, options } }),
  );
  for (const [code, named, ...changes] of cases) {
    rmSync(closed, { force: true });
    const train = ["train", bare, "--run", join(root, "refused")];
    const { errors } = await nlac(...train, ...changes.flatMap((change) => ["--set", change]));
    expect(errors).toContain(`nlac: ${code}: `);
    expect(errors).toContain(named);
    expect(existsSync(closed), named).toBe(true);
  }
  const measured = ["eval", "no-such-model", "--environment"];
  const unnamed = await nlac(...measured, "errand");
  expect(unnamed.errors).toContain('ERR_CONFIG: There is no environment "errand"');
  const free = await nlac(...measured, "errands", "--constrain-actions");
  expect(free.errors).toContain("ERR_VALUE: --constrain-actions");
});

test("a model without tokens for the evaluator is rejected before its warm-up", async () => {
  const changes = ["model=errands-base", "learner.dtype=float32", "config.futures=2", "warmup.steps=1"];
  const train = ["train", "errands", "--run", join(root, "wordless")];
  const { errors } = await nlac(...train, ...changes.flatMap((change) => ["--set", change]));
  expect(errors).toContain("ERR_CONFIG: futures: 2 needs the evaluator");
  expect(errors).not.toContain("warm-up");
});

test("file system errors and damaged files give one line that names the file, not ERR_INTERNAL", async () => {
  const file = join(root, "a-file");
  writeFileSync(file, "");
  const damaged = join(root, "damaged-description");
  mkdirSync(damaged);
  writeFileSync(join(damaged, "run.json"), '{\n"recipe": ');
  const directory = join(root, "run.jsonl");
  mkdirSync(directory);
  const empty = join(root, "empty");
  cpSync(run, empty, { recursive: true });
  writeFileSync(join(empty, "run.json"), "{}");
  const served = join(root, "served");
  cpSync(run, served, { recursive: true });
  nextStart(served);
  const invalid = join(root, "invalid");
  cpSync(run, invalid, { recursive: true });
  writeFileSync(join(invalid, "run.json"), '{"recipe": {}}');
  const cases: [code: string, named: string, ...argv: string[]][] = [
    ["ERR_RUN", join(damaged, "run.json"), "view", damaged],
    ["ERR_RUN", `${directory} is not a run`, "view", directory],
    ["ERR_EMPTY", file, "view", file],
    ["ERR_IO", join(root, "none"), "view", join(root, "none")],
    ["ERR_RUN", join(damaged, "run.json"), "train", "--resume", "--run", damaged],
    [
      "ERR_RUN",
      `${join(root, "none")} is not a run directory: it has no run.json`,
      "train",
      "--resume",
      "--run",
      join(root, "none"),
    ],
    ["ERR_RUN", join(damaged, "run.json"), "generate", damaged, "x"],
    ["ERR_CONFIG", invalid, "generate", invalid, "x"],
    ["ERR_RUN", "There is no run runs/nowhere", "view", "runs/nowhere"],
    ["ERR_RUN", "There is no run runs/nowhere", "verify", "runs/nowhere"],
    ["ERR_RUN", `${served} was trained by nlac serve --train`, "train", "--resume", "--run", served],
    ["ERR_RUN", `${empty} has no recipe`, "train", "--resume", "--run", empty],
    ["ERR_IO", join(file, "run"), "train", recipe, "--run", join(file, "run")],
    ["ERR_IO", file, "train", recipe, "--run", file],
    ["ERR_IO", join(file, "out"), "export", run, join(file, "out")],
    [
      "ERR_IO",
      `${join(root, "none", "x.jsonl")} cannot be written`,
      "eval",
      run,
      "--record",
      join(root, "none", "x.jsonl"),
    ],
    ["ERR_IO", join(root, "none.jsonl"), "eval", run, "--critic", join(root, "none.jsonl")],
    ["ERR_RUN", join(run, "metrics.jsonl"), "eval", run, "--critic", join(run, "metrics.jsonl")],
    ["ERR_VALUE", "--critic", "eval", run, "--critic", file, "--record", join(root, "y.jsonl")],
    ["ERR_VALUE", "--diagnose", "eval", run, "--diagnose", "--resume", "--record", join(root, "y.jsonl")],
    ["ERR_VALUE", "--diagnose", "eval", run, "--diagnose", "--weights", "target"],
    ["ERR_VALUE", "--diagnose", "eval", "do-nothing", "--environment", "errands", "--diagnose"],
    ["ERR_VALUE", "--weights", "eval", "do-nothing", "--environment", "errands", "--weights", "target"],
    ["ERR_VALUE", "--int8-generation", "eval", "service:x", "--environment", "errands", "--int8-generation"],
    ["ERR_VALUE", "--branches needs --diagnose", "eval", run, "--branches", "2"],
    ["ERR_VALUE", "--transitions needs --critic or", "eval", run, "--transitions", "2"],
    [
      "ERR_VALUE",
      "--max-action-tokens and --critic",
      "eval",
      run,
      "--critic",
      "x",
      "--max-action-tokens",
      "9",
    ],
    ["ERR_VALUE", "--weights", "generate", run, "x", "--weights", "both"],
    ["ERR_VALUE", "--samples", "view", run, "--samples", ""],
  ];
  for (const [code, named, ...argv] of cases) {
    const { code: exit, errors } = await nlac(...argv);
    expect(exit).toBe(1);
    const fault = errors.slice(errors.indexOf("nlac: ERR_"));
    expect(fault.startsWith(`nlac: ${code}: `)).toBe(true);
    expect(fault).toContain(named);
    if (named !== invalid) expect(fault.trimEnd()).not.toContain("\n"); // a recipe's bad fields are a list
  }
  expect(existsSync(join(root, "y.jsonl"))).toBe(false);
  // Also errors that no layer below names: here, of the cache that a model is fetched into.
  vi.stubEnv("XDG_CACHE_HOME", join(file, "cache"));
  const { errors } = await nlac("generate", "SmolLM2-135M-Instruct", "x");
  vi.unstubAllEnvs();
  expect(errors).toMatch(
    /^nlac: ERR_IO: \S+\/a-file\/cache\S* cannot be used: not a directory \(ENOTDIR\)\.\n$/,
  );
  // A run that a program made without a recipe can be read, and its model used.
  expect((await nlac("view", empty)).output).toContain(`${empty}\n`);
  expect(await nlac("generate", empty, "x", "--max-new-tokens", "2")).toMatchObject({ code: 0 });
});

test("an empty record of a stopped evaluation can be used by the next one", async () => {
  const record = join(root, "again.jsonl");
  writeFileSync(record, "");
  expect((await nlac("eval", run, "--episodes", "1", "--record", record)).code).toBe(0);
  expect([...readRecords(record)]).toHaveLength(1);
});

test("play --oracle reads answers from a pipe, and ends at its end", () => {
  const program = fileURLToPath(new URL("../../lib/cli/main.ts", import.meta.url));
  const flags = ["--oracle", "--max-action-tokens", "3"];
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    ["--import", "jiti/register", program, "play", model, ...flags],
    { input: "yes\nno\n", encoding: "utf8" },
  );
  expect(stderr).toBe("");
  expect(stdout.split("   you: ")).toHaveLength(4);
  expect(stdout).toMatch(/\nEnded at turn 3\.\n$/);
  expect(status).toBe(0);
});
