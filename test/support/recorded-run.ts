/** A run directory made of records, without a training: with texts that a page must not trust. */

import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { EpisodeRecord, EvaluationRecord } from "../../lib/episodes/records.ts";
import { halvesToBase64 } from "../../lib/files/half-floats.ts";
import { RecordWriter } from "../../lib/files/records.ts";
import { writeDescription } from "../../lib/run/description.ts";
import type { MetricsRow } from "../../lib/run/metrics.ts";
import type { DrawsRecord, ProbeRecord, SampleRecord } from "../../lib/run/samples.ts";
import type { RunStatus } from "../../lib/run/status.ts";

export const hostile = `</script><img src=x onerror="document.title='broken'"> \u202egnitirw\u202c \u0000`;

export interface RecordedParts {
  metrics?: readonly MetricsRow[];
  episodes?: readonly EpisodeRecord[];
  evaluations?: readonly EvaluationRecord[];
  samples?: readonly SampleRecord[];
  draws?: readonly DrawsRecord[];
  probes?: readonly ProbeRecord[];
  status?: RunStatus;
  recipe?: Record<string, unknown>;
}

const files = {
  metrics: "metrics",
  episodes: "trajectories",
  evaluations: "evaluations",
  samples: "samples",
  draws: "draws",
  probes: "probes",
} as const;

export function writeRun(path: string, parts: RecordedParts): void {
  mkdirSync(path, { recursive: true });
  const { recipe = recipeOf(0) } = parts;
  writeDescription(path, { id: path, started: "2026-01-01T00:00:00.000Z", recipe });
  for (const [part, name] of Object.entries(files) as [keyof typeof files, string][]) {
    const writer = new RecordWriter(join(path, `${name}.jsonl`));
    for (const record of parts[part] ?? []) writer.append(record);
    writer.close();
  }
  if (parts.status) writeFileSync(join(path, "status.json"), JSON.stringify(parts.status));
}

export function recipeOf(seed: number, fields: object = {}): Record<string, unknown> {
  return {
    ...{ name: "lamps", algorithm: "nlac", model: "tiny", environment: { name: "./lamp.ts" } },
    config: { seed, iterations: 4, ...fields },
  };
}

export function statusOf(state: RunStatus["state"], heartbeat = Date.now() / 1000): RunStatus {
  return {
    ...{ state, started: heartbeat - 60, heartbeat, phase: "update", done: 3, total: 8 },
    ...{ fraction: 0.5, left: 60 },
  };
}

export function episodeOf(id: number, text = `switch ${id}`, success = id % 2 === 0): EpisodeRecord {
  const turn = (name: string, i: number) => ({
    ...{ state: 2 * i, text: name, action: { text: name }, reward: 0, info: i === 1 ? { success } : {} },
    observation: [{ role: "user" as const, content: `The lamp heard ${name}.` }],
    ...{ terminated: i === 1, truncated: false },
  });
  return {
    ...{ id, task: `lamp-${id % 3}`, seed: id, outcome: "done", reward: success ? 1 : 0 },
    opening: [{ role: "user", content: "Switch on the lamp." }],
    turns: [turn(text, 0), turn(`${text} again`, 1)],
    conversation: { version: 1, tokens: [], segments: [], turns: [], system: false },
  };
}

/** An episode of an evaluation; it succeeds from update 3 on. */
export function evaluationOf(id: number, update: number): EvaluationRecord {
  return { ...episodeOf(id, `press ${id} after ${update}`, update >= 3), split: "test", update };
}

export function sampleOf(update: number, trajectory: number, l1: number, changed = true): SampleRecord {
  const pieces = ["Future:\n", "It ", "lights", ".\nOptimality:\n", "Yes", "<|end|>"];
  const figures = pieces.map((_, i) => (i === 2 ? l1 * pieces.length : 0));
  const logProbs = pieces.map((_, i) => (i === 2 ? -2 : -0.01));
  const best = {
    ids: pieces.flatMap((_, i) => [i, 10]),
    logProbs: halvesToBase64(pieces.flatMap(() => [-0.1, -3])),
  };
  const words = Object.fromEntries([...pieces.map((piece, i) => [i, piece]), [10, "burns"]]);
  return {
    ...{ update, trajectory, turn: 0 },
    texts: {
      ...{
        target: "Future:\nIt lights.\nOptimality:\nYes",
        critic: "Future:\nIt stays dark.\nOptimality:\nNo",
      },
      ...{ attempt: "press the button", critique: "Optimality:\nNo", refinement: "press the switch" },
    },
    facts: { reward: 0, l1, l2: 0.25, probability: 0.125, age: 3, changed },
    parsed: { target: { ok: true, yes: true }, critique: { ok: true, yes: false }, refinement: { ok: true } },
    tokens: {
      target: {
        ...{ ids: pieces.map((_, i) => i), pieces, l1: halvesToBase64(figures) },
        ...{ online: halvesToBase64(logProbs), target: halvesToBase64(logProbs.map(() => -0.05)) },
        best: { count: 2, words, online: best, target: best },
      },
      refinement: { ids: [1, 2], pieces: ["press the ", "switch"], nll: halvesToBase64([0.1, 1.5]) },
    },
  };
}

export function drawsOf(update: number, trajectory: number, l1: number): DrawsRecord {
  return {
    ...{ update, trajectory: [trajectory, trajectory + 1], turn: [0, 0], l1: [l1, null] },
    ...{ probability: [0.125, 0.25], age: [3, 2], target: ["yes", "context"], critique: ["no", "yes"] },
    refinement: ["changed", "same"],
  };
}

export function rowsOf(updates: number, success: (update: number) => number): MetricsRow[] {
  return Array.from({ length: updates }, (_, step) => ({
    ...{ step, time: 1_767_225_600 + 10 * step },
    values: {
      "loss/l1": 1 / (step + 1),
      "tokens/generated": 100,
      "rollout/success": success(step),
      "eval/success": success(step),
      ...{ episodes: 2 * (step + 1), environment_steps: 4 * (step + 1) },
    },
  }));
}

/** A run with something on every screen. */
export function wholeRun(): RecordedParts {
  const updates = [0, 1, 2, 3];
  return {
    metrics: rowsOf(4, (update) => update / 4),
    episodes: updates.flatMap((update) => [episodeOf(2 * update), episodeOf(2 * update + 1, hostile)]),
    evaluations: [0, 3].flatMap((update) => [evaluationOf(0, update), evaluationOf(1, update)]),
    samples: updates.map((update) => sampleOf(update, update, (update + 1) / 10, update !== 2)),
    draws: updates.map((update) => drawsOf(update, 0, (update + 1) / 10)),
    probes: [0, 2].flatMap((update) =>
      [0, 1].map((probe) => ({ ...sampleOf(update, probe, 1 / (update + 1)), probe })),
    ),
    status: statusOf("running"),
  };
}
