/**
 * Endpoints of a server that trains:
 *
 *   GET    /v1/training                         state, latency and share of the training
 *   GET    /v1/versions
 *   POST   /v1/versions/{version}/rollback
 *   POST   /v1/metrics                          values of the user's metrics, for the guard rails
 *   POST   /v1/episodes/{id}/corrections        a better answer for a turn
 *   DELETE /v1/episodes/{id}
 *   GET    /v1/tasks/next                       leases a task; ?split=test, a held-out one
 *   POST   /v1/tasks/{episode}/renew, /release
 */

import { z } from "zod";
import { refuseCrossSite } from "../serve/guard.ts";
import { hashOf, idempotencyKey } from "../serve/repeated-rewards.ts";
import { badRequest, noEpisode, RequestError } from "../serve/request-error.ts";
import type { Extension } from "../serve/server.ts";
import type { Conversation } from "../tokens/conversation.ts";
import type { Correction } from "./corrections.ts";
import { type GuardRails, measuredMetrics } from "./guard-rails.ts";
import type { Tasks } from "./tasks.ts";
import type { Version } from "./versions.ts";

/** What the endpoints act on. */
export interface Trained {
  status(): Record<string, unknown>;
  versions(): Version[];
  rollBack(version: string): Version;
  guard: GuardRails;
  /**
   * The conversation before a turn of a recorded episode. Throws a RequestError of status 404 or
   * 400.
   */
  recordedState(episode: string, turn: number): Promise<Conversation>;
  /** The ids of an answer after a conversation, with the end of the turn. */
  answerIds(state: Conversation, answer: CorrectionRequest): { text: string; tokens: number[] };
  /** Stores a correction, unless it is repeated, and returns it. Throws a RequestError, ERR_IO. */
  correct(correction: Omit<Correction, "id">): Correction;
  /** Deletes an episode from the recording. Resolves to whether there was one. */
  deleteRecorded(episode: string): Promise<boolean>;
  tasks: Tasks;
  /** Held-out tasks. */
  testTasks: Tasks;
}

const correctionRequest = z
  .strictObject({
    /** The turn that is corrected, from 0. */
    turn: z.int().min(0),
    /** What should have been answered: a text, a call, or a text and a call. */
    content: z.string().nullish(),
    tool_call: z
      .strictObject({ name: z.string().min(1), arguments: z.record(z.string(), z.unknown()) })
      .optional(),
  })
  .refine(({ content, tool_call }) => (content ?? "") !== "" || tool_call !== undefined, {
    error: "give the better answer: content, tool_call, or both",
  });

export type CorrectionRequest = z.infer<typeof correctionRequest>;

const metricsRequest = z.record(z.string().min(1).max(256), z.number());

export function addEndpoints({ app, episodes, read }: Extension, trained: Trained): void {
  app.get("/v1/training", (c) => c.json(trained.status()));
  app.get("/v1/versions", (c) => c.json({ object: "list", data: trained.versions().map(shownVersion) }));
  app.post("/v1/versions/:version/rollback", (c) => {
    const version = c.req.param("version");
    const kept = trained.versions().map(({ name }) => name);
    if (!kept.includes(version))
      throw new RequestError(
        404,
        `There is no version ${version}. Use one of: ${kept.join(", ") || "none yet"}.`,
        "version_not_found",
      );
    return c.json(shownVersion(trained.rollBack(version)), 202);
  });
  app.post("/v1/metrics", async (c) => {
    const posted = Object.entries(await read(c, metricsRequest));
    const reserved = posted.find(([name]) => measuredMetrics.includes(name))?.[0];
    if (reserved !== undefined)
      throw badRequest(
        `The server measures "${reserved}" itself: post your metric under another name.`,
        reserved,
        "reserved_metric",
      );
    if (!trained.guard.takes(posted.map(([name]) => name)))
      throw badRequest(
        "There are too many metrics of different names. Names are forgotten after a rollback or a restart.",
        null,
        "too_many_metrics",
      );
    for (const [name, value] of posted) trained.guard.post(name, value);
    return c.json({});
  });
  app.post("/v1/episodes/:id/corrections", async (c) => {
    const episode = c.req.param("id");
    const asked = await read(c, correctionRequest);
    const key = idempotencyKey(c);
    let state: Conversation;
    try {
      state = episodes!.stateOf(episode, asked.turn);
    } catch (error) {
      // An episode that is not open may have been recorded.
      const isElsewhere =
        error instanceof RequestError &&
        (error.code === "episode_not_found" || error.code === "episode_conflict");
      if (!isElsewhere) throw error;
      state = await trained.recordedState(episode, asked.turn);
    }
    const { text, tokens } = trained.answerIds(state, asked);
    const { response } = trained.correct({
      ...{ episode, turn: asked.turn, prompt: state.prompt(), response: tokens, text, time: Date.now() },
      ...(key !== undefined && { key, request: hashOf(asked) }),
    });
    return c.json({ id: episode, turn: asked.turn, tokens: response.length });
  });
  app.delete("/v1/episodes/:id", async (c) => {
    const episode = c.req.param("id");
    const wasOpen = await episodes!.forget(episode);
    const wasRecorded = await trained.deleteRecorded(episode);
    if (!wasOpen && !wasRecorded) throw noEpisode(episode);
    return c.json({ id: episode, deleted: true });
  });
  const { tasks, testTasks } = trained;
  app.get("/v1/tasks/next", (c) => {
    refuseCrossSite(c);
    const split = c.req.query("split") ?? "train";
    if (split !== "train" && split !== "test")
      throw badRequest('The split of a task is "train" or "test".', "split");
    const from = split === "test" ? testTasks : tasks;
    if (from.isFull)
      throw new RequestError(
        429,
        `${from.leased} tasks are leased; reward or release some of them first.`,
        "too_many_leases",
      );
    const lease = from.next();
    if (lease === undefined)
      throw new RequestError(404, `There are no tasks of the split "${split}" here.`, "no_tasks");
    return c.json({ ...lease, split });
  });
  const onLease = (episode: string, held: boolean) => {
    if (!held) throw badRequest(`The lease of ${episode} has ended.`, null, "lease_ended");
    return { episode };
  };
  app.post("/v1/tasks/:episode/renew", (c) => {
    const episode = c.req.param("episode");
    return c.json(onLease(episode, tasks.renew(episode) || testTasks.renew(episode)));
  });
  app.post("/v1/tasks/:episode/release", (c) => {
    const episode = c.req.param("episode");
    return c.json(onLease(episode, tasks.release(episode) || testTasks.release(episode)));
  });
}

function shownVersion({ name, checkpoint, time, quality }: Version) {
  return { id: name, object: "version", checkpoint, created: Math.floor(time / 1000), metrics: quality };
}
