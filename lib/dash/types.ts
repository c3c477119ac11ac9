/** What the dashboard's server answers; its page reads it. All times are seconds since 1970. */

/**
 * "lost": the process has not written status.json for a while. "unknown": there is none, as in runs
 * that `nlac compare --copy-to` copied.
 */
export type RunState = "running" | "finished" | "stopped" | "failed" | "lost" | "unknown";

/** A symptom of the table "When it does not learn". */
export interface Warning {
  symptom: string;
  cause: string;
  advice: string;
}

export interface RunSummary {
  id: string;
  /** The recipe's name; runs of one recipe are told apart by their id. */
  recipe: string;
  algorithm: string;
  model: string;
  environment: string;
  seed: number | null;
  state: RunState;
  started: number | null;
  /** When anything was written last. */
  updated: number | null;
  phase: string;
  done: number;
  total: number;
  /** 0 to 1. */
  fraction: number | null;
  /** Seconds left, while it runs. */
  left: number | null;
  iteration: number;
  /** Null if something else ends the run, or nothing does. */
  iterations: number | null;
  updates: number;
  episodes: number;
  samples: number;
  probes: number;
  /** The newest success, and its metric. */
  success: number | null;
  successMetric: string;
  curve: Curve;
  warnings: Warning[];
  /** Why the run failed, and damaged records. */
  errors: string[];
}

/** Points of a metric; x by axis. */
export interface Curve {
  x: Record<Axis, number[]>;
  y: number[];
}

export const axes = ["updates", "steps", "tokens", "seconds"] as const;
export type Axis = (typeof axes)[number];

export interface Metrics {
  series: Record<string, Curve>;
  /** Rows averaged in each point of the longest series. */
  bucket: number;
}

/** Columns; one entry per episode. */
export interface EpisodeList {
  tasks: string[];
  outcomes: string[];
  id: number[];
  /** Index in `tasks`; -1 if the task is unknown. */
  task: number[];
  /** Of a served run: the clients' names of the episodes. */
  names?: string[];
  outcome: number[];
  turns: number[];
  reward: number[];
  /** 1, 0, or -1 for a fault. */
  success: number[];
  /** 1 for a held-out one, on which nothing trains. */
  heldOut: number[];
  /** Updates before it was played. */
  update: number[];
  /** Place of the first of these in the file: how many earlier ones are left out. */
  from: number;
}

export interface Message {
  role: string;
  content: string;
}

export interface EpisodeTurn {
  text: string;
  thought?: string;
  tool?: { name: string; arguments: unknown };
  says?: string;
  malformed?: string;
  observation: Message[];
  reward: number;
  info: Record<string, unknown>;
}

export interface EpisodeView {
  id: number;
  task: string;
  /** Absent of a served one. */
  seed?: number;
  isHeldOut: boolean;
  /** Of served ones: the group that it belongs to, and the episode that it worked for. */
  group?: string;
  parent?: string;
  /** The episode that it repeats, and the turn, from 0, from which it differs. */
  branch?: { trajectory: number; turn: number };
  outcome: string;
  reward: number;
  success: number;
  update: number;
  fault?: { code: string; message: string };
  opening: Message[];
  turns: EpisodeTurn[];
}

/** One row of the list of critiques. */
export interface SampleSummary {
  number: number;
  /** Updates before the one that it was drawn by. */
  update: number;
  trajectory: number;
  turn: number | null;
  l1: number | null;
  l2: number | null;
  /** Beginning of the target. */
  preview: string;
  /** Verdict of the target; null if it could not be read. */
  target: boolean | null;
  critique: boolean | null;
  changed: boolean | null;
  dropped: string;
  unreadable: boolean;
  /** Whether the episode succeeded; null if unknown. */
  success: boolean | null;
  detailed: boolean;
}

/** Figures of one token; nulls are unknown. */
export interface TokenView {
  pieces: string[];
  l1?: (number | null)[];
  online?: (number | null)[];
  target?: (number | null)[];
  nll?: (number | null)[];
  best?: { online: Best[][]; target: Best[][] };
}

export interface Best {
  text: string;
  logProb: number;
}

export interface SampleView {
  /** Updates before it was drawn or, for a probe, explained. */
  update: number;
  trajectory: number;
  turn: number | null;
  state: Message[];
  texts: Record<string, string>;
  facts: Record<string, number | string | boolean | null>;
  parsed: Record<string, { ok: boolean; yes?: boolean; reason?: string }>;
  tokens: Record<string, TokenView>;
  /** Whether the episode succeeded; null if unknown. */
  success: boolean | null;
}

/** Figures of a sample's target under the weights of a checkpoint. */
export interface CheckpointView {
  /** Updates before the checkpoint. */
  updates: number;
  target: TokenView;
}

export interface Draw {
  /** Updates before the one that drew it. */
  update: number;
  l1: number | null;
  probability: number;
  age: number;
  target: string;
  critique: string;
  refinement: string;
  /** The sample with its texts, if it was recorded. */
  sample: number | null;
}

export interface ProbeList {
  probes: {
    trajectory: number;
    turn: number;
    explained: { number: number; update: number; l1: number | null; texts: Record<string, string> }[];
  }[];
}

export interface Comparison {
  groups: {
    name: string;
    runs: string[];
    x: number[];
    /** Interquartile mean, and the ends of its bootstrap interval. */
    mean: number[];
    low: number[];
    high: number[];
  }[];
}

/** An event of the stream: a run's id and what changes with its files. */
export type Versions = Record<string, string>;
