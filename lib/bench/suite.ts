/** Types of benchmarks: suites of cases; the rows of a case do the same work on the same inputs. */

import type { ErrorCode } from "../base/errors.ts";

/** Number of calls in a trial. */
export interface Timing {
  /** Warm-up calls; the first one also gives the figure to compare. */
  warmup: number;
  /** Minimum number of timed calls. */
  calls: number;
  /** Minimum total time of these calls, in seconds. */
  seconds: number;
}

/** The minimum work of a call, for its rate. */
export interface Work {
  /** Floating-point operations, bytes, draws, tokens, or requests. */
  amount: number;
  unit: "TFLOP/s" | "GB/s" | "M/s" | "tokens/s" | "requests/s";
}

/** A figure of a trial other than its times. */
export interface Figure {
  name: string;
  value: number;
  unit: "ms" | "bytes a request";
  /** Maximum allowed value; null if unlimited. */
  most: number | null;
}

export interface Row {
  name: string;
  /** A limit shows what the machine can do: the others are reported as a fraction of it. */
  role: "ours" | "peer" | "limit";
  /** The implementation that the trial runs. */
  implementation: string;
  /** The file in bench/peers, for other libraries. */
  script?: string | undefined;
  /** Bytes of a call's results, which every implementation needs; null if not measured. */
  resultBytes: number | null;
}

export interface Case {
  /** Names the case in results and for --only, for example "kl-1024x576x49152". */
  id: string;
  title: string;
  /** Shapes, types and other parameters of the inputs; passed to the trial. */
  parameters: Readonly<Record<string, unknown>>;
  timing: Timing;
  work: Work;
  /** Relative tolerance between a row's figure and nlac's. */
  tolerance: number;
  rows: readonly Row[];
}

/** The parameters of one trial. */
export interface Job extends Timing {
  suite: string;
  implementation: string;
  parameters: Readonly<Record<string, unknown>>;
  device: string;
  threads: number;
}

/** The result of a trial: samples in milliseconds, one per call. */
export type Outcome =
  | {
      samples: number[];
      /** A figure of the first call's result, to compare the rows. */
      check: number | null;
      /** Peak memory in addition to the inputs. */
      bytes: number | null;
      /** Only for nlac's rows. */
      figures?: Figure[];
      versions: Record<string, string>;
    }
  | { skipped: string }
  /** nlac cannot run here, for any case. */
  | { unavailable: { code: ErrorCode; message: string } };

/** nlac's implementation, with its inputs. */
export interface Subject {
  /** The timed call; `number` counts the calls. On a GPU it waits until the work is done. */
  call(number: number): void | Promise<void>;
  /** Called before each call, untimed. */
  before?(): void | Promise<void>;
  check?(): number;
  /** Called after the last call. */
  figures?(): Figure[];
}

export interface CaseOptions {
  device: string;
  /** Small shapes and few calls, as a smoke test. */
  quick: boolean;
}

export interface Suite {
  name: string;
  summary: string;
  /** Default processes per row. Default 3. */
  trials?: number;
  cases(options: CaseOptions): Case[];
  /** Called only in the trial's process. */
  prepare(job: Job): Subject | Promise<Subject>;
}
