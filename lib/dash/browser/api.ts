/** Asks the server, or the data of an exported page, and follows changes. */

import { effect, signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import type { RunSummary, Versions } from "../types.ts";

type Query = Record<string, string | number>;

/** Answers by path and query, in an exported page. */
const embedded = document.getElementById("data");
const stored: Record<string, unknown> | undefined =
  embedded === null ? undefined : JSON.parse(embedded.textContent ?? "{}");

export const isExported = stored !== undefined;
export const token = signal("");
/** What changes with the files of each run. */
export const versions = signal<Versions>({});
export const runs = signal<RunSummary[] | undefined>(undefined);
/** Why there is no connection. */
export const trouble = signal<string | undefined>(undefined);

/** Requests in progress that are made again whenever `versions` change. */
let following = 0;
/** The newest versions, if they arrived meanwhile. */
let held: Versions | undefined;

/** Holds new versions back until the answer is there: otherwise slow answers would never be shown. */
export async function beforeNext<T>(answer: Promise<T>): Promise<T> {
  following++;
  try {
    return await answer;
  } finally {
    following--;
    if (following === 0 && held !== undefined) {
      versions.value = held;
      held = undefined;
    }
  }
}

function changeTo(next: Versions): void {
  if (following > 0) held = next;
  else versions.value = next;
}

const addressOf = (path: string, query: Query) =>
  `${path}?${new URLSearchParams(Object.entries(query).map(([name, value]) => [name, String(value)]))}`;

/** Throws an Error with the server's message. */
export async function ask<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  const address = addressOf(path, query);
  if (stored !== undefined) {
    if (stored[address] === undefined) throw new Error("This is not part of the exported page.");
    return stored[address] as T;
  }
  const answer = await fetch(`/api/${address}`, {
    headers: { authorization: `Bearer ${token.value}` },
    ...(signal && { signal }),
  });
  const body = await answer.json();
  if (!answer.ok) throw new Error((body as { message: string }).message);
  return body as T;
}

/**
 * Asks again whenever `version` changes; the earlier answer is shown until the next one is there.
 * Asks nothing while `path` is undefined.
 */
export function useAnswer<T>(
  path: string | undefined,
  query: Query,
  version = "",
): { data: T | undefined; error: string | undefined } {
  const address = path === undefined ? "" : addressOf(path, query);
  const [state, setState] = useState<{ address: string; data?: T; error?: string }>({ address });
  useEffect(() => {
    if (path === undefined) return;
    const stop = new AbortController();
    const asked = ask<T>(path, query, stop.signal);
    // Loading a model takes long.
    (path === "from-checkpoint" ? asked : beforeNext(asked)).then(
      (data) => setState({ address, data }),
      (error: Error) => {
        if (!stop.signal.aborted) setState({ address, error: error.message });
      },
    );
    return () => stop.abort();
  }, [address, version]);
  return state.address === address
    ? { data: state.data, error: state.error }
    : { data: undefined, error: undefined };
}

/** Follows the runs until the page is closed. */
export async function follow(): Promise<void> {
  effect(() => {
    // Read first: an effect runs again when a value that it read changes.
    void versions.value;
    beforeNext(ask<RunSummary[]>("runs")).then(
      (all) => {
        runs.value = all;
      },
      (error: Error) => {
        trouble.value = error.message;
      },
    );
  });
  if (isExported) return;
  for (;;) {
    try {
      await readStream();
    } catch (error) {
      trouble.value = (error as Error).message;
    }
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

async function readStream(): Promise<void> {
  const answer = await fetch("/api/stream", { headers: { authorization: `Bearer ${token.value}` } });
  if (!answer.ok) throw new Error(((await answer.json()) as { message: string }).message);
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  trouble.value = undefined;
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("nlac dash has ended. The page shows the last state.");
    const events = (rest + value).split("\n\n");
    rest = events.pop()!;
    const last = events.at(-1);
    if (last?.startsWith("data: ")) changeTo(JSON.parse(last.slice(6)) as Versions);
  }
}
