/** The official data: everything recorded with tau-bench's own implementation, call by call. */

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import type { DomainName } from "../../../lib/environments/tau-bench/domain.ts";
import { openDomain } from "../../../lib/environments/tau-bench/domain.ts";
import { tauBench } from "../../../lib/environments/tau-bench/index.ts";
import { readTasks } from "../../../lib/environments/tau-bench/tasks.ts";
import { canonicalForm, dumps, hashedText } from "../../../lib/environments/tau-bench/text.ts";
import { stopWord, type User } from "../../../lib/environments/tau-bench/user.ts";
import { type Dict, parseJson, type Value } from "../../../lib/environments/tau-bench/values.ts";
import { dataFile } from "../data.ts";

const data = dataFile("tau-bench");

/** A field of a recorded value, whose form is known. */
const field = <T extends Value>(value: Value, key: string): T => (value as Dict).get(key) as T;
const list = (value: Value, key: string) => field<Value[]>(value, key);
const golden = (domain: DomainName, name: string) =>
  parseJson(readFileSync(join(data!, domain, `golden_${name}.json`), "utf8"));
const sha256 = (text: string) => createHash("sha256").update(text).digest("hex");

/** Ends the conversation after any text. */
const hasty: User = {
  start: async () => ({ opening: "Hello.", respond: async () => stopWord }),
};

describe.skipIf(data === undefined).each([
  // Tasks; those whose database is right without any call; and of these, those without required
  // outputs.
  ["retail", ["test", "train", "dev"], { test: [115, 11, 7], train: [500, 5, 5] }],
  ["airline", ["test"], { test: [50, 20, 19] }],
] as const)("the official data of %s", (name, splits, floors) => {
  const domain = data === undefined ? undefined! : openDomain(name, data);

  it.each([...splits, "fuzz"])(
    "%s: the same observations, hashes and changed records",
    (split) => {
      const file = golden(name, split);
      if (split !== "fuzz") {
        const fresh = domain.open().state;
        expect(fresh.referenceHash).toBe(field(file, "initial_data_hash"));
        expect(fresh.sha256).toBe(field(file, "initial_canonical_sha256"));
      }
      for (const run of list(file, split === "fuzz" ? "sequences" : "tasks")) {
        const database = domain.open();
        for (const step of list(run, "steps")) {
          const { observation } = database.call(field(step, "name"), field<Dict>(step, "kwargs"));
          expect(observation, dumps(step).slice(0, 300)).toBe(field(step, "observation"));
        }
        const { state } = database;
        expect([state.referenceHash, state.sha256]).toEqual([
          field(run, "data_hash"),
          field(run, "canonical_sha256"),
        ]);
        for (const [table, records] of field<Dict>(run, "changed")) {
          for (const [id, hash] of records as Dict) {
            expect(sha256(hashedText(state.record(table, id)!, canonicalForm)), id).toBe(hash);
          }
        }
      }
    },
    60_000,
  );

  it("wrong calls get the recorded answers and leave the recorded state", () => {
    for (const wrong of list(golden(name, "errors"), "cases")) {
      const database = domain.open();
      for (const call of list(wrong, "setup"))
        database.call(field(call, "name"), field<Dict>(call, "kwargs"));
      const before = database.state;
      const { observation } = database.call(field(wrong, "name"), field<Dict>(wrong, "kwargs"));
      const label = dumps(wrong).slice(0, 300);
      if (field(wrong, "exception") === null) expect(observation, label).toBe(field(wrong, "observation"));
      else expect(observation, label).toMatch(/^Error: /);
      const { state } = database;
      expect(state.sha256 !== before.sha256, label).toBe(field(wrong, "db_changed_by_call"));
      if (!(wrong as Dict).has("data_hash")) continue;
      expect(state.referenceHash, label).toBe(field(wrong, "data_hash"));
      expect(state.sha256, label).toBe(field(wrong, "canonical_sha256"));
    }
  }, 60_000);

  it.each(splits)(
    "%s: the same four rewards",
    async (split) => {
      const environment = tauBench({
        domain: name,
        data,
        user: hasty,
        turns: 100,
        test: `tasks_${split}.json`,
      });
      const tasks = await environment.tasks("test");
      for (const run of list(golden(name, split), "tasks")) {
        const task = tasks[Number(field<bigint>(run, "index"))]!;
        const play = async (calls: typeof task.actions, said: string) => {
          const episode = await environment.start(task, { seed: 0 });
          for (const call of calls.filter(({ name }) => name !== "transfer_to_human_agents")) {
            const text = `{"name": ${JSON.stringify(call.name)}, "arguments": ${call.arguments}}`;
            await episode.step({ text, tool: JSON.parse(text) });
          }
          const { reward, terminated } = await episode.step({ text: said });
          expect(terminated).toBe(true);
          return reward;
        };
        const everything = task.outputs.join("; ");
        expect(
          {
            whole: await play(task.actions, everything),
            silent: await play(task.actions, ""),
            idle: await play([], everything),
            // Not recorded if there is nothing to leave out.
            ...(task.actions.length > 0 && { cut: await play(task.actions.slice(0, -1), everything) }),
          },
          task.id,
        ).toEqual({
          whole: field(run, "reward_ground_truth"),
          silent: field(run, "reward_ground_truth_without_outputs"),
          idle: field(run, "reward_no_action"),
          ...(task.actions.length > 0 && { cut: field(run, "reward_drop_last_action") }),
        });
      }
    },
    60_000,
  );

  it("an agent that does nothing succeeds on the expected number of tasks", async () => {
    const environment = tauBench({ domain: name, data, user: hasty });
    for (const [split, expected] of Object.entries(floors)) {
      const tasks = readTasks(join(domain.directory, `tasks_${split}.json`), split);
      const sums = [tasks.length, 0, 0];
      for (const task of tasks) {
        const episode = await environment.start(task, { seed: 0 });
        const { reward, info } = await episode.step(environment.idle!);
        sums[1]! += Number(info.databaseCorrect);
        sums[2]! += reward;
      }
      expect(sums, split).toEqual(expected);
    }
  }, 60_000);
});
