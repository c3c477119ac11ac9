/**
 * Proposes other actions for turns of finished episodes (HOPE, algorithm 2, lines 3 and 5): a
 * summary of the episode that knows the secret, then actions that do not give it away. The policy
 * itself, a service or the environment's code writes them.
 */

import { isBudgetSpent, NlacError, throwIfAborted } from "../base/errors.ts";
import { derivedSeed, streams } from "../base/random.ts";
import type { Action, Environment, Message } from "../contract/environment.ts";
import type { Trajectory } from "../episodes/trajectory.ts";
import type { GenerateRequest, Generation, LanguageModel } from "../model/language-model.ts";
import { withoutThought } from "../prompts/corrected-thought.ts";
import { leaks } from "../prompts/leaks.ts";
import { actionFormatText, parseAction, policyMessages, turnTokens } from "../prompts/policy.ts";
import {
  differentActionRequest,
  parseProposals,
  proposalGrammar,
  proposerMessages,
  type Refusal,
} from "../prompts/proposer.ts";
import { parseSummary, type SummaryForm, summarizerMessages } from "../prompts/summarizer.ts";
import type { ReadTurn } from "../prompts/transcript.ts";
import type { ChatService } from "../services/chat-service.ts";

/** A turn of an episode for which other actions are wanted. */
export interface Place {
  trajectory: Trajectory;
  turn: number;
}

/** An action in place of the one at a turn. */
export interface Proposal extends Place {
  action: Action;
  /** The action as the policy would generate it, with its stop id. */
  response: number[];
}

export interface ProposerOptions {
  model: LanguageModel;
  environment: Pick<Environment, "name" | "actionFormat" | "propose">;
  /**
   * Who generates proposals: "policy", the trained policy; "environment", the environment's
   * `propose`, without a summary; "different", the policy, which is prompted for an action that
   * differs from five samples and does not look back; or a service.
   */
  writer: "policy" | "environment" | "different" | ChatService;
  /**
   * Whether the policy or the service looks back. If not, it acts as the agent does, from the state
   * alone: the baseline Oracle-Explore. Formats "text" and "solution" only.
   */
  hindsight: boolean;
  summary: SummaryForm;
  /** Softmax temperature of proposals; summaries are greedy. */
  temperature: number;
  maxSummaryTokens: number;
  maxProposalTokens: number;
  maxActionTokens: number;
  /** Longest state and proposal together, in tokens. */
  maxTokens: number;
  seed: number;
  signal: AbortSignal;
}

type ProposalResult = "kept" | Refusal | "too_long" | "failed";

/** A reply, or why there is none. */
type Written = { text: string } | { failure: "too_long" | "failed" };

/** Samples that the writer "different" is shown, and their temperature. */
export const shownSamples = 5;
const sampleTemperature = 1;
/** Counter space of one episode's turns. */
const turnsPerEpisode = 4096;

export class HindsightProposer {
  readonly #options: ProposerOptions;
  /** By the episode's number. */
  readonly #summaries: Map<number, string>;
  readonly #results: Record<ProposalResult, number> = {
    kept: 0,
    malformed: 0,
    leaked: 0,
    repeated: 0,
    too_long: 0,
    failed: 0,
  };
  #tokens = 0;

  /** @param summaries of an interrupted run, by episode */
  constructor(options: ProposerOptions, summaries: Iterable<[number, string]> = []) {
    this.#options = options;
    this.#summaries = new Map(summaries);
  }

  /**
   * Each summarized episode's number and its summary. A resumed run needs them: the policy that
   * wrote them has changed since.
   */
  summaries(): [number, string][] {
    return [...this.#summaries];
  }

  /** Forgets the summaries: their episodes are not branched any more. */
  forget(): void {
    this.#summaries.clear();
  }

  /**
   * Up to `count` different proposals for each place, in order.
   * @throws NlacError ERR_ABORTED, ERR_BUDGET
   */
  async propose(places: readonly Place[], count: number): Promise<Proposal[][]> {
    const { writer } = this.#options;
    if (places.length === 0) return [];
    if (writer === "environment")
      return places.map((place) => this.#usable(place, this.#scripted(place, count)));
    if (writer === "different") return this.#different(places, count);
    if (!this.#options.hindsight) return this.#acting(places, count);
    const failures = await this.#summarize(places.map(({ trajectory }) => trajectory));
    const { environment, maxProposalTokens, temperature } = this.#options;
    const format = environment.actionFormat;
    const summarized = places.filter(({ trajectory }) => this.#summaries.has(trajectory.id));
    for (const { trajectory } of places)
      if (failures.has(trajectory.id)) this.#results[failures.get(trajectory.id)!] += count;
    const replies = await this.#write(
      summarized.map(({ trajectory, turn }) => ({
        messages: proposerMessages(
          trajectory.opening ?? [],
          readTurns(trajectory, turn),
          this.#summaries.get(trajectory.id)!,
          count,
          format,
        ),
        seed: this.#seed(trajectory, turn),
        temperature,
        maxNewTokens: maxProposalTokens,
        grammar: proposalGrammar(count, format),
      })),
    );
    const byPlace = new Map(
      summarized.map((place, i) => [place, this.#usable(place, this.#read(place, replies[i]!, count))]),
    );
    return places.map((place) => byPlace.get(place) ?? []);
  }

  /**
   * Counts since the last call: what became of the proposals, and tokens that the policy generated.
   */
  takeMetrics(): Record<string, number> {
    const metrics = Object.fromEntries(
      Object.entries(this.#results).map(([result, number]) => [`proposals/${result}`, number]),
    );
    for (const result of Object.keys(this.#results) as ProposalResult[]) this.#results[result] = 0;
    const tokens = this.#tokens;
    this.#tokens = 0;
    return { ...metrics, "tokens/generated": tokens };
  }

  #seed({ id }: Trajectory, turn: number): number {
    return derivedSeed(this.#options.seed, streams.proposal, id * turnsPerEpisode + turn);
  }

  /** Line 3: a summary of each episode that has none yet. Returns why an episode has none. */
  async #summarize(trajectories: readonly Trajectory[]): Promise<Map<number, "too_long" | "failed">> {
    const { summary, maxSummaryTokens } = this.#options;
    const missing = [
      ...new Map(trajectories.map((trajectory) => [trajectory.id, trajectory])).values(),
    ].filter(({ id }) => !this.#summaries.has(id));
    const written = await this.#write(
      missing.map((trajectory) => ({
        messages: summarizerMessages(
          trajectory.opening ?? [],
          readTurns(trajectory, trajectory.turns.length),
          trajectory.privileged ?? {},
          summary,
        ),
        seed: this.#seed(trajectory, turnsPerEpisode - 1),
        temperature: 0,
        maxNewTokens: maxSummaryTokens,
      })),
    );
    const failures = new Map<number, "too_long" | "failed">();
    for (const [i, reply] of written.entries()) {
      const { id } = missing[i]!;
      const parsed = "text" in reply ? parseSummary(reply.text) : reply;
      if ("failure" in parsed) failures.set(id, parsed.failure);
      else if (parsed.ok) this.#summaries.set(id, parsed.summary);
      else failures.set(id, "failed");
    }
    return failures;
  }

  /** The replies, by the policy in one batch or by the service. */
  async #write(requests: readonly (GenerateRequest & { messages: Message[] })[]): Promise<Written[]> {
    const { model, writer, signal } = this.#options;
    if (typeof writer === "string") {
      const prompts = requests.map(({ messages, ...request }) => ({
        ...request,
        tokens: model.conversation(messages).prompt(),
      }));
      const written = await this.#generate(prompts);
      return written.map((one) =>
        one === undefined ? { failure: "too_long" } : { text: withoutThought(one.text) },
      );
    }
    return Promise.all(
      requests.map(async ({ messages, temperature, seed, maxNewTokens }) => {
        try {
          const text = await writer.complete(messages, {
            signal,
            temperature: temperature!,
            seed: Number(seed),
            maxTokens: maxNewTokens!,
          });
          return { text };
        } catch (error) {
          throwIfAborted(signal);
          if (isBudgetSpent(error) || !(error instanceof NlacError)) throw error;
          return { failure: "failed" }; // it costs only its own proposals
        }
      }),
    );
  }

  /** The policy's completion of each prompt; undefined if the context has no room for it. */
  async #generate(
    requests: readonly (GenerateRequest & { tokens: number[]; maxNewTokens?: number })[],
  ): Promise<(Generation | undefined)[]> {
    const { model, signal } = this.#options;
    const room = ({ tokens }: { tokens: number[] }) => model.maxPositions - tokens.length;
    const fitting = requests.filter((request) => room(request) > 0);
    if (fitting.length === 0) return requests.map(() => undefined);
    const written = await model.generate(
      fitting.map((request) => ({
        ...request,
        maxNewTokens: Math.min(request.maxNewTokens!, room(request)),
      })),
      { signal },
    );
    for (const { tokens } of written) this.#tokens += tokens.length;
    const byRequest = new Map(fitting.map((request, i) => [request, written[i]!]));
    return requests.map((request) => byRequest.get(request));
  }

  #read({ trajectory, turn }: Place, reply: Written, count: number): Action[] {
    if ("failure" in reply) {
      this.#results[reply.failure] += count;
      return [];
    }
    const { actionFormat } = this.#options.environment;
    const { privileged = {} } = trajectory;
    const taken = takenBy(trajectory, turn);
    const seen = seenBy(trajectory, turn);
    const parsed = parseProposals(reply.text, count, actionFormat, taken, privileged, seen);
    if (!parsed.ok) {
      this.#results.malformed += count;
      return [];
    }
    for (const [why, number] of Object.entries(parsed.refused)) this.#results[why as Refusal] += number;
    return parsed.actions;
  }

  #scripted({ trajectory, turn }: Place, count: number): Action[] {
    const { environment } = this.#options;
    if (environment.propose === undefined)
      throw new NlacError(
        "ERR_CONFIG",
        `${environment.name} cannot propose actions: choose another proposer.`,
      );
    const before = trajectory.turns.slice(0, turn).filter(({ action }) => action !== undefined);
    let actions: readonly Action[];
    try {
      actions = environment.propose(
        trajectory,
        before.map(({ action }) => action!),
        before.map(({ observation }) => observation),
        count,
      );
    } catch (cause) {
      if (cause instanceof NlacError) throw cause;
      throw new NlacError("ERR_ENVIRONMENT", `${environment.name} could not propose actions: ${cause}`, {
        cause,
      });
    }
    const { privileged = {} } = trajectory;
    const seen = seenBy(trajectory, turn);
    const taken = trajectory.turns[turn]!.action?.text;
    return actions.filter((action) => {
      if (leaks(action, privileged, seen)) this.#results.leaked++;
      else if (action.text === taken) this.#results.repeated++;
      else return true;
      return false;
    });
  }

  /** Explore-Prompt: five samples, then actions that differ from them. */
  async #different(places: readonly Place[], count: number): Promise<Proposal[][]> {
    const { environment, maxActionTokens, temperature } = this.#options;
    const format = environment.actionFormat;
    const sampled = await this.#generate(
      places.flatMap(({ trajectory, turn }) =>
        Array.from({ length: shownSamples }, (_, i) => ({
          tokens: trajectory.turns[turn]!.state.prompt(),
          maxNewTokens: maxActionTokens,
          temperature: sampleTemperature,
          seed: derivedSeed(this.#seed(trajectory, turn), streams.proposal, i),
        })),
      ),
    );
    const requests = places.flatMap((place, p) => {
      const samples = sampled.slice(p * shownSamples, (p + 1) * shownSamples);
      const { tools } = place.trajectory.turns[place.turn]!.state;
      const actions = samples.flatMap((sample) => {
        const parsed = parseAction(withoutThought(sample?.text ?? ""), format, tools);
        return parsed.ok ? [parsed.action] : [];
      });
      const [first] = samples;
      if (first === undefined) {
        this.#results.too_long += count;
        return [];
      }
      const conversation = place.trajectory.turns[place.turn]!.state.fork()
        .appendGeneration(first)
        .append({ role: "user", content: differentActionRequest(actions, actionFormatText(format)) });
      return Array.from({ length: count }, (_, i) => ({ place, actions, conversation, i }));
    });
    const written = await this.#generate(
      requests.map(({ place: { trajectory, turn }, conversation, i }) => ({
        tokens: conversation.prompt(),
        maxNewTokens: maxActionTokens,
        temperature,
        seed: derivedSeed(this.#seed(trajectory, turn), streams.proposal, shownSamples + i),
      })),
    );
    const proposed = requests.map(({ place, actions }, i) => ({
      place,
      known: actions,
      text: written[i]?.text,
    }));
    return this.#new(places, proposed);
  }

  /** Oracle-Explore: what the writer does in the agent's place. */
  async #acting(places: readonly Place[], count: number): Promise<Proposal[][]> {
    const { environment, maxActionTokens, temperature } = this.#options;
    const requests = places.flatMap((place) => Array.from({ length: count }, (_, i) => ({ place, i })));
    const written = await this.#write(
      requests.map(({ place: { trajectory, turn }, i }) => ({
        messages: [
          ...policyMessages({ messages: [...(trajectory.opening ?? [])] }, environment.actionFormat),
          ...trajectory.turns
            .slice(0, turn)
            .flatMap(({ text, observation }): Message[] => [
              { role: "assistant", content: text },
              ...observation,
            ]),
        ],
        seed: derivedSeed(this.#seed(trajectory, turn), streams.proposal, i),
        temperature,
        maxNewTokens: maxActionTokens,
      })),
    );
    const proposed = requests.flatMap(({ place }, i) => {
      const reply = written[i]!;
      if ("text" in reply) return [{ place, known: [], text: reply.text }];
      this.#results[reply.failure]++;
      return [];
    });
    return this.#new(places, proposed);
  }

  /** The single actions that can be parsed, are neither known nor taken, and differ. */
  #new(
    places: readonly Place[],
    proposed: readonly { place: Place; known: readonly Action[]; text: string | undefined }[],
  ): Proposal[][] {
    const { actionFormat } = this.#options.environment;
    const found = new Map<Place, Action[]>(places.map((place) => [place, []]));
    for (const { place, known, text } of proposed) {
      if (text === undefined) {
        this.#results.too_long++;
        continue;
      }
      const { tools } = place.trajectory.turns[place.turn]!.state;
      const parsed = parseAction(withoutThought(text), actionFormat, tools);
      const old = [...known, ...found.get(place)!, ...takenBy(place.trajectory, place.turn)];
      if (!parsed.ok) this.#results.malformed++;
      else if (old.some((action) => action.text === parsed.action.text)) this.#results.repeated++;
      else found.get(place)!.push(parsed.action);
    }
    return places.map((place) => this.#usable(place, found.get(place)!));
  }

  /** The actions as the policy would generate them, if they fit after the state. */
  #usable(place: Place, actions: readonly Action[]): Proposal[] {
    const { model, environment, maxActionTokens, maxTokens } = this.#options;
    const { state } = place.trajectory.turns[place.turn]!;
    return actions.flatMap((action) => {
      const response = turnTokens(model, state, action, environment.actionFormat);
      const length = state.prompt().length + response.length;
      const fits =
        response.length <= maxActionTokens + 1 && length <= maxTokens && length < model.maxPositions;
      this.#results[fits ? "kept" : "too_long"]++;
      return fits ? [{ ...place, action, response }] : [];
    });
  }
}

/** The turns before `end` as a reader sees them. */
function readTurns({ turns }: Trajectory, end: number): ReadTurn[] {
  return turns
    .slice(0, end)
    .map(({ action, text, observation }) => ({ action: action ?? text, observation }));
}

/** Actions that are not new at `turn`: those before it, and the one taken there. */
function takenBy({ turns }: Trajectory, turn: number): Action[] {
  return turns.slice(0, turn + 1).flatMap(({ action }) => (action === undefined ? [] : [action]));
}

/** What was said after the opening and before `turn`, by the agent and the environment. */
function seenBy({ turns }: Trajectory, turn: number): string {
  return turns
    .slice(0, turn)
    .flatMap(({ action, text, observation }) => [
      ...(action === undefined ? [text] : [action.text, action.thought ?? ""]),
      ...observation.map(({ content }) => content),
    ])
    .join("\n");
}
