/** The configuration of HOPE, and the state of its checkpoints. */

import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import type { Environment } from "../contract/environment.ts";
import type { Stream, Trajectory } from "../episodes/trajectory.ts";
import { sampledConfig } from "../playing/config.ts";
import { countersSchema, newCounters } from "../run/training-run.ts";
import { optimizerConfig, trainingConfig } from "./config.ts";
import { scheduleConfigOf } from "./schedule.ts";

const count = z.int().min(1);
const share = z.number().min(0).max(1);

/** Who writes proposals; a service's options otherwise. */
const proposalSource = z.union([
  z.enum(["policy", "environment", "different"]),
  z.record(z.string(), z.unknown()),
]);

/** Each field: meaning, unit, default and, if there is one, the source. "Paper" is HOPE's. */
export const hopeConfig = z
  .strictObject({
    ...trainingConfig.shape,
    /** Iterations K. Default and paper: 2. */
    iterations: z.int().min(0).default(2),
    /** Training tasks per iteration; 0 is all. Default and paper: all. */
    tasksPerIteration: z.int().min(0).default(0),
    /** On-policy episodes per task and iteration. Default and paper: 14. */
    episodesPerTask: count.default(14),

    /**
     * Of these, episodes per task that are branched; 0 is the paper's PRM+RL. Default and paper: 4.
     */
    branchedEpisodes: z.int().min(0).default(4),
    /**
     * Turns of a branched episode at which other actions are proposed. Default and paper: 2; Car
     * Dealer: 2 steps, each a call and a reply, which are 4 turns here.
     */
    turnsPerEpisode: count.default(2),
    /** Actions proposed per turn, each with a branch. Default and paper: 2. */
    proposalsPerTurn: count.default(2),
    /**
     * Turns t, from 0, that may be branched at, in an episode of T turns: low·T ≤ t < high·T for
     * `shares` [low, high], or first ≤ t < T - last for `turns` [first, last]. Default and paper,
     * 20 Questions: shares [0.3, 0.6]; Guess My City: [0.3, 0.8]; Car Dealer: [2, T - 1] in steps
     * of two turns, here turns [4, 0].
     */
    branchRange: z
      .union([
        z.strictObject({ shares: z.tuple([share, share]) }),
        z.strictObject({ turns: z.tuple([z.int().min(0), z.int().min(0)]) }),
      ])
      .prefault({ shares: [0.3, 0.6] }),
    /**
     * Who writes proposals: "policy", the trained policy; "environment", the environment's code,
     * for models that cannot write them; "different", the baseline Explore-Prompt; or a service, as
     * an object with its options: { "model": "gpt-4o" }, or { "local": path } for any model, also
     * one that a run has trained ({ "local": "runs/sft/checkpoints/000003/learner" }). Default
     * "policy". Paper: GPT-4o; with β above 0 a model of 3 billion parameters that was distilled
     * from it.
     */
    proposer: proposalSource.default("policy"),
    /**
     * Whether the proposer looks back. If not, the model named by `proposer` acts in the agent's
     * place: the baseline Oracle-Explore, whose proposer is the final policy. Default and paper:
     * true.
     */
    hindsight: z.boolean().default(true),
    /** Softmax temperature of proposals. Default and paper: 0.3. */
    proposerTemperature: z.number().min(0).default(0.3),
    /**
     * The summary's form: "short", 2 to 4 sentences with the secret, or "negotiation", ten
     * questions on a sale without it. Default short. Paper: short; Car Dealer: negotiation.
     */
    summary: z.enum(["short", "negotiation"]).default("short"),
    /** Longest summary, in tokens. Default 512. Paper: not given; its recipes take `maxTokens`. */
    maxSummaryTokens: count.default(512),
    /**
     * Longest list of proposals, in tokens, for every proposer. Default 512. Paper: not given; its
     * recipes take `maxTokens`.
     */
    maxProposalTokens: count.default(512),

    /** γ per turn of the returns. Default 1. Paper: not given. */
    discount: share.default(1),
    /**
     * How returns are scaled to [0, 1]: by the environment's reward range, or by the smallest and
     * the largest return of the iteration. Default "range". Paper: not given.
     */
    scaling: z.enum(["range", "observed"]).default("range"),
    /**
     * Whether a branch also counts for the recorded actions before its own, as the paper's G(s, a)
     * of all episodes through (s, a) does. Default and paper: true.
     */
    prefixes: z.boolean().default(true),
    /**
     * Data points of the reward model per iteration. Default and paper: 10,000 (Car Dealer 20,000).
     */
    points: count.default(10_000),
    /** Whether low and high values are equally frequent among them. Default and paper: true. */
    balanced: z.boolean().default(true),
    /**
     * α: share of the data points with high values that come from branches. Default 0.4. Paper: 0.4
     * in 20 Questions, 0.5 in the others.
     */
    branchShare: share.default(0.4),

    /**
     * Share of the episodes, with their branches, that the reward model is not trained on. It is
     * measured on their actions after every epoch (`held_out/…`). Default 0.05. Paper: not given.
     */
    rewardHeldOut: z.number().min(0).lt(1).default(0.05),
    /** Passes over the data of the reward model. Default and paper: 1. */
    rewardEpochs: count.default(1),
    /** Data points per step. Default and paper: 64 (4 × 16). */
    rewardBatchSize: count.default(64),
    /** Peak learning rate of the reward model. Default and paper: 5e-6. */
    rewardLearningRate: z.number().min(0).default(5e-6),
    /**
     * After the reward model's training, measures the policy with the best of `bestOf` actions per
     * turn by reward. With `every` above 0 it is also measured after each `every` updates, and the
     * weights with the most successes are used; of equal ones the last. Default: no episodes.
     * Paper: 15 at temperature 0.7, on validation tasks, the best checkpoint.
     */
    rewardEvaluation: z
      .strictObject({
        every: z.int().min(0).default(0),
        episodes: z.int().min(0).default(0),
        bestOf: count.default(15),
        temperature: z.number().min(0).default(0.7),
        split: z.enum(["train", "test"]).default("test"),
      })
      .prefault({}),

    /**
     * How the actor learns: "preference", online DPO against the reward model; "imitate", the
     * proposals themselves, without a reward model (the baseline LEAP). Default and paper:
     * preference.
     */
    actor: z.enum(["preference", "imitate"]).default("preference"),
    /**
     * With "imitate": whether each iteration's actor starts from the run's initial model again,
     * with new moments. Default false. Paper: true, from the model before its fine-tuning.
     */
    restart: z.boolean().default(false),
    /** States that the actor learns from per iteration; 0 is all of the data. Default all. */
    actorStates: z.int().min(0).default(0),
    /**
     * Actions sampled per state; the best and the worst are a pair. Default 2. Paper: not given.
     */
    candidates: z.int().min(2).default(2),
    /**
     * Least difference of rewards within a pair; a pair below it is left out. Smaller differences
     * than the reward model's errors are noise, and DPO follows every pair alike. Default 0: only
     * equal rewards are left out. Paper: not given.
     */
    minGap: share.default(0),
    /** Softmax temperature at which they are sampled. Default and paper: 0.7. */
    candidateTemperature: z.number().min(0).default(0.7),
    /**
     * The paper's exploration probability β: that a proposal replaces one of them. Default and
     * paper: 0; 0.5 in its ablation.
     */
    proposalShare: share.default(0),
    /**
     * States per step; proposals per step with "imitate". Default and paper: 12 (Car Dealer: 2).
     */
    batchSize: count.default(12),
    /** β of DPO: weight of the KL to the reference. Default 0.1. Paper: not given. */
    beta: z.number().gt(0).default(0.1),
    /** The loss of a pair; see dpo.ts. Default and paper: "sigmoid". */
    loss: z.enum(["sigmoid", "hinge", "ipo"]).default("sigmoid"),
    /**
     * The reference: the policy before this iteration ("previous", equation 2), or before the first
     * ("initial"). Default and paper: previous.
     */
    reference: z.enum(["previous", "initial"]).default("previous"),
    /**
     * Whether an iteration after the first whose policy has fewer successes in `evaluation` than the
     * one before is undone: training continues from the policy before it. With two iterations the
     * result is the paper's best policy. Needs `evaluation.every` 1. Default false. Paper: true.
     */
    keepBest: z.boolean().default(false),
    ...optimizerConfig.shape,
    /** Peak learning rate of the actor. Default and paper: 8e-8. */
    learningRate: z.number().min(0).default(8e-8),
    /** Of both models, over an iteration's updates. Default and paper: linear decay to 0. */
    schedule: scheduleConfigOf("linear"),
    ...sampledConfig.shape,
    /**
     * Longest text, in tokens; recorded actions and proposals beyond are left out and counted,
     * sampled actions end there. Default and paper: 2,048.
     */
    maxTokens: count.default(2048),
  })
  .refine(({ actor, branchedEpisodes }) => actor === "preference" || branchedEpisodes > 0, {
    path: ["branchedEpisodes"],
    message: 'must be above 0 with actor "imitate": there is nothing else to imitate',
  })
  .refine(({ rewardEvaluation: { every, episodes } }) => every === 0 || episodes > 0, {
    path: ["rewardEvaluation", "episodes"],
    message: "must be above 0 with every: without episodes nothing is measured",
  })
  .refine(({ actor, restart }) => actor === "imitate" || !restart, {
    path: ["restart"],
    message: 'needs actor "imitate": the actor of HOPE is trained on',
  })
  .refine(
    ({ keepBest, evaluation, actor, reference }) =>
      !keepBest || (evaluation.every === 1 && actor === "preference" && reference === "previous"),
    {
      path: ["keepBest"],
      message: 'needs evaluation.every 1, actor "preference" and reference "previous"',
    },
  )
  .refine(({ hindsight, proposer }) => hindsight || proposer === "policy" || typeof proposer === "object", {
    path: ["hindsight"],
    message: 'false needs proposer "policy" or a model',
  });

export type HopeConfig = z.infer<typeof hopeConfig>;
/** Settings of HOPE, as a recipe gives them. */
export type HopeConfigInput = z.input<typeof hopeConfig>;

const whole = z.int().min(0);

/** Checkpoint state. Episodes are numbered from 0, branches from `firstBranchId`. */
export const hopeState = countersSchema.extend({
  /** Whether the iteration's branches have been played. */
  branched: z.boolean(),
  /** On-policy episodes and branches before this iteration, and branches of the run. */
  episodesBefore: whole,
  branchesBefore: whole,
  branches: whole,
  /** Updates of the reward model in this iteration. */
  rewardUpdatesDone: whole,
  /** The updates after which it was measured last, and the most successes so far, 0 to 1. */
  rewardMeasuredAt: whole.optional(),
  rewardBest: share.optional(),
  /** With `keepBest`: successes of the policy from which training continues, 0 to 1. */
  best: share.optional(),
  /**
   * The proposer's summaries of the iteration's episodes, by their numbers. The policy that wrote
   * them has changed since, so that a resumed run cannot write them again.
   */
  summaries: z.array(z.tuple([whole, z.string()])).default([]),
  /** With "imitate": the iteration's proposals. */
  proposals: z.array(z.strictObject({ trajectory: whole, turn: whole, response: z.array(whole) })).optional(),
});

export type HopeState = z.infer<typeof hopeState>;

/** Branches are numbered apart, so that on-policy episodes of a task stay consecutive. */
export const firstBranchId = 2 ** 30;

export function newHopeState(): HopeState {
  return {
    ...newCounters(),
    branched: false,
    episodesBefore: 0,
    branchesBefore: 0,
    branches: 0,
    rewardUpdatesDone: 0,
    summaries: [],
  };
}

/** The on-policy episodes and the branches of an iteration that was interrupted. */
export async function ofIteration(
  trajectories: Stream<Trajectory>,
  { episodesBefore, branchesBefore }: HopeState,
): Promise<[episodes: Trajectory[], branches: Trajectory[]]> {
  const episodes: Trajectory[] = [];
  const branches: Trajectory[] = [];
  for await (const trajectory of trajectories) {
    if (trajectory.branch === undefined && trajectory.id >= episodesBefore) episodes.push(trajectory);
    if (trajectory.branch !== undefined && trajectory.id >= firstBranchId + branchesBefore)
      branches.push(trajectory);
  }
  return [episodes, branches];
}

/**
 * @throws NlacError ERR_CONFIG if the environment is to propose actions and cannot, or if a
 *   proposer is to act in the agent's place and cannot
 */
export function requireProposer(
  { name, actionFormat, propose }: Pick<Environment, "name" | "actionFormat" | "propose">,
  { proposer, hindsight, branchedEpisodes, proposalShare }: HopeConfig,
): void {
  if (proposer === "environment" && propose === undefined && branchedEpisodes + proposalShare > 0)
    throw new NlacError("ERR_CONFIG", `proposer: ${name} cannot propose actions; name a model.`);
  if (
    hindsight ||
    branchedEpisodes + proposalShare === 0 ||
    actionFormat === "text" ||
    actionFormat === "solution"
  )
    return;
  throw new NlacError(
    "ERR_CONFIG",
    `hindsight: a proposer that acts needs the action format "text" or "solution"; ${name} has "${actionFormat}".`,
  );
}
