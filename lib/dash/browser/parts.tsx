/** Small parts that several screens share. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Message } from "../types.ts";
import { runs } from "./api.ts";
import { counted, visible } from "./format.ts";
import { change, go, runId, state, view } from "./state.ts";

/** Characters of a text that are shown at first. */
const shownAtFirst = 6000;

/** Text from outside: a model, a tool, a person. */
export function Words({ text, kind = "" }: { text: string; kind?: string }) {
  const [all, setAll] = useState(false);
  const cut = !all && text.length > shownAtFirst;
  return (
    <div class={`words ${kind}`} dir="auto">
      {visible(cut ? text.slice(0, shownAtFirst) : text)}
      {cut && (
        <button type="button" class="more" onClick={() => setAll(true)}>
          show all {text.length.toLocaleString("en")} characters
        </button>
      )}
    </div>
  );
}

export function Messages({ messages, open = 1 }: { messages: readonly Message[]; open?: number }) {
  const [all, setAll] = useState(false);
  const from = all ? 0 : Math.max(0, messages.length - open);
  return (
    <>
      {from > 0 && (
        <button type="button" class="more" onClick={() => setAll(true)}>
          show {counted(from, "earlier message")}
        </button>
      )}
      {messages.slice(from).map(({ role, content }, i) => (
        <div key={from + i} class={`message ${role}`}>
          <span class="role">{role}</span>
          <Words text={content} />
        </div>
      ))}
    </>
  );
}

export function Chip({
  on,
  link,
  children,
}: {
  on: boolean;
  link: Record<string, string>;
  children: ComponentChildren;
}) {
  return (
    <a class={`chip ${on ? "on" : ""}`} href={change(link)} aria-current={on}>
      {children}
    </a>
  );
}

const empty = (fields: object) => Object.fromEntries(Object.keys(fields).map((name) => [name, ""]));

export function RunChoice() {
  const all = runs.value ?? [];
  return (
    <select
      class="runchoice"
      aria-label="run"
      value={runId.value}
      onChange={(event) =>
        // Without what is chosen and filtered: another run may not have it.
        go({ ...empty(state.value), view: view.value, run: event.currentTarget.value }, true)
      }
    >
      {all.map(({ id }) => (
        <option key={id} value={id}>
          {id}
        </option>
      ))}
    </select>
  );
}

/** A list of any length: only the rows in sight exist. */
export function LongList({
  count,
  height,
  selected,
  children,
}: {
  count: number;
  /** Of a row, in pixels. */
  height: number;
  selected: number;
  children: (i: number) => ComponentChildren;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [range, setRange] = useState({ top: 0, rows: 40 });
  const look = () => {
    // The observer also fires when the list leaves the page.
    if (box.current === null) return;
    const { scrollTop, clientHeight } = box.current;
    setRange({ top: Math.floor(scrollTop / height), rows: Math.ceil(clientHeight / height) + 1 });
  };
  useEffect(() => {
    const watcher = new ResizeObserver(look);
    watcher.observe(box.current!);
    return () => watcher.disconnect();
  }, []);
  useEffect(() => {
    const { scrollTop, clientHeight } = box.current!;
    if (selected < 0 || clientHeight === 0) return;
    if (selected * height < scrollTop || (selected + 1) * height > scrollTop + clientHeight)
      box.current!.scrollTop = selected * height - clientHeight / 3;
  }, [selected]);
  const first = Math.max(0, Math.min(range.top, count - 1) - 10);
  const last = Math.min(count, range.top + range.rows + 10);
  return (
    <div class="longlist" ref={box} onScroll={look}>
      <div class="all" style={{ height: `${count * height}px` }}>
        <div style={{ transform: `translateY(${first * height}px)` }}>
          {Array.from({ length: Math.max(0, last - first) }, (_, i) => children(first + i))}
        </div>
      </div>
    </div>
  );
}

/** A choice of one of `count` places. */
export function Slider({
  name,
  count,
  at,
  onMove,
  children,
}: {
  name: string;
  count: number;
  at: number;
  onMove: (at: number) => void;
  children: ComponentChildren;
}) {
  return (
    <label class="slider">
      {children}
      <input
        type="range"
        min="0"
        max={count - 1}
        value={at}
        aria-label={name}
        onInput={(event) => onMove(Number(event.currentTarget.value))}
      />
    </label>
  );
}

export function Note({ children }: { children: ComponentChildren }) {
  return <p class="note">{children}</p>;
}
