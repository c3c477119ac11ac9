import { appendFileSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { OpenLog, type OpenRecord } from "../../lib/serve/open-log.ts";
import { inDirectory } from "../support/tiny.ts";

const open = (name: string, time = 0): OpenRecord => ({
  ...{ name, named: true, rewarded: false, opening: [], turns: [], asked: "a", key: "k", time },
  conversation: { version: 1, tokens: [1], segments: [], turns: [] } as unknown as OpenRecord["conversation"],
});

/** What a server that is started after this one reads. */
function reread(path: string): [string, number][] {
  const log = new OpenLog(path);
  const states = log.read().map(({ name, time }): [string, number] => [name, time]);
  log.close();
  return states;
}

describe("a log of open episodes", () => {
  it("gives the last state of each, without those that ended, the last changed at the end", () =>
    inDirectory((directory) => {
      const path = join(directory, "open.jsonl");
      const log = new OpenLog(path);
      log.put(open("a", 1), false);
      log.put(open("b", 2), true);
      log.put(open("c", 3), false);
      log.put(open("a", 4), false);
      log.end("c");
      log.close();
      expect(reread(path)).toEqual([
        ["b", 2],
        ["a", 4],
      ]);
    }));

  it("loses only the line that a crash left half written", () =>
    inDirectory((directory) => {
      const path = join(directory, "open.jsonl");
      const log = new OpenLog(path);
      log.put(open("a", 1), true);
      log.close();
      const line = readFileSync(path, "utf8");
      appendFileSync(path, line.slice(0, line.length / 2));
      expect(reread(path)).toEqual([["a", 1]]);
    }));

  it("is refused if a line in it is damaged, or if another log has it open", () =>
    inDirectory((directory) => {
      const path = join(directory, "open.jsonl");
      const log = new OpenLog(path);
      expect(() => new OpenLog(path)).toThrow(expect.objectContaining({ code: "ERR_RUN" }));
      log.close();
      appendFileSync(path, "not a record\n");
      expect(() => new OpenLog(path)).toThrow(expect.objectContaining({ code: "ERR_RUN" }));
    }));

  it("is rewritten with the open episodes only", () =>
    inDirectory(async (directory) => {
      const path = join(directory, "open.jsonl");
      const log = new OpenLog(path);
      const now = [open("a", 1)];
      log.start(() => now);
      const { size } = statSync(path);
      for (let i = 0; i < 20; i++) log.put(open("b", i), false);
      expect(statSync(path).size).toBeGreaterThan(10 * size);
      await log.rewrite();
      expect(statSync(path).size).toBe(size);
      log.put(open("c", 9), true);
      log.close();
      expect(reread(path)).toEqual([
        ["a", 1],
        ["c", 9],
      ]);
    }));
});
