import { expect, it } from "vitest";
import { DeviceShare } from "../../lib/agents/device-share.ts";
import { SharedLearner } from "../../lib/agents/shared-learner.ts";
import type { Learner } from "../../lib/learner/learner.ts";

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
