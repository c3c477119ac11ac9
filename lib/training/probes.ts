/**
 * Probes: a few transitions of the first iteration. At every evaluation all their completions are
 * generated again with the same random numbers, so that two records differ only by what was learned
 * in between.
 */

import { derivedSeed, streams } from "../base/random.ts";
import type { Environment } from "../contract/environment.ts";
import type { Transition } from "../episodes/trajectory.ts";
import type { LanguageModel, Support } from "../model/language-model.ts";
import { refine } from "../roles/refinements.ts";
import { type RolesConfig, RoleWriter } from "../roles/role-writer.ts";
import { writeTargets } from "../roles/targets.ts";
import type { SampleRecord } from "../run/samples.ts";
import type { TrainingRun } from "../run/training-run.ts";
import { criticLosses, inGroups, supportOf } from "./losses.ts";
import { explain, recordSamples } from "./recording.ts";
import { bestCount } from "./token-records.ts";

/** The parts of a training that probes read; the algorithm passes its own. */
export interface ProbedTraining {
  model: LanguageModel;
  environment: Pick<Environment, "actionFormat" | "singleStep" | "rewardRange">;
  run: TrainingRun;
  /** Their transitions, which `chooseProbes` or a restart fills in. */
  probes: Transition[];
  state: {
    iteration: number;
    updates: number;
    evaluated?: number;
    /** Value of `evaluated` when they were explained last. */
    probed?: number;
  };
  config: RolesConfig & { support: Support };
}

type Place = Pick<Transition, "trajectory" | "turn">;

/** At most `count` of the transitions, evenly spaced, with the first and the last. */
export function chooseProbes(transitions: readonly Transition[], count: number): Transition[] {
  const last = transitions.length - 1;
  const indices = Array.from({ length: count }, (_, i) => Math.round((i * last) / Math.max(1, count - 1)));
  return last < 0 ? [] : [...new Set(indices)].map((i) => transitions[i]!);
}

/** Passes `transitions` on, and takes the probes of a resumed run from them. */
export async function* tapProbes(
  { probes, state }: Pick<ProbedTraining, "probes"> & { state: { probes?: readonly Place[] | undefined } },
  transitions: AsyncIterable<Transition>,
): AsyncGenerator<Transition> {
  for await (const transition of transitions) {
    const isProbe = ({ trajectory, turn }: Place) =>
      trajectory === transition.trajectory && turn === transition.turn;
    if (state.probes?.some(isProbe)) probes.push(transition);
    yield transition;
  }
}

/**
 * Explains the probes once after every evaluation. Throws ERR_ABORTED; nothing is recorded then.
 */
export async function explainProbes(training: ProbedTraining): Promise<void> {
  const { model, environment, run, probes, state } = training;
  if (state.evaluated === undefined || state.probed === state.evaluated || probes.length === 0) return;
  const config = { ...training.config, seed: derivedSeed(training.config.seed, streams.probes, 0) };
  const writer = new RoleWriter(model, environment, config, 0, run.signal);
  const targets = await writeTargets(writer, probes);
  const refinements = await refine(writer, probes);
  const taught = targets.flatMap(({ text }, i) => (text === undefined ? [] : [{ text, i }]));
  const l1 = await criticLosses(
    model,
    taught.map(({ text }) => text),
    run.signal,
    { support: supportOf(config), withGradient: false, detail: bestCount },
  );
  const kept = refinements.flatMap(({ text }, i) => (text === undefined ? [] : [{ text, i }]));
  const l2 = await inGroups(
    kept.map(({ text }) => text),
    run.signal,
    (group) => model.tokenNll(group, { withGradient: false }),
  );
  const places = targets.map((_, i) => taught.findIndex((entry) => entry.i === i));
  const all = probes.map((_, i) => i);
  // Probes are few and rare: their figures have no limit.
  const tokenBytes = Number.POSITIVE_INFINITY;
  const records = await explain(
    { model, config, run: { signal: run.signal, tokenBytes } },
    {
      ...{ update: state.updates, transitions: probes, targets, refinements },
      losses: places.map((at) => l1.losses[at]),
      details: places.map((at) => l1.details[at]),
    },
    ...([all, true, all] as const),
  );
  await model.dropCaches(); // later generations must not depend on the probes
  let probe = 0;
  const sample = (record: SampleRecord) => run.probe({ ...record, probe: probe++ });
  recordSamples(
    { model, run: { tokenBytes, sample } },
    records.map((record, i) => {
      const at = kept.findIndex((entry) => entry.i === i);
      return { record, kept: at < 0 ? undefined : at };
    }),
    kept.map(({ text }) => text),
    l2,
  );
  state.probed = state.evaluated;
}
