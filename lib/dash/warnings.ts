/** Symptoms of a run that does not learn: the table of docs/training.md, applied to its metrics. */

import { mean } from "../statistics/mean.ts";
import type { Warning } from "./types.ts";

/** Values of a metric in order. */
type Read = (metric: string) => readonly number[];

/** Rows that a symptom must last. */
const lasting = 20;

export function warningsOf(read: Read): Warning[] {
  const recent = (metric: string) => read(metric).slice(-lasting);
  const warnings: Warning[] = [];
  const add = (symptom: string, cause: string, advice: string) => warnings.push({ symptom, cause, advice });

  for (const role of ["action", "refinement"]) {
    const parsed = recent(`parse/${role}`);
    if (parsed.length > 0 && mean(parsed) < 0.5)
      add(
        `parse/${role} is ${share(mean(parsed))}`,
        "The model does not produce the output format: dropped completions are not trained on.",
        "Longer maxActionTokens; a larger instruction-tuned model; a warm-up; constrainActions.",
      );
  }
  const success = read("rollout/success");
  if (success.length >= 3 && success.every((value) => value === 0))
    add(
      `No episode of ${success.length} iterations succeeded`,
      "No episode shows success.",
      "Easier tasks or more turns, a warm-up, or a score with values between 0 and 1.",
    );
  const yes = recent("yes/critique");
  const changed = recent("refinements/changed");
  const isFlat = yes.length === lasting && (Math.min(...yes) >= 0.99 || Math.max(...yes) <= 0.01);
  if (isFlat && mean(changed) < 0.05)
    add(
      `The critic always says ${yes[0]! > 0.5 ? "Yes" : "No"}, and refinements repeat the attempt`,
      "The critic has collapsed.",
      "A larger model, smaller learning rates, or rehearsal if there are demonstrations.",
    );
  const l1 = quarters(read("loss/l1"));
  const learned = quarters(success);
  const isStuck = learned && learned.last <= learned.first + 0.02 && learned.last < 0.9;
  if (l1 && isStuck && l1.last < 0.7 * l1.first)
    add(
      "L1 falls and success does not rise",
      "The critic may predict well without helping the refiner.",
      "nlac eval RUN --diagnose --temperature 1: at a gain of 0, L2 has nothing to learn from.",
    );
  const uncertainty = quarters(read("entropy/target"));
  const isDrifting = uncertainty && uncertainty.last > 0.3 && uncertainty.last > 3 * uncertainty.first;
  if (l1 && isDrifting && l1.last < l1.first)
    add(
      "Targets become random while L1 falls",
      "θ̄, which writes the targets, loses what it could read from an observation.",
      "A third of targetRate, fewer updatesPerIteration, or rehearsal if there are demonstrations.",
    );
  if (learned && learned.best - learned.last > 0.2)
    add(
      `Success fell from ${share(learned.best)} to ${share(learned.last)}`,
      "Steps are too large.",
      'A third of the learning rates; schedule: { shape: "linear" }.',
    );
  const dropped = recent("targets/dropped").reduce((sum, value) => sum + value, 0);
  if (dropped > 0)
    add(
      `${dropped === 1 ? "1 target was" : `${dropped} targets were`} dropped in the last ${Math.min(lasting, read("targets/dropped").length)} updates`,
      "Prompts do not fit into the model's context, or targets are cut off or cannot be parsed.",
      "Fewer turns or shorter observations; for targets/dropped_cut_off a larger maxCriticTokens.",
    );
  if ([...recent("rollout/faults"), ...recent("eval/faults")].some((value) => value > 0))
    add(
      "Episodes failed",
      "The environment or a service failed.",
      "nlac env check; look at the episodes with faults.",
    );
  // Methods with one step per update have one metric; NLAC and ArCHer have one per loss.
  for (const [metric, steps] of [
    ["skipped", "Steps"],
    ["skipped/critic", "Steps of the critic"],
    ["skipped/policy", "Steps of the policy"],
  ] as const) {
    if (recent(metric).some((value) => value > 0))
      add(
        `${steps} were skipped`,
        "A gradient was not finite; ten in a row end the run.",
        "Smaller learning rates, float32.",
      );
  }
  const tested = read("eval/success").at(-1);
  if (learned && tested !== undefined && learned.last > 0.5 && tested < 0.1)
    add(
      "Success in training, none on held-out tasks",
      "The model memorized the tasks.",
      "More and more varied training tasks.",
    );
  return warnings;
}

/** Means of the first, the best and the last quarter; undefined for less than eight values. */
function quarters(values: readonly number[]): { first: number; best: number; last: number } | undefined {
  if (values.length < 8) return undefined;
  const size = Math.floor(values.length / 4);
  const means = [0, 1, 2, 3].map((i) => {
    const end = i === 3 ? values.length : (i + 1) * size;
    return mean(values.slice(i === 3 ? values.length - size : i * size, end));
  });
  return { first: means[0]!, best: Math.max(...means), last: means[3]! };
}

function share(value: number): string {
  return `${Math.round(value * 100)} %`;
}
