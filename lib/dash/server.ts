/**
 * Serves the dashboard to this machine's browser. It reads the files of runs in a separate process.
 *
 *   GET /, /main.js, /main.css       the page, the same for everyone
 *   GET /api/PATH?QUERY              api.ts; needs the token
 *   GET /api/stream                  versions of all runs, whenever one changes
 *   GET /api/from-checkpoint?run&n   figures of a sample that were not recorded; loads the model
 */

import { randomBytes } from "node:crypto";
import { createServer } from "node:http";
import { getRequestListener } from "@hono/node-server";
import { type Context, Hono } from "hono";
import { NlacError } from "../base/errors.ts";
import { guard } from "../serve/guard.ts";
import { listenOn } from "../serve/listen.ts";
import { asRequestError } from "../serve/request-error.ts";
import { isSameSecret } from "../serve/scopes.ts";
import { answer, numberOf, versions } from "./api.ts";
import { FromCheckpoint } from "./from-checkpoint.ts";
import { type Assets, servedPage, servedPolicy } from "./page.ts";
import type { DashRuns } from "./runs.ts";

export interface DashServer {
  /** With the token in the fragment, which browsers do not send. */
  link: string;
  token: string;
  close(): Promise<void>;
}

export interface DashOptions {
  assets: Assets;
  /** Default 0: a free one. */
  port?: number;
  /** Milliseconds between looks at the files. Default 1000. */
  pollMs?: number;
  log?: (line: string) => void;
}

/** The dashboard shows transcripts, and only this machine may see them. */
const host = "127.0.0.1";

/** Starts to serve `runs`. Throws ERR_IO for a port in use. */
export async function serveDash(runs: DashRuns, options: DashOptions): Promise<DashServer> {
  const { assets, port = 0, pollMs = 1000, log = () => {} } = options;
  const token = randomBytes(24).toString("base64url");
  const closing = new AbortController();
  const listeners = new Set<() => void>();
  const computed = new FromCheckpoint();
  let shown = JSON.stringify(versions(runs));
  let reported = "";
  const poll = async () => {
    let failure = "";
    try {
      await runs.poll();
      failure = runs.faults.join("\n");
    } catch (error) {
      failure = (error as Error).message;
    }
    // Log the same failure once, not every second.
    if (failure !== "" && failure !== reported) log(failure);
    reported = failure;
    const now = JSON.stringify(versions(runs));
    if (now !== shown) for (const tell of listeners) tell();
    shown = now;
    if (!closing.signal.aborted) timer = setTimeout(() => void poll(), pollMs);
  };
  let timer: NodeJS.Timeout | undefined;
  void poll();

  const app = new Hono();
  app.use("*", guard({ host }));
  app.use("*", async (c, next) => {
    await next();
    c.header("x-content-type-options", "nosniff");
    c.header("referrer-policy", "no-referrer");
    c.header("cross-origin-resource-policy", "same-origin");
    c.header("cache-control", "no-store");
  });
  app.get("/", (c) => {
    c.header("content-security-policy", servedPolicy);
    return c.html(servedPage());
  });
  const asset = (text: string, type: string) => (c: Context) => c.body(text, 200, { "content-type": type });
  app.get("/main.js", asset(assets.script, "text/javascript; charset=utf-8"));
  app.get("/main.css", asset(assets.styles, "text/css; charset=utf-8"));
  app.use("/api/*", async (c, next) => {
    if (!isSameSecret(c.req.header("authorization"), `Bearer ${token}`))
      return c.json({ message: "The token is missing or wrong: open the link that nlac dash prints." }, 401);
    return next();
  });
  app.get("/api/stream", (c) => {
    const stream = versionStream(runs, listeners, AbortSignal.any([closing.signal, c.req.raw.signal]));
    return c.body(stream, 200, { "content-type": "text/event-stream" });
  });
  app.get("/api/from-checkpoint", async (c) => {
    const query = c.req.query();
    return c.json(await computed.target(runs.get(query.run ?? ""), numberOf(query, "n")));
  });
  app.get("/api/:path", async (c) => c.json(await answer(runs, c.req.param("path"), c.req.query())));
  app.notFound((c) => c.json({ message: `There is no ${c.req.path}.` }, 404));
  app.onError((error, c) => answerError(c, error, log));

  const http = createServer(getRequestListener(app.fetch, { hostname: host }));
  const bound = await listenOn(http, host, port).catch((error: unknown) => {
    closing.abort();
    clearTimeout(timer);
    throw error;
  });
  return {
    link: `http://${host}:${bound}/#token=${token}`,
    token,
    close: async () => {
      closing.abort();
      clearTimeout(timer);
      const closed = new Promise<void>((resolve) => http.close(() => resolve()));
      http.closeAllConnections();
      await closed;
      await computed.dispose();
    },
  };
}

/** Server-sent events: the versions now, and again after every change. */
export function versionStream(
  runs: DashRuns,
  listeners: Set<() => void>,
  signal: AbortSignal,
): ReadableStream<Uint8Array> {
  const encoder = new TextEncoder();
  let tell: () => void;
  /** Whether something has changed while the queue was full. */
  let dirty = false;
  const send = (controller: ReadableStreamDefaultController<Uint8Array>) => {
    dirty = false;
    controller.enqueue(encoder.encode(`data: ${JSON.stringify(versions(runs))}\n\n`));
  };
  return new ReadableStream({
    start(controller) {
      tell = () => {
        // A page that reads nothing gets one event with the latest versions once it reads again.
        if ((controller.desiredSize ?? 0) > 0) send(controller);
        else dirty = true;
      };
      listeners.add(tell);
      tell();
      signal.addEventListener("abort", () => {
        if (!listeners.delete(tell)) return;
        controller.close();
      });
    },
    pull(controller) {
      if (dirty) send(controller);
    },
    cancel() {
      listeners.delete(tell);
    },
  });
}

function answerError(c: Context, error: Error, log: (line: string) => void): Response {
  if (error instanceof NlacError) {
    const status = error.code === "ERR_CONFIG" ? 400 : 404;
    return c.json({ message: error.message, code: error.code }, status);
  }
  const { status, body } = asRequestError(error);
  if (status === 500) log(error.stack ?? error.message);
  return c.json({ message: body.error.message }, status);
}
