/** What an environment is. An algorithm knows environments through these types alone. */

export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content: string;
}

/** A function the agent may call, described by JSON Schema (the shape OpenAI's API uses). */
export interface ToolSchema {
  name: string;
  description: string;
  parameters: Record<string, unknown>;
}

/** What an episode starts from: the task's messages (system and first user turn) and its tools. */
export interface Observation {
  messages: Message[];
  tools?: ToolSchema[];
}

export interface Action {
  /**
   * What the environment acts on: the utterance, question or answer, without the thought. For a call, `text` is the JSON
   * text of {"name", "arguments"} with the arguments as they were written: an environment to which 250.0 is not 250 reads
   * them from there. So whoever makes an action, a demonstration say, writes that JSON here too.
   */
  text: string;
  thought?: string;
  /**
   * The function called; absent where something is said. The arguments as JSON.parse reads them: every number is finite, and
   * a key "__proto__" is left out.
   */
  tool?: { name: string; arguments: Record<string, unknown> };
}

export interface StepResult {
  /** What the agent sees next: user or tool messages. May be empty where the episode ends. */
  observation: Message[];
  /** Reward of this step; sparse tasks give 0 until the end and a value in [0, 1] then. */
  reward: number;
  /**
   * The task has ended, by what was done or by a rule of its own: there is an outcome, and nothing
   * follows.
   */
  terminated: boolean;
  /**
   * A limit that is no part of the task cut the episode here (Gymnasium's word): it has no outcome,
   * and what would have followed is bootstrapped. Not looked at where `terminated` is true.
   */
  truncated: boolean;
  /**
   * For logs, as JSON. Two keys have a meaning: `toolError: true` marks a call that was refused or failed; `success`, on the
   * last step, says whether the episode succeeded where a total reward of 1 does not.
   */
  info: Record<string, unknown>;
}

/** Whether no further step follows. */
export function isOver({ terminated, truncated }: Pick<StepResult, "terminated" | "truncated">): boolean {
  return terminated || truncated;
}

/** What the LLM services behind an environment were asked so far. */
export interface Usage {
  /** Attempts that were sent, whatever became of them: one that failed or was given up may have been answered all the same. */
  requests: number;
  promptTokens: number;
  completionTokens: number;
  /** US dollars, by the prices that were given; 0 without any. */
  cost: number;
}

export const nothingUsed: Readonly<Usage> = { requests: 0, promptTokens: 0, completionTokens: 0, cost: 0 };

/** One episode in progress. Made by `Environment.start`, so that many episodes of one environment can run. */
export interface Episode {
  readonly observation: Observation;
  /** Throws NlacError ERR_ENVIRONMENT for a fault of the environment, ERR_SERVICE for one of its LLM, ERR_BUDGET. */
  step(action: Action): Promise<StepResult>;
  close(): Promise<void>;
}

/** How an action would be judged, in the words of a critic, and what came of it. */
export interface JudgedAction {
  /** The action as the policy would write it. */
  action: Action;
  /** What follows, in a sentence or two, as one could expect it before seeing the answer. */
  future: string;
  /** Absent for a good action; for a poor one, one sentence on what would be better. */
  advice?: string;
  /** False where nobody could judge so before seeing the answer: the critic is not taught it. Default true. */
  foreseeable?: boolean;
  /** What a refiner makes of the action and its judgement. Absent: the refiner is not taught it. */
  better?: Action;
  /** What came of the action. Absent: the backup is not taught it. */
  outcome?: {
    /** What it was answered. */
    observation: Message[];
    reward: number;
    /** Whether it ended the task. */
    terminated: boolean;
    /** What may follow the answer; not needed where the episode is over. */
    future?: string;
    /** The answer and what follows it, as one course of events. */
    joined: string;
  };
}

/**
 * A scripted episode with judgements: what the policy does, and what is to be said of actions at each state. A
 * supervised warm-up learns the forms of all roles from it; it is no part of any method.
 */
export interface Demonstration {
  observation: Observation;
  turns: {
    /** What the policy does. */
    action: Action;
    /** Actions that could be taken here, `action` perhaps among them. */
    judged: JudgedAction[];
    /** What `action` was answered; the episode goes on from there. */
    observation: Message[];
  }[];
}

export interface ResetOptions {
  /** Every random choice of the episode is a function of this. */
  seed: number;
  signal?: AbortSignal;
}

/**
 * An environment. `reset` and `step` drive one episode at a time; `start` opens an episode that is
 * independent of all others, which is what `collectTrajectories` uses to run many at once.
 */
export interface Environment<Task = unknown> {
  readonly name: string;
  /**
   * How the policy writes its actions: "text", a thought and one line; "tool", a thought and a call as JSON, told in words;
   * "call", a call in the form of the model's own chat template, or something said; "solution", one whole answer.
   */
  readonly actionFormat: "text" | "tool" | "call" | "solution";
  /** Turns after which an episode ends. */
  readonly maxTurns: number;
  /**
   * Whether `maxTurns` is a rule of the task, as of 20 Questions: an episode that has used its
   * turns has then ended (`terminated`), also where the last action could not be read and never
   * reached it. Default false: the limit cuts an episode short (`truncated`). Of a single-step task
   * it always is a rule.
   */
  readonly turnLimitEnds?: boolean;
  /**
   * A single-step task: the one answer is right or wrong, and a critic says whether it is correct and where it errs
   * instead of foreseeing what follows. Needs `maxTurns` 1. Default: whether `actionFormat` is "solution".
   */
  readonly singleStep?: boolean;
  /**
   * The smallest and the largest total reward of an episode. Default [0, 1]. Where the smallest is
   * below 0, an episode that nlac ends, by its turns, the model's context or unreadable actions,
   * counts with it.
   */
  readonly rewardRange?: readonly [low: number, high: number];
  /** What an agent does, turn by turn, that does nothing: its success is the floor that a policy must beat. */
  readonly idle?: Action;
  tasks(split: "train" | "test"): Promise<Task[]>;
  /** A short name of a task, for logs and for keys. */
  taskId(task: Task): string;
  start(task: Task, options: ResetOptions): Promise<Episode>;
  reset(task: Task, options: ResetOptions): Promise<Observation>;
  step(action: Action): Promise<StepResult>;
  /** A scripted episode on `task`, one of those to train on, for environments that can show good play. */
  demonstrate?(task: Task, options: ResetOptions): Promise<Demonstration>;
  /** The probability of success that a description of the future speaks of; undefined where it speaks of none. */
  foretold?(future: string): number | undefined;
  /**
   * How well a description of the future fits what was then observed, 0 to 1; undefined where it cannot be told. For
   * environments whose texts are much alike whatever happens; the others are compared by the words in common.
   */
  agreement?(future: string, observation: readonly Message[]): number | undefined;
  /**
   * The action that should have been taken, as far as the observation after it says: the same action if it was right,
   * undefined if nothing is said. For relabelling in hindsight.
   *
   * @param later all observations after this one, for methods that read the whole episode; else empty
   */
  hindsight?(
    action: Action,
    observation: readonly Message[],
    later: readonly (readonly Message[])[],
  ): Action | undefined;
  /** Of all episodes so far; absent where no LLM service is behind the environment. */
  usage?(): Usage;
  close(): Promise<void>;
}
