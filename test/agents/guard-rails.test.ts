import { expect, test } from "vitest";
import { GuardRails, guardConfig } from "../../lib/agents/guard-rails.ts";
import type { EpisodeRecord } from "../../lib/episodes/records.ts";

function episode(reward: number, readable = true, info: object = { version: "1.5" }): EpisodeRecord {
  const turn = {
    ...{ state: 0, text: "", observation: [], reward, truncated: false, info: { ...info } },
    terminated: true,
  };
  return {
    ...{ id: 0, task: "", seed: 0, outcome: "done", reward },
    turns: [readable ? { ...turn, action: { text: "a" } } : { ...turn, malformed: "no" }],
    conversation: { version: 1, tokens: [], segments: [], turns: [], system: false },
  };
}

const version = (checkpoint: number, quality: Record<string, number>) => ({
  ...{ name: `1.${checkpoint}`, checkpoint, time: 0, quality },
});

test("goes back to the best version when a metric has fallen too far", () => {
  const guard = new GuardRails(guardConfig.parse({ episodes: 4, maxFall: { success: 0.35, parse: 0.35 } }));
  const versions = [version(3, { success: 0.6 }), version(2, { success: 0.8, parse: 1 }), version(1, {})];
  for (const reward of [1, 0, 0]) guard.add(episode(reward), 1);
  expect(guard.quality).toEqual({}); // too few
  expect(guard.verdict(versions)).toBeUndefined();
  guard.add(episode(1), 1);
  expect(guard.quality).toEqual({ success: 0.5, reward: 0.5, parse: 1 });
  expect(guard.verdict(versions)).toBeUndefined(); // a fall of 0.3
  guard.add(episode(0), 1); // the first, which succeeded, no longer counts
  expect(guard.verdict(versions)).toMatchObject({
    version: { name: "1.2" },
    reason: "success fell from 0.800 to 0.250",
  });
  guard.reset();
  expect(guard.verdict(versions)).toBeUndefined();
});

test("watches unreadable turns and the metrics of clients", () => {
  const guard = new GuardRails(guardConfig.parse({ episodes: 2, maxFall: { parse: 0.4, stars: 1 } }));
  for (let i = 0; i < 2; i++) guard.add(episode(1, false), 1);
  expect(guard.verdict([version(1, { parse: 1 })])?.reason).toBe("parse fell from 1.000 to 0.000");
  guard.post("stars", 2);
  guard.post("stars", 3);
  const versions = [version(2, { stars: 4, parse: 0 }), version(1, { stars: 3 })];
  expect(guard.verdict(versions)).toMatchObject({
    version: { name: "1.2" },
    reason: "stars fell from 4.000 to 2.500",
  });
});

test("leaves out episodes of pinned versions and of other starts of the server", () => {
  const guard = new GuardRails(guardConfig.parse({ episodes: 1 }));
  guard.add(episode(0, true, { version: "1.5", pinned: true }), 1);
  guard.add(episode(0, true, { version: "1.5" }), 2);
  guard.add(episode(0, true, { version: "11.5" }), 1);
  guard.add(episode(0, true, {}), 1);
  expect(guard.quality).toEqual({});
  guard.add(episode(1, true, { version: "1.5" }), 1);
  expect(guard.quality).toMatchObject({ success: 1 });
});

test("keeps what it measures apart from posted metrics of the same names", () => {
  const guard = new GuardRails(guardConfig.parse({ episodes: 2 }));
  for (let i = 0; i < 2; i++) {
    guard.add(episode(1), 1);
    guard.add({ ...episode(1), split: "test" }, 1);
    for (const name of ["success", "reward", "parse", "eval/success"]) guard.post(name, 0);
  }
  expect(guard.quality).toEqual({ success: 1, reward: 1, parse: 1, "eval/success": 1 });
  expect(guard.verdict([version(1, { success: 1, parse: 1, "eval/success": 1 })])).toBeUndefined();
  guard.reset();
  expect(guard.quality).toEqual({});
});

test("measures finite numbers, however large the rewards and metrics are", () => {
  const guard = new GuardRails(guardConfig.parse({ episodes: 2 }));
  for (let i = 0; i < 2; i++) {
    guard.add(episode(1.7e308), 1);
    guard.post("stars", -1.7e308);
  }
  expect(guard.quality).toMatchObject({ reward: 1.7e308, stars: -1.7e308 });
});

test("takes metrics of a limited number of names", () => {
  const guard = new GuardRails(guardConfig.parse({}));
  const names = Array.from({ length: 256 }, (_, i) => `${i}`);
  expect(guard.takes([...names, "256"])).toBe(false);
  for (const name of names) {
    expect(guard.takes([name])).toBe(true);
    guard.post(name, 1);
  }
  expect(guard.takes(["7", "8"])).toBe(true);
  expect(guard.takes(["7", "256"])).toBe(false);
  guard.reset();
  expect(guard.takes(["256"])).toBe(true);
});
