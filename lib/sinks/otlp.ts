/**
 * Sends episodes as OpenTelemetry traces, by OTLP over HTTP in JSON, with the attributes of the
 * semantic conventions for generative AI (`gen_ai.*`). One trace is an episode: its agent's
 * invocation, and below it a span per completion and per tool call.
 *
 * Episodes of an iteration are played together, so single turns have no durations: spans are
 * ordered by a microsecond each, and end when the iteration's episodes were recorded.
 */

import { createHash } from "node:crypto";
import { version } from "../base/version.ts";
import type { Message } from "../contract/environment.ts";
import { isFaulty, succeeded, type Trajectory } from "../episodes/trajectory.ts";
import { baseAddress, headersFrom, postJson } from "./http.ts";
import type { ReportedRun, Sink } from "./sink.ts";

type Value = string | number | boolean | { double: number };

/** A span before its run is known. */
interface PreparedSpan {
  /** Unique within the episode. */
  key: string;
  parent?: string;
  name: string;
  /** 1 internal, 3 client. */
  kind: 1 | 3;
  /** Microseconds before the episode's end. */
  before: number;
  attributes: Record<string, Value | undefined>;
  error?: string;
}

interface PreparedEpisode {
  id: number;
  time: number;
  spans: PreparedSpan[];
}

export function otlpSink(options: {
  url: string;
  content: boolean;
  headers: Readonly<Record<string, string>>;
}): Sink {
  const address = `${baseAddress(options.url, "report.url")}/v1/traces`;
  const headers = headersFrom(options.headers, "report.headers");
  let run: ReportedRun | undefined;
  return {
    name: "otlp",
    start(started) {
      run = started;
    },
    prepare: (episode, time) => prepare(episode, time, options.content),
    async episodes(prepared, signal) {
      await postJson(address, requestOf(run!, prepared as PreparedEpisode[]), { headers, signal });
    },
  };
}

function prepare(episode: Trajectory, time: number, content: boolean): PreparedEpisode {
  const { id, turns, outcome, fault } = episode;
  const spans: PreparedSpan[] = [
    {
      key: "episode",
      name: "invoke_agent",
      kind: 1,
      before: 2 * turns.length + 1,
      attributes: {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": String(id),
        "gen_ai.usage.output_tokens": turns.reduce((sum, { tokens }) => sum + tokens.length, 0),
        "gen_ai.input.messages": content ? messagesOf(episode.opening ?? []) : undefined,
        "nlac.episode": id,
        "nlac.task": episode.task,
        "nlac.seed": episode.seed,
        "nlac.outcome": outcome,
        "nlac.reward": { double: episode.reward },
        "nlac.turns": turns.length,
        ...(isFaulty(episode)
          ? { "error.type": fault?.code ?? outcome }
          : { "nlac.success": succeeded(episode) }),
      },
      ...(fault === undefined ? {} : { error: `${fault.code}: ${fault.message}` }),
    },
  ];
  for (const [i, turn] of turns.entries()) {
    const { action, text, tokens, state, malformed, info, reward, observation } = turn;
    spans.push({
      key: `turn ${i}`,
      parent: "episode",
      name: "chat",
      kind: 3,
      before: 2 * (turns.length - i),
      attributes: {
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.input_tokens": state.tokens.length,
        "gen_ai.usage.output_tokens": tokens.length,
        "gen_ai.output.messages": content
          ? JSON.stringify([{ role: "assistant", parts: [{ type: "text", content: text }] }])
          : undefined,
        "nlac.turn": i,
        "nlac.reward": { double: reward },
        "error.type": malformed === undefined ? undefined : "malformed",
      },
      ...(malformed === undefined ? {} : { error: malformed }),
    });
    if (action?.tool === undefined) continue;
    spans.push({
      key: `tool ${i}`,
      parent: "episode",
      name: `execute_tool ${action.tool.name}`,
      kind: 1,
      before: 2 * (turns.length - i) - 1,
      attributes: {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": action.tool.name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.arguments": content ? JSON.stringify(action.tool.arguments) : undefined,
        "gen_ai.tool.call.result": content
          ? observation.map((message) => message.content).join("\n")
          : undefined,
        "error.type": info.toolError === true ? "tool_error" : undefined,
      },
      ...(info.toolError === true ? { error: "the call was refused or failed" } : {}),
    });
  }
  return { id, time, spans };
}

function messagesOf(messages: readonly Message[]): string {
  return JSON.stringify(
    messages.map(({ role, content }) => ({ role, parts: [{ type: "text", content: content ?? "" }] })),
  );
}

function requestOf(run: ReportedRun, episodes: readonly PreparedEpisode[]) {
  const { model, environment } = run.recipe as { model?: unknown; environment?: { name?: unknown } };
  const modelName = typeof model === "string" ? model : undefined;
  const agent = typeof environment?.name === "string" ? environment.name : undefined;
  const spans = episodes.flatMap(({ id, time, spans }) => {
    const identify = (key: string, length: number) =>
      createHash("sha256").update(`${run.id} ${id} ${key}`).digest("hex").slice(0, length);
    return spans.map(({ key, parent, name, kind, before, attributes, error }) => {
      const start = BigInt(Math.round(time * 1e6)) - BigInt(before);
      const ends = parent === undefined ? start + BigInt(before) : start + 1n;
      const suffix = name === "chat" ? modelName : name === "invoke_agent" ? agent : undefined;
      return {
        traceId: identify("trace", 32),
        spanId: identify(key, 16),
        ...(parent === undefined ? {} : { parentSpanId: identify(parent, 16) }),
        name: suffix === undefined ? name : `${name} ${suffix}`,
        kind,
        startTimeUnixNano: String(start * 1000n),
        endTimeUnixNano: String(ends * 1000n),
        attributes: attributesOf({
          "gen_ai.provider.name": "nlac",
          "gen_ai.request.model": modelName,
          "gen_ai.agent.name": agent,
          ...attributes,
        }),
        status: error === undefined ? {} : { code: 2, message: error },
      };
    });
  });
  const resource = { "service.name": "nlac", "service.instance.id": run.id, "nlac.run": run.name };
  return {
    resourceSpans: [
      {
        resource: { attributes: attributesOf(resource) },
        scopeSpans: [{ scope: { name: "nlac", version }, spans }],
      },
    ],
  };
}

function attributesOf(values: Record<string, Value | undefined>) {
  return Object.entries(values).flatMap(([key, value]) =>
    value === undefined ? [] : [{ key, value: anyValue(value) }],
  );
}

/** A value in OTLP's JSON, where 64-bit integers are text. */
function anyValue(value: Value): Record<string, unknown> {
  if (typeof value === "string") return { stringValue: value };
  if (typeof value === "boolean") return { boolValue: value };
  return typeof value === "number" ? { intValue: String(value) } : { doubleValue: value.double };
}
