/** The environment interface. Algorithms know environments only through these types. */

export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content: string;
}

/** A function that the agent may call, described by JSON Schema in the shape of OpenAI's API. */
export interface ToolSchema {
  name: string;
  description: string;
  parameters: Record<string, unknown>;
}

/** Start of an episode: the task's messages (system and first user turn) and its tools. */
export interface Observation {
  messages: Message[];
  tools?: ToolSchema[];
}

/** What the agent says or does in one turn. */
export interface Action {
  /**
   * The utterance, question or answer that the environment acts on, without the thought. For a
   * call, the JSON text of {"name", "arguments"} with the arguments as generated, for environments
   * that distinguish 250.0 from 250. Code that constructs actions, such as a demonstration, must
   * set this JSON text too.
   */
  text: string;
  thought?: string;
  /**
   * The function called; absent if the action is not a call. Arguments are parsed with JSON.parse:
   * every number is finite, and a key "__proto__" is left out.
   */
  tool?: { name: string; arguments: Record<string, unknown> };
}

/** The environment's reply to an action. */
export interface StepResult {
  /** What the agent sees next: user or tool messages. May be empty at the end of an episode. */
  observation: Message[];
  /** Reward of this step; sparse tasks give 0 until the end and then a value in [0, 1]. */
  reward: number;
  /**
   * The task has ended, by an action or by a rule of the task: there is an outcome, and nothing
   * follows.
   */
  terminated: boolean;
  /**
   * A limit that is not part of the task cut the episode short, as in Gymnasium: there is no
   * outcome, and the future is bootstrapped. Ignored if `terminated` is true.
   */
  truncated: boolean;
  /**
   * Only if `truncated`: what the unfinished episode is worth beside its rewards. It is part of the
   * total by which episodes are compared, but of no turn's reward: the value of the last state,
   * from which methods bootstrap, takes its place. Default 0.
   */
  score?: number;
  /**
   * JSON for logs. Two keys have a meaning. `toolError: true` marks a call that was refused or
   * failed. `success`, on the last step, says whether the episode succeeded; without it a total
   * reward of 1 is a success.
   */
  info: Record<string, unknown>;
}

/** Whether the episode has ended. */
export function isOver({ terminated, truncated }: Pick<StepResult, "terminated" | "truncated">): boolean {
  return terminated || truncated;
}

/** Usage of the LLM services behind an environment so far. */
export interface Usage {
  /**
   * Attempts sent, including those that failed or were given up, since the service may have
   * answered them.
   */
  requests: number;
  promptTokens: number;
  completionTokens: number;
  /** US dollars, by the configured prices; 0 without prices. */
  cost: number;
}

export const nothingUsed: Readonly<Usage> = { requests: 0, promptTokens: 0, completionTokens: 0, cost: 0 };

/**
 * What the agent is not told, for methods that look back at an episode (HOPE's summarizer). It is
 * never part of an observation, so no policy reads it.
 */
export interface PrivilegedInformation {
  /** What the agent had to find out, such as the word of a guessing game. */
  secret?: string;
  /**
   * Texts that give the secret away: its other names, parts of it, numbers. A proposed action or
   * its reason must not contain one that has not been said since the opening. The texts of an inner
   * array give the secret away only together. `secret` need not be repeated. Leave out texts that
   * the opening states as facts about this episode.
   */
  hidden?: readonly (string | readonly string[])[];
  /** Why the episode failed, if it ends here; absent if it succeeded. */
  failureReason?: string;
}

/**
 * One episode in progress. `Environment.start` creates it, so that many episodes of one environment
 * can run at once.
 */
export interface Episode {
  readonly observation: Observation;
  /**
   * Throws NlacError ERR_ENVIRONMENT for a fault of the environment, ERR_SERVICE for one of its
   * LLM, ERR_BUDGET.
   */
  step(action: Action): Promise<StepResult>;
  /**
   * What the episode is worth as it is, for environments that score it at the end. Called instead
   * of a further step if the agent has used its turns, but not all of them reached the environment,
   * because actions could not be read. Counts as the reward of the last step would at the limit.
   * Absent if the rewards of the steps are all there is.
   */
  score?(): number | Promise<number>;
  /**
   * What the agent is not told. Called once, after the last step and before `close`. Absent if
   * there is nothing.
   */
  privileged?(): PrivilegedInformation;
  close(): Promise<void>;
}

/** A critic's judgement of an action, and the action's outcome. */
export interface JudgedAction {
  /** The action as the policy would generate it. */
  action: Action;
  /**
   * What is likely to follow, in a sentence or two, without knowledge of the answer. Not used for a
   * single-step task, as `joined` below.
   */
  future: string;
  /** One sentence on what would be better; absent for a good action. */
  advice?: string;
  /**
   * False if the judgement needs knowledge of the answer: the critic is then not trained on it.
   * Default true.
   */
  foreseeable?: boolean;
  /** The refiner's action, given this judgement. If absent, the refiner is not trained on it. */
  better?: Action;
  /** The action's outcome. If absent, the backup is not trained on it. */
  outcome?: {
    /** The environment's answer. */
    observation: Message[];
    /** Of this action, without those before it. */
    reward: number;
    /** Whether it ended the task. */
    terminated: boolean;
    /** What may follow the answer; not needed at the end of the episode. */
    future?: string;
    /** The answer and what follows it, in one description. */
    joined: string;
  };
}

/**
 * A scripted episode with judgements: the policy's actions, and judgements of actions at each
 * state. The supervised warm-up teaches the forms of all roles with it; it is not part of any
 * method.
 */
export interface Demonstration {
  observation: Observation;
  turns: {
    /** The policy's action. */
    action: Action;
    /** Judgements of possible actions in this state, which may include `action`. */
    judged: JudgedAction[];
    /** The answer to `action`; the episode continues from there. */
    observation: Message[];
  }[];
}

/** How an episode starts. */
export interface StartOptions {
  /** Determines every random choice of the episode. */
  seed: number;
  signal?: AbortSignal;
}

/**
 * An environment. `start` opens an episode that is independent of all others, so that many can run
 * at once.
 */
export interface Environment<Task = unknown> {
  readonly name: string;
  /**
   * How the policy writes its actions. "text": a thought and one line. "tool": a thought and a call
   * as JSON, described in the prompt. "call": a call in the form of the model's chat template, or a
   * plain reply. "solution": one whole answer.
   */
  readonly actionFormat: "text" | "tool" | "call" | "solution";
  /** Number of turns after which an episode ends. */
  readonly maxTurns: number;
  /**
   * Whether `maxTurns` is a rule of the task, as in 20 Questions. An episode that has used its
   * turns is then `terminated`, even if the last action could not be parsed and so never reached
   * the environment. Default false: the limit truncates an episode. Single-step tasks always count
   * as true.
   */
  readonly turnLimitEnds?: boolean;
  /**
   * A single-step task: the one answer is right or wrong, and a critic says whether it is correct
   * and where it errs instead of predicting the future. Requires `maxTurns` 1. Default: true if
   * `actionFormat` is "solution".
   */
  readonly singleStep?: boolean;
  /**
   * The smallest and the largest total reward of an episode. Default [0, 1]. If the smallest is
   * below 0, an episode that nlac ends (turn limit, context limit, unreadable actions) counts with
   * it.
   */
  readonly rewardRange?: readonly [low: number, high: number];
  /**
   * Timeout of `start`, `step` and `close`, in milliseconds; a later answer is a fault of the
   * environment. `demonstrate` may take as long for the start and each of `maxTurns`. A recipe's
   * `environment.stepTimeout` takes its place. Default: none.
   */
  readonly stepTimeout?: number;
  /**
   * The action of an agent that does nothing. Its success rate is the floor that a policy must
   * beat.
   */
  readonly idle?: Action;
  tasks(split: "train" | "test"): Promise<Task[]>;
  /** A short name of a task, for logs and keys. */
  taskId(task: Task): string;
  start(task: Task, options: StartOptions): Promise<Episode>;
  /**
   * A scripted episode on `task`, a training task, for environments that can demonstrate good play.
   */
  demonstrate?(task: Task, options: StartOptions): Promise<Demonstration>;
  /**
   * The probability of success stated in a description of the future; undefined if it states none.
   */
  foretold?(future: string): number | undefined;
  /**
   * How well a description of the future fits the later observation, 0 to 1; undefined if that
   * cannot be decided. For environments whose texts are similar whatever happens. Without it,
   * shared words are compared.
   */
  agreement?(future: string, observation: readonly Message[]): number | undefined;
  /**
   * The action that should have been taken, as far as the observation after it shows: the same
   * action if it was right, undefined if the observation does not show it. Used to relabel actions
   * in hindsight.
   *
   * @param later all observations after this one, for methods that read the whole episode; else
   *   empty
   */
  hindsight?(
    action: Action,
    observation: readonly Message[],
    later: readonly (readonly Message[])[],
  ): Action | undefined;
  /**
   * Up to `count` different actions that should have been taken at a turn of `episode`, written by
   * code that knows the secret: HOPE's proposer for models that cannot write proposals. The agent
   * could have chosen them: neither their texts nor their thoughts contain the secret.
   *
   * @param actions readable actions of the episode before that turn
   * @param observations the environment's answers to them
   */
  propose?(
    episode: { task: string; seed: number },
    actions: readonly Action[],
    observations: readonly (readonly Message[])[],
    count: number,
  ): Action[];
  /** Usage of all episodes so far; absent without an LLM service. */
  usage?(): Usage;
  close(): Promise<void>;
}

/** Whether the environment's tasks have a single step, by its own word or by its action format. */
export function isSingleStep({
  actionFormat,
  singleStep = actionFormat === "solution",
}: Pick<Environment, "actionFormat" | "singleStep">): boolean {
  return singleStep;
}
