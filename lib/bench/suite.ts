/** What a benchmark is: suites of cases, and in a case rows that do the same work on the same inputs. */

import type { ErrorCode } from "../base/errors.ts";

/** How often a trial calls what it measures. */
export interface Timing {
  /** Calls before the first that counts; a figure to compare is taken of the first of them. */
  warmup: number;
  /** Calls that count, at least. */
  calls: number;
  /** Seconds that they take together, at least. */
  seconds: number;
}

/** What one call does at the least, as a rate is told of it. */
export interface Work {
  /** Floating-point operations, bytes, draws, tokens, or requests. */
  amount: number;
  unit: "TFLOP/s" | "GB/s" | "M/s" | "tokens/s" | "requests/s";
}

/** What a trial tells besides its times. */
export interface Figure {
  name: string;
  value: number;
  unit: "ms" | "bytes a request";
  /** What it may be at most; null where it may be anything. */
  most: number | null;
}

export interface Row {
  name: string;
  /** A limit is what the machine can do: the others are a fraction of it. */
  role: "ours" | "peer" | "limit";
  /** What the trial is asked for. */
  implementation: string;
  /** The file in bench/peers, for what is not ours. */
  script?: string | undefined;
  /**
   * Bytes of the results that a call makes: memory that no implementation can do without. null where a call takes no
   * memory worth telling.
   */
  resultBytes: number | null;
}

export interface Case {
  /** Names the case in results and for --only, for example "kl-1024x576x49152". */
  id: string;
  title: string;
  /** Shapes, types and what else the inputs depend on; all that a trial is told. */
  parameters: Readonly<Record<string, unknown>>;
  timing: Timing;
  work: Work;
  /** How far a row's figure may lie from ours, relative to it. */
  tolerance: number;
  rows: readonly Row[];
}

/** One trial, as its process is told. */
export interface Job extends Timing {
  suite: string;
  implementation: string;
  parameters: Readonly<Record<string, unknown>>;
  device: string;
  threads: number;
}

/** What a trial's process says: samples in milliseconds, one a call. */
export type Outcome =
  | {
      samples: number[];
      /** A figure of the first call's result, by which rows are held against each other. */
      check: number | null;
      /** Peak memory beyond the inputs. */
      bytes: number | null;
      /** Of ours only. */
      figures?: Figure[];
      versions: Record<string, string>;
    }
  | { skipped: string }
  /** nlac itself cannot run here, whatever it is asked for. */
  | { unavailable: { code: ErrorCode; message: string } };

/** Our implementation, its inputs made. */
export interface Subject {
  /** What is timed: `number` counts the calls. On a GPU it waits for the work to end. Declared async where it is. */
  call(number: number): void | Promise<void>;
  /** Untimed, before each call. */
  before?(): void | Promise<void>;
  check?(): number;
  /** After the last call. */
  figures?(): Figure[];
}

export interface CaseOptions {
  device: string;
  /** Small shapes and few calls: to see that all works. */
  quick: boolean;
}

export interface Suite {
  name: string;
  summary: string;
  /** Processes a row where nobody says how many. Default 3. */
  trials?: number;
  cases(options: CaseOptions): Case[];
  /** In the trial's process only. */
  prepare(job: Job): Subject | Promise<Subject>;
}
