/** The state of the page, which is all in its link: `#token=…&view=…&run=…`. */

import { computed, signal } from "@preact/signals";
import { useLayoutEffect } from "preact/hooks";
import type { RunSummary } from "../types.ts";
import { runs, token } from "./api.ts";

type State = Record<string, string>;

export const state = signal<State>({});

/** Reads the link. */
export function readLink(): void {
  const { token: given, ...rest } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  if (given !== undefined) token.value = given;
  state.value = rest;
}

/** The link of a state. */
export function linkOf(next: State): string {
  const filled = Object.entries(next).filter(([, value]) => value !== "");
  const secret = token.value === "" ? [] : [["token", token.value]];
  return `#${new URLSearchParams([...secret, ...filled] as [string, string][])}`;
}

/** The link of this state with changes; an empty value removes a field. */
export function change(changes: State): string {
  return linkOf({ ...state.value, ...changes });
}

/** Changes the state. A new place in the browser's history only if `isPlace`. */
export function go(changes: State, isPlace = false): void {
  const link = change(changes);
  state.value = Object.fromEntries(
    Object.entries({ ...state.value, ...changes }).filter(([, value]) => value !== ""),
  );
  if (isPlace) history.pushState(null, "", link);
  else history.replaceState(null, "", link);
}

export const view = computed(() => state.value.view ?? "overview");

/**
 * Running ones first, by the time of their start: their order must not change whenever one of them
 * writes. The others by the time that they were last written.
 */
export const inOrder = computed(() => {
  const rank = ({ state, started, updated }: RunSummary) =>
    state === "running" ? 1e12 + (started ?? 0) : (updated ?? 0);
  return [...(runs.value ?? [])].sort((a, b) => rank(b) - rank(a));
});

let chosen = "";

/**
 * Id of the run that is shown: the one in the link, also if it does not exist, or else the first one
 * when the page was opened.
 */
export const runId = computed(() => {
  if (state.value.run !== undefined) return state.value.run;
  const ids = inOrder.value.map(({ id }) => id);
  if (!ids.includes(chosen)) chosen = ids[0] ?? "";
  return chosen;
});

/** What a list on screen does for the keyboard. */
export interface Keys {
  /** j and k: the next or previous entry. */
  move?: (by: 1 | -1) => void;
  /** ] and [: the same thing later or earlier. */
  shift?: (by: 1 | -1) => void;
}

let current: Keys = {};

/**
 * Sets what the keys do on this screen. It holds as soon as the screen is drawn: an effect after
 * the next frame would lose a key that is pressed before.
 */
export function useKeys(keys: Keys = {}): void {
  useLayoutEffect(() => {
    current = keys;
  });
}

export const said = signal("");

export function listenToKeys(): void {
  addEventListener("keydown", (event) => {
    const isTyping = (event.target as HTMLElement).matches("input, select, textarea");
    if (event.key === "Escape" && isTyping) (event.target as HTMLElement).blur();
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    const actions: Record<string, () => void> = {
      j: () => current.move?.(1),
      k: () => current.move?.(-1),
      "]": () => current.shift?.(1),
      "[": () => current.shift?.(-1),
      "/": () => document.querySelector<HTMLInputElement>("input[type=search]")?.focus(),
      y: () => {
        void navigator.clipboard?.writeText(location.href).then(() => say("Link copied"));
      },
    };
    const action = actions[event.key];
    if (action === undefined) return;
    event.preventDefault();
    action();
  });
}

function say(text: string): void {
  said.value = text;
  setTimeout(() => {
    said.value = "";
  }, 1500);
}
