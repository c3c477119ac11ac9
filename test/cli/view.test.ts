import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import type { EpisodeRecord } from "../../lib/episodes/records.ts";
import { RecordWriter } from "../../lib/files/records.ts";
import { nlac } from "../support/command-line.ts";
import { writeRun } from "../support/comparison.ts";
import { inDirectory } from "../support/tiny.ts";

function episode(id: number, reward: number): EpisodeRecord {
  return {
    ...{ id, task: `task ${id % 4}`, seed: id, outcome: "done", reward, opening: [] },
    turns: [
      {
        ...{ state: 0, text: "a", action: { text: "a" }, observation: [], reward },
        ...{ terminated: true, truncated: false, info: {} },
      },
    ],
    conversation: { version: 1, tokens: [], segments: [], turns: [], system: true },
  };
}

test("the page of a run shows the success of its last iteration, as training did, and not an average", () =>
  inDirectory(async (directory) => {
    const run = join(directory, "run");
    const config = { episodesPerIteration: 4 };
    writeRun(run, [{ step: 0, values: { "rollout/success": 0.75 } }], { name: "mine", config });
    const records = new RecordWriter(join(run, "trajectories.jsonl"));
    // Three iterations: 0, 0.25 and 0.75 succeed.
    for (const [id, reward] of [0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 1].entries())
      records.append(episode(id, reward));
    records.close();
    const report = join(directory, "page.html");
    const { output, code } = await nlac("view", run, "--report", report);
    expect(code).toBe(0);
    expect(output).toMatch(/^mine: the last iteration, episodes 8 to 11 \(4 episodes over 4 tasks\)\n/);
    expect(output).toMatch(/\n {2}success +0\.75 /);
    expect(output).toMatch(/\n {2}at first +0 .*success of the first iteration\n/);
    const page = readFileSync(report, "utf8");
    expect(page).toContain("<tr><td>success</td><td>0.75</td>");
    expect(page.match(/"id":\d+/g)).toHaveLength(12); // all transcripts
  }));

test("of HOPE, the last iteration's own episodes count: its branches are by others, and its recipe has no size", () =>
  inDirectory(async (directory) => {
    const run = join(directory, "run");
    writeRun(
      run,
      [2, 4].map((episodes, step) => ({ step, values: { episodes } })),
      { name: "hope", config: { episodesPerTask: 1 } },
    );
    const records = new RecordWriter(join(run, "trajectories.jsonl"));
    const branch = (id: number, trajectory: number) => ({
      ...episode(2 ** 30 + id, 1),
      branch: { trajectory, turn: 0 },
    });
    // The first iteration, its branches, and the second one.
    for (const record of [
      episode(0, 0),
      episode(1, 0),
      branch(0, 0),
      branch(1, 1),
      episode(2, 1),
      episode(3, 0),
    ])
      records.append(record);
    records.append(branch(2, 2));
    records.close();
    const { output, code } = await nlac("view", run, "--report", join(directory, "page.html"));
    expect(code).toBe(0);
    expect(output).toMatch(/^hope: the last iteration, episodes 2 to 3 \(2 episodes over 2 tasks\)\n/);
    expect(output).toMatch(/\n {2}success +0\.5 /);
    expect(output).toMatch(/\n {2}at first +0 /);
  }));

test("of a run's evaluations, the last one counts", () =>
  inDirectory(async (directory) => {
    const file = join(directory, "evaluations.jsonl");
    const records = new RecordWriter(file);
    for (const update of [0, 3])
      for (const id of [0, 1, 2, 3])
        records.append({ ...episode(id, Number(update > 0 && id > 0)), split: "test", update });
    records.close();
    const { output, code } = await nlac("view", file, "--report", join(directory, "page.html"));
    expect(code).toBe(0);
    expect(output).toMatch(/: 4 episodes over 4 tasks\n/);
    expect(output).toMatch(/\n {2}success +0\.75 /);
    expect(readFileSync(join(directory, "page.html"), "utf8").match(/"id":\d+/g)).toHaveLength(4);
  }));

test("a run of nlac serve --train shows the episodes of its clients, and its samples their states", () =>
  inDirectory(async (directory) => {
    const run = join(directory, "run");
    writeRun(run, [{ step: 0, values: {} }], { name: "served", config: { episodesPerIteration: 2 } });
    const records = new RecordWriter(join(run, "episodes.jsonl"));
    for (const [id, reward] of [1, 1, 0, 0].entries())
      records.append({ ...episode(id, reward), opening: [{ role: "user", content: `Question ${id}` }] });
    records.close();
    const samples = new RecordWriter(join(run, "samples.jsonl"));
    samples.append({ update: 0, trajectory: 3, turn: 0, texts: { target: "y" }, facts: {} });
    samples.close();
    const { output, code } = await nlac("view", run, "--report", join(directory, "page.html"));
    expect(code).toBe(0);
    expect(output).toMatch(/^served: 4 episodes over 4 tasks\n/);
    expect(output).toMatch(/\n {2}success +0\.5 /);
    expect((await nlac("view", run)).output).toContain("▸ state\n    user: Question 3\n");
  }));

test("of a served run, held-out episodes are counted apart, and repeated leases of a task as one task", () =>
  inDirectory(async (directory) => {
    const run = join(directory, "run");
    writeRun(run, [{ step: 0, values: {} }], { name: "served" });
    const records = new RecordWriter(join(run, "episodes.jsonl"));
    const leased = (id: number, task: number) =>
      `task-${task}-00000000-0000-4000-8000-${String(id).padStart(12, "0")}`;
    for (const [id, reward] of [1, 0, 0, 0, 1, 1].entries())
      records.append({
        ...{ ...episode(id, reward), task: leased(id, id % 2) },
        ...(id > 3 && { split: "test" as const }),
      });
    records.close();
    const report = join(directory, "page.html");
    const { output } = await nlac("view", run, "--report", report);
    expect(output).toMatch(/^served: 4 episodes over 2 tasks\n/);
    expect(output).toMatch(/\n {2}success +0\.25 /);
    expect(output).toMatch(/\n {2}held out +1 .*success of 2 held-out episodes\n/);
    const page = readFileSync(report, "utf8");
    expect(page.match(/"id":\d+/g)).toHaveLength(6);
    expect(page.match(/"task":"held-out task [01]"/g)).toHaveLength(2);
  }));

test("names and texts of a run cannot control the terminal", () =>
  inDirectory(async (directory) => {
    const run = join(directory, "run");
    writeRun(run, [{ step: 0, values: { "a\u001b[2Jb": 0.75 } }], { name: "\u001b]0;mine\u0007" });
    const { isTTY } = process.stdout;
    process.stdout.isTTY = true;
    const { output, code } = await nlac("view", run).finally(() => {
      process.stdout.isTTY = isTTY;
    });
    expect(code).toBe(0);
    expect(output).toMatch(/^␛\]0;mine␇\n\n[\s\S]* a␛\[2Jb +0\.75 /);
    expect(output).not.toMatch(/[^\P{Cc}\n]/u);
  }));

test("a run without samples, such as a copy of a comparison's, shows its figures", () =>
  inDirectory(async (directory) => {
    const run = join(directory, "run");
    writeRun(run, [{ step: 0, values: { "rollout/success": 0.75 } }], { name: "mine" });
    const { output, code } = await nlac("view", run);
    expect([code, output]).toEqual([0, expect.stringMatching(/^mine\n\n[\s\S]* rollout\/success +0\.75 /)]);
  }));
