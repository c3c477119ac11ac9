import { expect, it } from "vitest";
import { DeviceShare } from "../../lib/agents/device-share.ts";
import { SharedLearner } from "../../lib/agents/shared-learner.ts";
import type { Learner } from "../../lib/learner/learner.ts";
import type { Admission } from "../../lib/serve/conversation-cache.ts";

it("admits requests while a checkpoint is written, and none while weights change", async () => {
  const ends: (() => void)[] = [];
  const call = () => new Promise<void>((resolve) => ends.push(resolve));
  const learner = { save: call, updateTarget: call } as unknown as Learner;
  const model = new SharedLearner(learner, {
    ...{ share: new DeviceShare({ maxFirstTokenMs: 500 }), start: 1, changes: 0 },
    ...{ keptVersions: () => [], pinned: { admit: () => Promise.reject(new Error("unused")) } },
  });
  const saved = model.save("checkpoint");
  const admission = await model.admit(); // before the checkpoint is complete
  admission.leave();
  ends.pop()!();
  await saved;

  const updated = model.updateTarget(0.5);
  let isAdmitted = false;
  const next = model.admit().then((visit) => {
    isAdmitted = true;
    visit.leave();
  });
  await new Promise((resolve) => setTimeout(resolve, 20));
  expect(isAdmitted).toBe(false);
  ends.pop()!();
  await Promise.all([updated, next]);
  expect(isAdmitted).toBe(true);
});

it("answers a request for a version with that version, also if the weights change while it waits", async () => {
  let stepped = (): void => {};
  const learner = {
    step: () => new Promise((resolve) => (stepped = () => resolve({ skipped: false }))),
  } as unknown as Learner;
  const pinned = async (version: string) => ({ version, pinned: true, leave() {} }) as Admission;
  const model = new SharedLearner(learner, {
    ...{ share: new DeviceShare({ maxFirstTokenMs: 500 }), start: 1, changes: 0 },
    ...{ keptVersions: () => ["1.0"], pinned: { admit: pinned } },
  });
  const step = model.step({ learningRate: 0.1 });
  const waiting = ["1.0", undefined].map((version) => model.admit(version));
  stepped();
  await step;
  const admitted = await Promise.all(waiting);
  expect(admitted.map(({ version }) => version)).toEqual(["1.0", "1.1"]);
  admitted[1]!.leave();
  expect(await model.share.alone(0, undefined, async () => "ran")).toBe("ran"); // both have left
});
