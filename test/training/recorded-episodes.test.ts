import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { readSampled, toRecord } from "../../lib/episodes/records.ts";
import type { Trajectory } from "../../lib/episodes/trajectory.ts";
import { RecordWriter } from "../../lib/files/records.ts";
import { policyConversation } from "../../lib/prompts/policy.ts";
import { recordedEpisodes } from "../../lib/training/recorded-episodes.ts";
import { errandEnvironment, play } from "../support/errand.ts";
import { ScriptedModel } from "../support/scripted-model.ts";

const root = mkdtempSync(join(tmpdir(), "nlac-recorded-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));

test("branches name the new numbers of the episodes that they repeat, in each file by itself", async () => {
  const environment = errandEnvironment();
  const [episode] = await play(() => "Thought:\nhm\nAction:\nsoap", environment);
  const own = (id: number): Trajectory => ({ ...episode!, id });
  const branch = (id: number, trajectory: number): Trajectory => ({
    ...own(id),
    branch: { trajectory, turn: 0 },
  });
  const file = (name: string, episodes: Trajectory[]) => {
    const path = join(root, name);
    const writer = RecordWriter.resume(path);
    for (const one of episodes) writer.append(toRecord(one));
    writer.close();
    return path;
  };
  const files = [
    file("first.jsonl", [own(40), own(41), branch(2 ** 30, 41)]),
    // Branches of a branch and of an episode that is not in the file count as episodes.
    file("second.jsonl", [
      own(41),
      branch(2 ** 30, 41),
      branch(2 ** 30 + 1, 2 ** 30),
      branch(2 ** 30 + 2, 40),
    ]),
  ];
  const model = new ScriptedModel(() => "");
  const read: [number, object | undefined][] = [];
  for await (const { id, branch } of recordedEpisodes(files, model, environment)) read.push([id, branch]);
  expect(read).toEqual([
    [0, undefined],
    [1, undefined],
    [2, { trajectory: 1, turn: 0 }],
    [3, undefined],
    [4, { trajectory: 3, turn: 0 }],
    [5, undefined],
    [6, undefined],
  ]);
  // NLAC reads them without the environment.
  expect([...readSampled(files, model)].map(({ id, branch }) => [id, branch])).toEqual(read);
});

test("episodes on test tasks are left out, and a file without others is refused", async () => {
  const environment = errandEnvironment();
  const [episode] = await play(() => "Thought:\nhm\nAction:\nsoap", environment);
  const model = new ScriptedModel(() => "");
  const file = (name: string, splits: ("test" | undefined)[]) => {
    const path = join(root, name);
    const writer = RecordWriter.resume(path);
    for (const [id, split] of splits.entries())
      writer.append({ ...toRecord({ ...episode!, id, task: split ?? "train" }), ...(split && { split }) });
    writer.close();
    return path;
  };
  const mixed = file("mixed.jsonl", ["test", undefined, "test", undefined]);
  const heldOut = file("held-out.jsonl", ["test", "test"]);
  const refused = {
    code: "ERR_RUN",
    message: expect.stringMatching(/held-out.*all 2 episodes.*--split train/),
  };

  // Of SFT and DPO.
  const read = async (path: string) => {
    const tasks: string[] = [];
    for await (const { task } of recordedEpisodes([path], model, environment)) tasks.push(task);
    return tasks;
  };
  expect(await read(mixed)).toEqual(["train", "train"]);
  await expect(read(heldOut)).rejects.toMatchObject(refused);
  // Of NLAC.
  expect([...readSampled([mixed], model)].map(({ task }) => task)).toEqual(["train", "train"]);
  expect(() => [...readSampled([heldOut], model)]).toThrow(expect.objectContaining(refused));
});

test("an episode of another chat template is rendered again, although its ids can be read", async () => {
  const environment = errandEnvironment();
  const [episode] = await play(() => "Thought:\nhm\nAction:\nsoap", environment);
  const path = join(root, "other-template.jsonl");
  const writer = RecordWriter.resume(path);
  writer.append(toRecord(episode!));
  writer.close();
  const other =
    "{% for message in messages %}<|im_start|>{{ message.role }}: {{ message.content }}<|im_end|>{% endfor %}" +
    "{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}";
  const read = async (model: ScriptedModel) => {
    const states: number[][] = [];
    for await (const { turns } of recordedEpisodes([path], model, environment))
      states.push(turns[0]!.state.prompt());
    return states;
  };
  const { state } = episode!.turns[0]!;
  expect(await read(new ScriptedModel(() => ""))).toEqual([state.prompt()]);
  const model = new ScriptedModel(() => "", other);
  const opening = policyConversation(model, { messages: [...episode!.opening!] }, "text").prompt();
  expect(await read(model)).toEqual([opening]);
  expect(opening).not.toEqual(state.prompt());
});

test("an environment that never starts the episode with the tools is a fault after its timeout", async () => {
  const environment = errandEnvironment();
  const [episode] = await play(() => "Thought:\nhm\nAction:\nsoap", environment);
  const path = join(root, "other-tokenizer.jsonl");
  const writer = RecordWriter.resume(path);
  const { turns, ...record } = toRecord(episode!);
  writer.append({ ...record, turns: turns.map((turn) => ({ ...turn, text: "other ids" })) });
  writer.close();
  const hanging = {
    ...environment,
    ...{ actionFormat: "tool" as const, stepTimeout: 5, start: () => new Promise<never>(() => {}) },
  };
  const read = recordedEpisodes([path], new ScriptedModel(() => ""), hanging);
  await expect(read.next()).rejects.toMatchObject({ code: "ERR_ENVIRONMENT" });
});
