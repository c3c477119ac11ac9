import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { OpenEpisode } from "../../lib/serve/open-episode.ts";
import { UnnamedEpisodes } from "../../lib/serve/unnamed-episodes.ts";

type Episode = Pick<OpenEpisode, "asked" | "key" | "turns" | "waiting" | "group">;

/** The same by looking at all of them. `open` has the latest last. */
function findAmong(open: Map<string, Episode>, names: readonly string[], group?: string): string | undefined {
  let longest = -1;
  let found: string | undefined;
  const repeated: string[] = [];
  for (const [name, { waiting, key, asked, turns, ...episode }] of open) {
    if (waiting > 0 || (group !== undefined && episode.group !== group)) continue;
    const at = names.lastIndexOf(key);
    if (at >= 0 && at >= longest) [longest, found] = [at, name];
    if (asked === names.at(-1) && turns.length > 1) repeated.push(name);
  }
  return found ?? (repeated.length === 1 ? repeated[0] : undefined);
}

const name = fc.constantFrom(..."abcdef");
const group = fc.constantFrom(undefined, undefined, "g", "h");
const cacheKey = fc.constantFrom("k0", "k1", "k2", "k3");
const step = fc.oneof(
  fc.record({
    kind: fc.constant("answer" as const),
    ...{ name, group, asked: cacheKey, key: cacheKey, turns: fc.integer({ min: 1, max: 3 }) },
  }),
  fc.record({ kind: fc.constant("end" as const), name }),
  fc.record({ kind: fc.constant("wait" as const), name, waiting: fc.integer({ min: 0, max: 1 }) }),
);

describe("episodes that the client did not name", () => {
  it("are found as if all of them were looked at", () => {
    let found = 0;
    fc.assert(
      fc.property(
        fc.array(step, { maxLength: 30 }),
        fc.array(cacheKey, { minLength: 1, maxLength: 3 }),
        group,
        (steps, names, group) => {
          const open = new Map<string, Episode>();
          const unnamed = new UnnamedEpisodes();
          for (const { name, ...step } of steps) {
            const episode = open.get(name);
            if (step.kind === "wait") {
              if (episode !== undefined) episode.waiting = step.waiting;
            } else {
              open.delete(name);
              if (episode !== undefined) unnamed.remove(name, episode);
              if (step.kind === "end") continue;
              const turns = new Array<never>(step.turns);
              const { asked, key } = step;
              const next = { asked, key, turns, group: step.group, waiting: episode?.waiting ?? 0 };
              open.set(name, next);
              unnamed.add(name, next);
            }
            const expected = findAmong(open, names, group);
            expect(unnamed.find(names, { group })).toBe(expected);
            if (expected !== undefined) found++;
          }
        },
      ),
      { numRuns: 500 },
    );
    expect(found).toBeGreaterThan(100);
  });
});
