import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { sampleView } from "../../lib/dash/views.ts";
import { readSamples, type SampleRecord, withContext } from "../../lib/run/samples.ts";
import { episodeOf, writeRun } from "../support/recorded-run.ts";

let path: string;
beforeEach(() => {
  path = mkdtempSync(join(tmpdir(), "nlac-samples-"));
});
afterEach(() => rmSync(path, { recursive: true, force: true }));

const sample = (fields: Partial<SampleRecord>): SampleRecord => ({
  ...{ update: 1, trajectory: 4, texts: {}, facts: {} },
  ...fields,
});
const opening = "user: Switch on the lamp.";

test("state and observation come from the episode; what was trained comes from the sample", () => {
  const samples = [
    sample({ turn: 1, texts: { action: "better action" } }),
    sample({ turn: 0 }),
    sample({ texts: { episode: "all of it" } }),
    sample({ trajectory: 9, turn: 0, texts: { action: "of an unknown episode" } }),
    sample({ turn: 1, texts: { state: "of an earlier version", action: "a" } }),
  ];
  writeRun(path, { episodes: [episodeOf(3, "other"), episodeOf(4, "press")], samples });
  const later = `${opening}\nassistant: press\nuser: The lamp heard press.`;
  expect(withContext(path, [...readSamples(path)]).map(({ texts }) => texts)).toEqual([
    { state: later, action: "better action", observation: "The lamp heard press again." },
    { state: opening, action: "press", observation: "The lamp heard press." },
    { state: opening, episode: "all of it" },
    { action: "of an unknown episode" },
    { state: "of an earlier version", action: "a" },
  ]);
});

test("the page shows the first state of a whole episode", () => {
  const view = sampleView(sample({ texts: { episode: "all of it" } }), episodeOf(4), true);
  expect(view.state).toEqual([{ role: "user", content: "Switch on the lamp." }]);
  expect(view.texts.episode).toBe("all of it");
  expect(view.texts.action).toBeUndefined();
});
