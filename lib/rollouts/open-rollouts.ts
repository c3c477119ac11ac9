/**
 * A learner whose episodes are played by inference servers. The learner does everything else:
 * losses, θ̄, and the texts of critic and refiner.
 */

import { randomBytes } from "node:crypto";
import { NlacError, throwIfAborted } from "../base/errors.ts";
import { overlay } from "../base/overlay.ts";
import type { Learner } from "../learner/learner.ts";
import type { ActionGenerator, GenerateRequest, Generation, StepOptions } from "../model/language-model.ts";
import { DistributedLearner } from "../ranks/distributed-learner.ts";
import type { TrainingRun } from "../run/training-run.ts";
import { completionText } from "../tokens/completion-text.ts";
import type { RolloutsConfig } from "./config.ts";
import type { ActionRequest, Answer, Engine, Weights } from "./engine.ts";
import { openai } from "./openai.ts";
import { Servers } from "./servers.ts";
import { sglang } from "./sglang.ts";
import { SharedWeights } from "./shared-weights.ts";
import { vllm } from "./vllm.ts";

const engines: Record<RolloutsConfig["engine"], Engine> = { vllm, sglang, openai };

/** Answers per row of metrics whose log probabilities are compared with the learner's. */
const comparedAnswers = 8;

/** Options of `openRollouts`. */
export interface RolloutsOptions {
  /** Called with a line per server, and with warnings. */
  log: (line: string) => void;
  /** Milliseconds without a usable answer after which a server is given up. Default 60,000. */
  patienceMs?: number | undefined;
}

/** A learner whose episodes are played by inference servers. */
export interface Rollouts<Model> {
  /** The learner, with servers as its `rollouts`. */
  model: Model & { readonly rollouts: ActionGenerator };
  /** The run, with the servers' metrics in its rows. */
  of(run: TrainingRun): TrainingRun;
  /** Frees the last version of the weights on servers and disk. The learner stays open. */
  close(): Promise<void>;
}

/**
 * Connects a learner to inference servers. They get its weights when the first episode begins, and
 * again as `every` says.
 *
 * @throws NlacError ERR_ROLLOUTS if a server does not answer or lacks a call, or if another process
 *   uses `shared`; ERR_IO. Later `generate` throws ERR_ROLLOUTS when no server is left
 */
export async function openRollouts<Model extends Learner | DistributedLearner>(
  model: Model,
  config: RolloutsConfig,
  { log, patienceMs }: RolloutsOptions,
): Promise<Rollouts<Model>> {
  const own: Learner = model instanceof DistributedLearner ? model.own : model;
  const engine = engines[config.engine];
  const fixed = config.engine === "openai";
  const kind = own.info.trainableParameters < own.info.parameters ? "adapter" : "model";
  const servers = await Servers.open({ engine, urls: config.urls, kind, warn: log, patienceMs }, fixed);
  for (const line of servers.describe()) log(`rollouts: ${line} (protocol of ${engine.readFrom})`);
  const sender =
    config.engine === "openai"
      ? undefined
      : new Sender(model, servers, await SharedWeights.open(config.shared), kind, config.every, log);
  const player = new ServerPlayer(model, own, servers, sender, engine);
  return {
    model: overlay(model, {
      rollouts: player,
      maxPositions: Math.min(own.maxPositions, servers.maxPositions),
      step(options: StepOptions) {
        sender?.changed();
        return model.step(options);
      },
      restoreReference() {
        sender?.replaced();
        return model.restoreReference();
      },
    }) as Rollouts<Model>["model"],
    of: (run) =>
      overlay(run, {
        metrics: (step: number, values: Record<string, number>) =>
          run.metrics(step, { ...values, ...player.takeFigures() }),
      }),
    async close() {
      await servers.close();
      await sender?.close();
    },
  };
}

/** Sends θ to the servers when it is due. */
class Sender {
  readonly #model: Learner | DistributedLearner;
  readonly #servers: Servers;
  readonly #shared: SharedWeights;
  readonly #kind: Weights["kind"];
  readonly #every: number;
  readonly #warn: (line: string) => void;
  /** Whether the warning was given that earlier versions remain. */
  #warned = false;
  readonly #run = randomBytes(4).toString("hex");
  #sending: Promise<void> = Promise.resolve();
  #version = 0;
  #steps = Number.POSITIVE_INFINITY; // since the last version
  #seconds = 0;

  constructor(
    model: Learner | DistributedLearner,
    servers: Servers,
    shared: SharedWeights,
    kind: Weights["kind"],
    every: number,
    warn: (line: string) => void,
  ) {
    this.#model = model;
    this.#servers = servers;
    this.#shared = shared;
    this.#kind = kind;
    this.#every = every;
    this.#warn = warn;
  }

  /** Number of the last version, from 1. */
  get version(): number {
    return this.#version;
  }

  /** Steps of θ since the last version. */
  get steps(): number {
    return this.#steps;
  }

  /** Called before each step. */
  changed(): void {
    this.#steps++;
  }

  /** Called before θ is replaced as a whole. */
  replaced(): void {
    this.#steps = Number.POSITIVE_INFINITY;
  }

  /** Seconds spent on writing and loading versions since the last call. */
  takeSeconds(): number {
    const seconds = this.#seconds;
    this.#seconds = 0;
    return seconds;
  }

  /** Sends θ as it is after all calls made so far, if that is due. */
  async send(): Promise<void> {
    const sent = this.#sending.then(() => (this.#steps < this.#every ? undefined : this.#send()));
    this.#sending = sent.catch(() => {});
    return sent;
  }

  async #send(): Promise<void> {
    const started = performance.now();
    const before = this.#steps;
    this.#steps = 0;
    try {
      const version = ++this.#version;
      const directory = await this.#shared.add(version, (path) =>
        this.#kind === "adapter" ? this.#model.exportAdapter(path) : this.#model.exportHuggingFace(path),
      );
      await this.#servers.install({ label: `nlac-${this.#run}-${version}`, kind: this.#kind, directory });
      await this.#shared.keepOnly(directory).catch((error: Error) => this.#warnOfRemains(error));
    } catch (error) {
      this.#steps += before;
      throw error;
    } finally {
      this.#seconds += (performance.now() - started) / 1000;
    }
  }

  /** On NFS, a file that a server still has open cannot be removed yet. */
  #warnOfRemains(error: Error): void {
    if (this.#warned) return;
    this.#warned = true;
    this.#warn(`rollouts: earlier versions of the weights could not be removed. ${error.message}`);
  }

  async close(): Promise<void> {
    await this.#sending;
    await this.#shared.close();
  }
}

class ServerPlayer implements ActionGenerator {
  readonly unbatched = true;
  readonly #model: Learner | DistributedLearner;
  readonly #own: Learner;
  readonly #servers: Servers;
  readonly #sender: Sender | undefined;
  readonly #engine: Engine;
  #answers = 0;
  #compared = 0;
  #differences: number[] = []; // |server - learner|, per token

  constructor(
    model: Learner | DistributedLearner,
    own: Learner,
    servers: Servers,
    sender: Sender | undefined,
    engine: Engine,
  ) {
    this.#model = model;
    this.#own = own;
    this.#servers = servers;
    this.#sender = sender;
    this.#engine = engine;
  }

  get fixed(): boolean {
    return this.#sender === undefined;
  }

  /**
   * Generates each request on a server; those of θ̄ on the learner.
   *
   * @throws NlacError ERR_CONFIG for request fields that servers do not get, such as a grammar;
   *   ERR_ROLLOUTS; ERR_ABORTED; when weights are sent, ERR_IO
   */
  async generate(
    requests: readonly GenerateRequest[],
    { signal }: { signal?: AbortSignal | undefined } = {},
  ): Promise<Generation[]> {
    throwIfAborted(signal);
    await this.#sender?.send();
    return Promise.all(requests.map((request) => this.#one(request, signal)));
  }

  async #one(request: GenerateRequest, signal: AbortSignal | undefined): Promise<Generation> {
    if (request.weights === "target")
      return (await this.#model.generate([request], signal === undefined ? {} : { signal }))[0]!;
    const asked = actionRequest(request, this.#own.endOfTurnIds);
    const answer = await this.#servers.generate(asked, signal);
    this.#answers++;
    if (answer.tokens.some((id) => id >= this.#own.info.vocabSize))
      throw new NlacError(
        "ERR_ROLLOUTS",
        "A server returned token ids outside the vocabulary of the learner's model.",
      );
    if (this.#compared < comparedAnswers) await this.#compare(asked, answer);
    return this.#generation(asked, answer);
  }

  #generation({ stopTokenIds }: ActionRequest, answer: Answer): Generation {
    const { tokens, logProbs, cachedTokens } = answer;
    const stopped = tokens.length > 0 && stopTokenIds.includes(tokens.at(-1)!);
    const written = stopped ? tokens.slice(0, -1) : tokens;
    const { tokenizer } = this.#own;
    return {
      tokens,
      logProbs,
      text: tokenizer === undefined ? "" : tokenizer.withoutFirstSpace(completionText(tokenizer, written)),
      finishReason: stopped ? "stop" : "length",
      cachedTokens,
    };
  }

  /** Notes how far the server's log probabilities are from the learner's. */
  async #compare({ tokens: prompt, temperature }: ActionRequest, answer: Answer): Promise<void> {
    const { tokens: response, logProbs } = answer;
    if (this.fixed || response.length === 0) return;
    this.#compared++;
    const scored = [{ prompt, response }];
    const [own] = await this.#model.logProbs(scored, { temperature: this.#engine.scoredAt(temperature) });
    for (const [i, value] of logProbs.entries())
      if (!Number.isNaN(value)) this.#differences.push(Math.abs(value - own![i]!));
  }

  /** Metrics since the last call; none if no server has answered. */
  takeFigures(): Record<string, number> {
    if (this.#answers === 0) return {};
    const differences = this.#differences;
    const figures = {
      "rollouts/answers": this.#answers,
      "rollouts/refused": this.#servers.refused,
      "rollouts/servers": this.#servers.usable,
      ...(this.#sender && {
        "rollouts/version": this.#sender.version,
        "rollouts/steps_behind": this.#sender.steps,
        "time/send_weights": this.#sender.takeSeconds(),
      }),
      ...(differences.length > 0 && {
        "rollouts/log_prob_difference": differences.reduce((a, b) => a + b) / differences.length,
        "rollouts/log_prob_difference_max": differences.reduce((a, b) => Math.max(a, b)),
      }),
    };
    this.#answers = 0;
    this.#servers.refused = 0;
    this.#compared = 0;
    this.#differences = [];
    return figures;
  }
}

/** Seeds are cut to this many bits: JSON numbers hold no more exactly. */
const seedBits = 53;

/** The request with all fields. Throws ERR_CONFIG for fields that servers do not get. */
function actionRequest(request: GenerateRequest, endOfTurnIds: readonly number[]): ActionRequest {
  const { tokens, seed } = request;
  const unsent = ["messages", "grammar", "forced", "forbidden", "stop", "keepHidden", "topLogProbs"] as const;
  const given = unsent.filter((field) => request[field] !== undefined);
  if (tokens === undefined || given.length > 0)
    throw new NlacError(
      "ERR_CONFIG",
      `Requests to inference servers support token ids only, not ${given.join(", ")}.`,
    );
  return {
    tokens,
    maxNewTokens: request.maxNewTokens ?? 256,
    temperature: request.temperature ?? 1,
    topP: request.topP ?? 1,
    topK: request.topK ?? 0,
    minP: request.minP ?? 0,
    repetitionPenalty: request.repetitionPenalty ?? 1,
    stopTokenIds: [...endOfTurnIds, ...(request.stopTokenIds ?? [])],
    seed: seed === undefined ? undefined : Number(BigInt.asUintN(seedBits, BigInt(seed))),
  };
}
