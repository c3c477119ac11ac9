import { expect, test } from "vitest";
import { GuardRails, guardConfig } from "../../lib/agents/guard-rails.ts";
import { HeldOut, heldOutConfig } from "../../lib/agents/held-out.ts";
import type { EpisodeRecord } from "../../lib/episodes/records.ts";

function episode(reward: number, version = "1.0", more: object = {}): EpisodeRecord {
  const turn = { info: { version }, action: "go", reward, terminated: true, truncated: false };
  return { outcome: "done", reward, turns: [turn], split: "test", ...more } as unknown as EpisodeRecord;
}

test("a measurement is the mean over a number of episodes of the current weights", () => {
  const heldOut = new HeldOut(heldOutConfig.parse({ episodes: 2 }));
  expect(heldOut.add(episode(1), 1)).toBe(false);
  expect(heldOut.waiting).toBe(1);
  // Of an earlier start, of a requested version, and one whose environment failed.
  heldOut.add(episode(0, "0.9"), 1);
  const pinned = { turns: [{ info: { version: "1.0", pinned: true }, reward: 0 }] };
  heldOut.add(episode(0, "1.0", pinned), 1);
  heldOut.add(episode(0, "1.0", { outcome: "environment-fault", fault: { code: "X", message: "" } }), 1);
  expect(heldOut.waiting).toBe(1);
  expect(heldOut.add(episode(0), 1)).toBe(true);
  expect(heldOut.take()).toEqual([
    { "eval/success": 0.5, "eval/reward": 0.5, "eval/turns": 1, "eval/episodes": 2 },
  ]);
  expect(heldOut.take()).toEqual([]);
  // Measurements before a rollback do not apply to the new weights.
  heldOut.add(episode(1), 1);
  expect(heldOut.add(episode(1, "2.0"), 2)).toBe(false);
  expect(heldOut.waiting).toBe(1);
});

test("the guard rails take held-out episodes apart from the others", () => {
  const guard = new GuardRails(guardConfig.parse({ episodes: 2 }));
  for (const reward of [0, 0]) guard.add({ ...episode(reward), split: undefined } as EpisodeRecord, 1);
  for (const reward of [1, 1]) guard.add(episode(reward), 1);
  expect(guard.quality).toMatchObject({ success: 0, "eval/success": 1 });
  const version = { name: "1.0", checkpoint: 1, time: 0, quality: { "eval/success": 1 } };
  for (const reward of [0, 1]) guard.add(episode(reward), 1);
  expect(guard.verdict([version])).toMatchObject({
    version,
    reason: "eval/success fell from 1.000 to 0.500",
  });
});
