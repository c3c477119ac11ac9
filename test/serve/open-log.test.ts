import { appendFileSync, copyFileSync, readFileSync, rmSync, statSync, truncateSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { uniform } from "../../lib/base/random.ts";
import { readEpisodeRecords } from "../../lib/episodes/records.ts";
import { type OpenEpisode, type OpenRecord, openRecord } from "../../lib/serve/open-episode.ts";
import { OpenLog } from "../../lib/serve/open-log.ts";
import { type Redactable, redactEpisode } from "../../lib/serve/redact.ts";
import { CallingModel } from "../support/calling-model.ts";
import { type Messages, same, say, start, turn } from "../support/recording-server.ts";
import { inDirectory } from "../support/tiny.ts";

const model = new CallingModel(() => "Yes.");

/** An episode before its first turn. */
function episode(task: string): OpenEpisode {
  const opening = [{ role: "user" as const, content: task }];
  return {
    ...{ named: true, rewarded: false, acknowledged: [], opening, turns: [], asked: "", key: "", waiting: 0 },
    ...{ conversation: model.conversation(opening), answered: performance.now() },
  };
}

/** The model's turn; `said` is what follows it. As in episodes.ts, nothing is changed in place. */
function act(of: OpenEpisode, text: string, said?: string): OpenEpisode {
  const tokens = [...model.encode(text), model.endOfTurn];
  const state = of.conversation.length;
  const logProbs = Float32Array.from(tokens, (_, i) => -i);
  const conversation = of.conversation.fork().appendGeneration({ tokens, logProbs });
  const observation = said === undefined ? [] : [{ role: "user" as const, content: said }];
  conversation.append(...observation);
  const one = { state, text, action: { text }, observation, reward: 0, terminated: false, truncated: false };
  return { ...of, conversation, turns: [...of.turns, { ...one, info: {} }], asked: text, key: `${text}'` };
}

function rewarded(of: OpenEpisode, at: number, reward: number): OpenEpisode {
  const turns = of.turns.map((one, i) => (i === at ? { ...one, reward: one.reward + reward } : one));
  const one = { key: `${of.acknowledged.length}`, request: "r", turns: 1, reward, terminated: false };
  return { ...of, turns, rewarded: true, acknowledged: [...of.acknowledged, { ...one, truncated: false }] };
}

/** As before the last turn, which is asked for again. */
function undone(of: OpenEpisode): OpenEpisode {
  const last = of.turns.at(-1)!;
  return { ...of, turns: of.turns.slice(0, -1), conversation: of.conversation.prefix(last.state) };
}

/** What a server that is started after this one reads; times depend on when they are computed. */
function reread(path: string): Omit<OpenRecord, "time">[] {
  const log = new OpenLog(path);
  try {
    return log.read().map(({ time: _, ...record }) => record);
  } finally {
    log.close();
  }
}

const asJson = (value: unknown) => JSON.parse(JSON.stringify(value));

function recordOf(name: string, of: OpenEpisode, redact = <T extends Redactable>(record: T) => record) {
  const { time: _, ...record } = redact(openRecord(name, of));
  return asJson(record);
}

describe("a log of open episodes", () => {
  it("gives the last state of each, without those that ended, the last changed at the end", () =>
    inDirectory((directory) => {
      const path = join(directory, "open.jsonl");
      const log = new OpenLog(path);
      const [a, b, c] = ["A", "B", "C"].map((task) => act(episode(task), "one", "and?")) as [
        ...[OpenEpisode, OpenEpisode, OpenEpisode],
      ];
      log.put("a", a, false);
      log.put("b", b, true);
      log.put("c", c, false);
      const later = act(a, "two");
      log.put("a", later, false);
      log.end("c");
      log.close();
      expect(reread(path)).toEqual([recordOf("b", b), recordOf("a", later)]);
    }));

  it("loses only the line that a crash left half written", () =>
    inDirectory((directory) => {
      const path = join(directory, "open.jsonl");
      const log = new OpenLog(path);
      const first = act(episode("A"), "one", "and?");
      log.put("a", first, true);
      const { size } = statSync(path);
      log.put("a", act(first, "two"), true);
      log.close();
      truncateSync(path, Math.floor((size + statSync(path).size) / 2));
      expect(reread(path)).toEqual([recordOf("a", first)]);
    }));

  it("is refused if a line in it is damaged or does not fit, or if another log has it open", () =>
    inDirectory((directory) => {
      const path = join(directory, "open.jsonl");
      const log = new OpenLog(path);
      expect(() => new OpenLog(path)).toThrow(expect.objectContaining({ code: "ERR_RUN" }));
      const states = [act(episode("A"), "one", "and?")];
      for (const text of ["two", "three"]) states.push(act(states.at(-1)!, text, "and?"));
      for (const state of states) log.put("a", state, false);
      log.close();
      const lines = readFileSync(path, "utf8").split(/(?<=\n)/);
      for (const [i, left] of [[lines[0], lines[2]], [lines[1]]].entries()) {
        const other = join(directory, `${i}.jsonl`);
        appendFileSync(other, left.join(""));
        expect(() => reread(other)).toThrow(expect.objectContaining({ code: "ERR_RUN" }));
      }
      appendFileSync(path, "not a record\n");
      expect(() => new OpenLog(path)).toThrow(expect.objectContaining({ code: "ERR_RUN" }));
    }));

  it("acknowledges no reward of a turn that it would lose, because its file was deleted", () =>
    inDirectory(async (directory) => {
      const [record, openLog] = [join(directory, "episodes.jsonl"), join(directory, "open.jsonl")];
      const { client, reward } = await start(same(), record, { openLog });
      await turn(client, [say("Hello")], "a");
      rmSync(openLog);
      expect(await reward("a", { reward: 1, turn: 0 })).toMatchObject({
        ...{ status: 500, error: { code: "ERR_IO", message: expect.not.stringContaining("open.jsonl") } },
      });
      // The final reward writes the whole episode to the recording.
      expect(await reward("a", { reward: 2 })).toMatchObject({ status: 200, reward: 2 });
    }));

  it("is rewritten with the open episodes only, while they go on", () =>
    inDirectory(async (directory) => {
      const path = join(directory, "open.jsonl");
      const log = new OpenLog(path);
      const open = new Map([["a", act(episode("A"), "one", "and?")]]);
      log.start(() => open);
      const lines = () => readFileSync(path, "utf8").trimEnd().split("\n").length;
      const atStart = lines();
      for (let i = 0; i < 20; i++) {
        log.put(`b${i}`, act(episode("B"), "one"), false);
        log.end(`b${i}`);
      }
      expect(lines()).toBe(atStart + 40);
      await log.rewrite();
      expect(lines()).toBe(atStart);
      const rewritten = log.rewrite();
      open.set("a", act(open.get("a")!, "two"));
      log.put("a", open.get("a")!, true);
      log.put("gone", act(episode("C"), "one"), false);
      log.end("gone");
      await rewritten;
      log.close();
      expect(reread(path)).toEqual([recordOf("a", open.get("a")!)]);
    }));

  // What a killed process leaves of the log, after any change: turns, repeated turns, rewards of
  // earlier ones, ends, failed writes, and rewriting at any moment.
  it.each(["as they are", "redacted"])("has the latest states after a kill, %s", (how) =>
    inDirectory(async (directory) => {
      const redact =
        how === "redacted"
          ? <T extends Redactable>(record: T) =>
              redactEpisode(record, (text) => text.replaceAll("7", "[seven]"), model.tokenizer!)
          : <T extends Redactable>(record: T) => record;
      for (let seed = 0; seed < 6; seed++) {
        const path = join(directory, `${how}-${seed}.jsonl`);
        const copy = `${path}.copy`;
        const open = new Map<string, OpenEpisode>();
        const log = new OpenLog(path);
        log.start(() => open, redact);
        let rewriting: Promise<void> | undefined;
        let draws = 0;
        const below = (count: number) => Math.floor(uniform(seed, 0, draws++) * count);
        for (let step = 0; step < 36; step++) {
          const name = `e${below(3)}-${Math.floor(step / 12)}`;
          const now = open.get(name);
          const kind = below(8);
          if (kind === 0) rewriting ??= log.rewrite().then(() => (rewriting = undefined));
          else if (kind === 1) await rewriting;
          else if (kind === 2 && now !== undefined) {
            open.delete(name);
            log.end(name);
          } else {
            const next =
              now === undefined
                ? act(episode(`Task 7 ${name}`), `one ${step}`)
                : kind === 3
                  ? rewarded(now, below(now.turns.length), step)
                  : act(kind === 4 && now.turns.length > 1 ? undone(now) : now, `${step}`, `and ${step}?`);
            open.delete(name);
            open.set(name, next);
            // A write that failed is made up for by the next one of the episode.
            if (kind === 5 && now !== undefined) {
              open.set(name, act(next, "after a failure 7"));
              log.put(name, open.get(name)!, false);
            } else log.put(name, next, kind === 6);
          }
          if (rewriting !== undefined) continue; // then the order of the lines may differ
          copyFileSync(path, copy);
          const states = [...open].map(([name, state]) => recordOf(name, state, redact));
          expect(reread(copy)).toEqual(states);
        }
        await rewriting;
        log.close();
        const byName = (records: { name: string }[]) =>
          records.toSorted((a, b) => a.name.localeCompare(b.name));
        const states = [...open].map(([name, state]) => recordOf(name, state, redact));
        expect(byName(reread(path) as never)).toEqual(byName(states));
      }
    }),
  );
});

describe("an episode of 200 turns", () => {
  it("is logged in proportion to what is said, and continued by another server", () =>
    inDirectory(async (directory) => {
      const [record, openLog] = [join(directory, "episodes.jsonl"), join(directory, "open.jsonl")];
      const played = await start(same(), record, { openLog });
      const messages: Messages = [];
      const sizes: number[] = [];
      const play = async ({ client, reward }: typeof played, turns: number) => {
        for (let i = 0; i < turns; i++) {
          messages.push(say("What now?"));
          messages.push((await turn(client, messages, "long")).said as Messages[number]);
          await reward("long", { reward: 0.5, turn: i }, { "Idempotency-Key": `${messages.length}` });
          sizes.push(statSync(openLog).size);
        }
      };
      await play(played, 200);
      const [half, whole] = [sizes[99]!, sizes[199]!];
      expect(whole - half).toBeLessThan(1.3 * half);
      await played.server.close(20);

      const next = await start(same(), record, { openLog });
      messages.push(say("And then?"));
      await turn(next.client, messages, "long");
      expect(await next.reward("long", { reward: 1 })).toMatchObject({ turns: 201, reward: 101 });
      const [written] = [...readEpisodeRecords(record)];
      expect(written!.turns.map(({ reward }) => reward)).toEqual([...Array(200).fill(0.5), 1]);
      expect(written!.turns.slice(0, -1).map(({ observation }) => observation[0]!.content)).toEqual([
        ...[...Array(199).fill("What now?"), "And then?"],
      ]);
      // The file of the recording is the measure of what was said.
      expect(whole).toBeLessThan(20 * statSync(record).size);
    }));
});
