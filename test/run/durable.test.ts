import type * as Fs from "node:fs";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { expect, test, vi } from "vitest";
import { silentProgress } from "../../lib/display/progress.ts";
import { ReplayBuffer } from "../../lib/replay/buffer.ts";
import { RunDirectory } from "../../lib/run/directory.ts";
import { ScriptedModel } from "../support/scripted-model.ts";

/** What a run did to the disk, in order: "sync PATH", "rename PATH", "remove PATH". */
const { done } = vi.hoisted(() => ({ done: [] as string[] }));

vi.mock("node:fs", async (original) => {
  const { watchedDisk } = await import("../support/watched-disk.ts");
  const fs = await original<typeof Fs>();
  const watched = watchedDisk(fs, {
    synced: (path) => done.push(`sync ${path}`),
    renamed: (to) => done.push(`rename ${to}`),
  });
  return {
    ...watched,
    rmSync: (path: string, options: Fs.RmOptions) => {
      if (fs.existsSync(path)) done.push(`remove ${path}`);
      fs.rmSync(path, options);
    },
  };
});

test("a checkpoint, and that it is the latest, are on disk before an older one is removed", async () => {
  const path = join(mkdtempSync(join(tmpdir(), "nlac-durable-")), "run");
  const run = RunDirectory.create(path, {
    signal: new AbortController().signal,
    progress: silentProgress,
    description: {},
    keepCheckpoints: 1,
  });
  const replay = new ReplayBuffer({ capacity: 2, priorityExponent: 1, importanceExponent: 0, seed: 0 });
  const checkpoint = { state: {}, model: new ScriptedModel(() => ""), replay };
  await run.checkpoint(checkpoint, true);
  done.length = 0;
  await run.checkpoint(checkpoint, true);
  replay.dispose();
  const names = done.map((what) => {
    const [verb, where] = what.split(" ") as [string, string];
    return `${verb} ${relative(path, where).replace(/\.\d+\.partial$/, "") || "."}`;
  });
  run.close();
  const order = [
    "sync trajectories.jsonl",
    "sync checkpoints/.000001/state.json",
    "sync checkpoints/.000001",
    "rename checkpoints/000001",
    "sync checkpoints",
    "sync latest",
    "rename latest",
    "sync .",
    // It has no name before a part of it is missing.
    "rename checkpoints/.000000",
    "sync checkpoints",
    "remove checkpoints/.000000",
  ];
  // Each after the one before it.
  let last = -1;
  for (const what of order) {
    const at = names.indexOf(what, last + 1);
    expect(at, what).toBeGreaterThan(last);
    last = at;
  }
  expect(names).not.toContain("remove checkpoints/000000");
});
