import { describe, expect, test } from "vitest";
import { outcomeRequest, targetMetrics, withoutMiddle, writeTargets } from "../../lib/roles/targets.ts";
import { errandEnvironment } from "../support/errand.ts";
import {
  act,
  callsOf,
  roleOf,
  roleWriter,
  scriptedRoles,
  target,
  transitionsFrom,
} from "../support/roles.ts";
import { endOfTurn } from "../support/scripted-model.ts";

type Config = Parameters<typeof roleWriter>[1];

/** Targets of an episode's transitions: by default two with a future, and the terminal one. */
async function targetsOf(model = scriptedRoles(), config: Config = {}, environment = errandEnvironment()) {
  const transitions = await transitionsFrom(model, environment);
  const writer = roleWriter(model, config, environment);
  const targets = await writeTargets(writer, transitions);
  const texts = targets.flatMap(({ text }) => text ?? []);
  const students = texts.map(({ student }) => model.decode(student));
  const teachers = texts.map(({ teacher }) => model.decode(teacher));
  return { metrics: { ...writer.metrics(), ...targetMetrics(targets) }, texts, students, teachers };
}

test("the student reads (s, a) and the critic's request; only the teacher reads the observation", async () => {
  const model = scriptedRoles();
  const { students, teachers, texts } = await targetsOf(model);
  expect(texts).toHaveLength(3);
  for (const [i, student] of students.entries()) {
    const teacher = teachers[i]!;
    expect([roleOf(student), roleOf(teacher)]).toEqual(["critic", "backup"]);
    expect(teacher.startsWith(student.slice(0, student.lastIndexOf("<|im_start|>user")))).toBe(true);
    expect(teacher.split("OBSERVED")).toHaveLength(student.split("OBSERVED").length + 1);
    expect(student).not.toContain("Final score");
    expect(texts[i]!.response).toEqual([...model.encode(target), endOfTurn]);
  }
  const k3 = await targetsOf(scriptedRoles(), { futures: 3 });
  expect(k3.students.map(roleOf)).toEqual(["successor", "successor", "successor"]);
});

test("futures and targets are generated under θ̄ in one append-only conversation", async () => {
  const model = scriptedRoles();
  await targetsOf(model);
  expect(model.calls.map(({ weights }) => weights)).toEqual(Array(5).fill("target"));
  const [futures, backups] = [callsOf(model, "future"), callsOf(model, "backup")];
  expect([futures.length, backups.length]).toEqual([2, 3]);
  for (const [i, { prompt }] of futures.entries())
    expect(backups[i]!.prompt.startsWith(`${prompt}a future text<|im_end|>`)).toBe(true);
});

test("a terminal transition has the episode's reward and no future; earlier rewards are reported", async () => {
  const right = scriptedRoles({ policy: act("key") });
  const { teachers } = await targetsOf(right);
  expect(callsOf(right, "future")).toEqual([]);
  expect(teachers).toEqual([expect.stringMatching(/OBSERVED thanks.*Final score: 1/s)]);

  const environment = errandEnvironment();
  const { start } = environment;
  environment.start = async (task, options) => {
    const episode = await start(task, options);
    return { ...episode, step: async (action) => ({ ...(await episode.step(action)), reward: 0.25 }) };
  };
  const rewarded = await targetsOf(scriptedRoles(), {}, environment);
  const reward = "It was rewarded with 0.25.";
  expect(rewarded.teachers.map((text) => text.includes(reward))).toEqual([true, true, false]);
  expect(rewarded.teachers.map((text) => text.includes("Final score: 0.75"))).toEqual([false, false, true]);
});

test.each([
  ["request", "future", 3],
  ["successor", "critic", 3],
  ["monte-carlo", "future", 0],
  ["none", "future", 0],
] as const)(
  "a truncated episode has no outcome: bootstrap %s as before its end",
  async (bootstrap, role, count) => {
    const model = scriptedRoles();
    const { teachers } = await targetsOf(model, { bootstrap }, errandEnvironment({ turnLimitEnds: false }));
    expect(teachers).toHaveLength(3);
    for (const text of teachers) expect(text).not.toMatch(/Final score|ended the task/);
    expect(callsOf(model, role)).toHaveLength(count);
    // After a future the last target is requested as the others are.
    const requests = new Set(teachers.map((text) => text.split("<|im_start|>user").at(-1)));
    if (count > 0) expect(requests.size).toBe(1);
  },
);

test.each([1, 3])("without bootstrap a target depends on the observation only (k = %i)", async (futures) => {
  const model = scriptedRoles();
  const { teachers } = await targetsOf(model, { bootstrap: "none", futures });
  expect(model.calls.map(({ prompt }) => prompt.includes("Starting from this point"))).toEqual([
    ...[false, false, false],
  ]);
  for (const text of teachers) expect(text.split("<|im_start|>user").at(-1)).toContain("OBSERVED wants");
});

describe("a Monte-Carlo target", () => {
  /** The last request of each teacher. */
  async function requestsOf(environment = errandEnvironment(), config: Config = {}) {
    const model = scriptedRoles();
    const targets = await targetsOf(model, { bootstrap: "monte-carlo", ...config }, environment);
    return {
      model,
      ...targets,
      requests: targets.teachers.map((text) => text.split("<|im_start|>user").at(-1)!),
    };
  }

  test("reads every later action and answer and the outcome; no future is generated", async () => {
    const { model, requests, students } = await requestsOf();
    expect(model.calls.map(({ prompt }) => roleOf(prompt))).toEqual(["backup", "backup", "backup"]);
    expect(requests.map((text) => text.split("OBSERVED wants").length - 1)).toEqual([3, 2, 1]);
    expect(requests.map((text) => text.split("You: soap").length - 1)).toEqual([2, 1, 0]);
    for (const text of requests) expect(text).toContain("Final score: 0 (1 is full success, 0 is failure).");
    // The outcome of the last action replaces the future in every kind of target.
    expect(requests.map((text) => text.includes("ended the task"))).toEqual([false, false, true]);
    // What followed is for the teacher only.
    for (const [i, student] of students.entries()) {
      expect(student.split("OBSERVED wants").length - 1).toBe(i);
      expect(student).not.toContain("Final score");
    }
  });

  test("a truncated episode ends without a score, also at its last action", async () => {
    const { requests } = await requestsOf(errandEnvironment({ turnLimitEnds: false }));
    expect(requests.map((text) => text.split("OBSERVED wants").length - 1)).toEqual([3, 2, 1]);
    for (const text of requests) {
      expect(text).toContain("cut short");
      expect(text).not.toMatch(/Final score|ended the task/);
    }
  });

  test("with k > 1 asks for the future only", async () => {
    const { requests } = await requestsOf(errandEnvironment({ turnLimitEnds: false }), { futures: 3 });
    for (const text of requests) expect(text).not.toContain("Optimality:");
  });

  test("leaves turns out of the middle of a long rest, with a mark", async () => {
    const model = scriptedRoles();
    const [first] = await transitionsFrom(model, errandEnvironment({ turns: 8 }));
    const turn = model.encode("You: soap\nAnswer: OBSERVED wants key").length;
    const request = (maxRestTokens: number) => outcomeRequest(roleWriter(model, { maxRestTokens }), first!);
    expect(request(7 * turn)).not.toContain("left out");
    const cut = request(7 * turn - 1);
    expect(cut.match(/You: soap|left out|Final score/g)).toEqual([
      ...Array(3).fill("You: soap"),
      "left out",
      ...Array(3).fill("You: soap"),
      "Final score",
    ]);
    expect(request(1)).toMatch(/went on:\n\n\(Some moves are left out here\.\)\n\nThere the task ended/);
  });

  test("the end of a rest has room before its start", () => {
    const texts = ["aaaa", "b", "ccc", "dd"];
    const shown = [0, 1, 2, 6, 7, 9, 10].map((limit) => withoutMiddle(texts, limit, ({ length }) => length));
    expect(shown).toEqual([
      ...[[""], [""], ["", "dd"], ["aaaa", "", "dd"], ["aaaa", "", "dd"]],
      ...[["aaaa", "", "ccc", "dd"], texts],
    ]);
    expect(withoutMiddle([], 0, () => 1)).toEqual([]);
  });
});

test("a malformed target is trained on, or left out on request", async () => {
  expect((await targetsOf(scriptedRoles({ backup: "whatever" }))).texts).toHaveLength(3);
  const { texts, metrics } = await targetsOf(scriptedRoles({ backup: "whatever" }), { targets: "parsed" });
  expect(texts).toEqual([]);
  expect(metrics).toMatchObject({ "parse/target": 0, "targets/dropped": 3, "targets/dropped_unreadable": 3 });
});

describe("a single-step task", () => {
  const solved = "Correctness:\nNo. It brings the wrong thing.";

  test("has a student that judges correctness and a teacher that has read the score", async () => {
    const model = scriptedRoles({ policy: "\\boxed{1}", critic: solved, backup: solved });
    const { students, teachers, metrics } = await targetsOf(model, {}, errandEnvironment({ turns: 1 }));
    expect(callsOf(model, "future")).toEqual([]);
    expect(students).toEqual([expect.stringContaining("Correctness:")]);
    expect(students[0]).not.toContain("Final score");
    expect(teachers[0]).toContain("Final score: 0");
    expect(metrics["parse/target"]).toBe(1);
    // A solution has no futures, of which k could be sampled.
    const several = await targetsOf(model, { futures: 3 }, errandEnvironment({ turns: 1 }));
    expect(several.students).toEqual(students);
    expect(several.metrics["parse/target"]).toBe(1);
  });

  test("tells the teacher which scores are right and wrong", async () => {
    const model = scriptedRoles({ policy: "\\boxed{1}", critic: solved, backup: solved });
    const graded = { ...errandEnvironment({ turns: 1 }), rewardRange: [-2, 5] as const };
    const { teachers } = await targetsOf(model, {}, graded);
    expect(teachers[0]).toContain("Final score: 0 (5 is correct, -2 is not).");
    const usual = await targetsOf(model, {}, errandEnvironment({ turns: 1 }));
    expect(usual.teachers[0]).toContain("Final score: 0 (1 is correct, 0 is not).");
  });

  test("may be declared for other action formats, and denied for a task of one turn", async () => {
    const model = scriptedRoles({ critic: solved, backup: solved });
    const declared = await targetsOf(model, {}, errandEnvironment({ turns: 1, singleStep: true }));
    expect(roleOf(declared.students[0]!)).toBe("critic");
    expect(declared.students[0]).toContain("Correctness:");
    expect(declared.students[0]).not.toContain("boxed");
    expect(declared.teachers[0]).toMatch(/OBSERVED wants .*Final score: 0/s);
    const denied = await targetsOf(scriptedRoles(), {}, errandEnvironment({ turns: 1, singleStep: false }));
    expect(denied.students[0]).toContain("Optimality:");
  });
});
