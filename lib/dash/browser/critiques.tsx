/** The recorded samples of a run by L1, and one of them in full. */

import { useMemo } from "preact/hooks";
import type { SampleSummary, SampleView } from "../types.ts";
import { useAnswer, versions } from "./api.ts";
import { figure, visible } from "./format.ts";
import { Chip, LongList, Note } from "./parts.tsx";
import { Sample } from "./sample.tsx";
import { change, go, runId, state, useKeys } from "./state.ts";

const rowHeight = 52;

/** What each filter keeps. */
const filters: Record<string, [title: string, keeps: (sample: SampleSummary) => boolean]> = {
  changed: ["changed", ({ changed }) => changed === true],
  unchanged: ["unchanged", ({ changed }) => changed === false],
  dropped: ["dropped", ({ dropped }) => dropped !== ""],
  unreadable: ["unreadable", ({ unreadable }) => unreadable],
  contrary: [
    "verdict ≠ outcome",
    ({ target, success }) => target !== null && success !== null && target !== success,
  ],
  detailed: ["in detail", ({ detailed }) => detailed],
};

export function Critiques() {
  const run = runId.value;
  const { data, error } = useAnswer<SampleSummary[]>("samples", { run }, versions.value[run]);
  const { only = "", order = "l1", n = "", q = "" } = state.value;
  const shown = useMemo(() => {
    const keeps = filters[only]?.[1] ?? (() => true);
    const wanted = q.toLowerCase();
    const kept = (data ?? []).filter(
      (sample) => keeps(sample) && sample.preview.toLowerCase().includes(wanted),
    );
    return kept.sort(order === "l1" ? (a, b) => (b.l1 ?? -1) - (a.l1 ?? -1) : (a, b) => b.number - a.number);
  }, [data, only, order, q]);
  const selected = shown.findIndex(({ number }) => String(number) === n);
  const open = n === "" ? shown[0]?.number : Number(n);
  useKeys({
    move: (by) => {
      const next = shown[(selected < 0 ? 0 : selected) + by];
      if (next !== undefined) go({ n: String(next.number), t: "" });
    },
    shift: (by) => {
      // The same transition, drawn by an earlier or a later update.
      const here = data?.find(({ number }) => number === open);
      const same = (data ?? []).filter(
        ({ trajectory, turn }) => trajectory === here?.trajectory && turn === here?.turn,
      );
      const next = same[same.indexOf(here!) + by];
      if (next !== undefined) go({ n: String(next.number), t: "" });
    },
  });
  if (error !== undefined) return <Note>{error}</Note>;
  if (data === undefined) return <Note>Reading the samples …</Note>;
  if (data.length === 0) {
    return (
      <Note>
        There are no samples. A training records <code>run.samplesPerUpdate</code> of every update; nlac serve
        --train records none.
      </Note>
    );
  }
  const highest = Math.max(1e-9, ...shown.slice(0, 200).map(({ l1 }) => l1 ?? 0));
  return (
    <div class={`cols ${n === "" ? "" : "chosen"}`}>
      <aside>
        <div class="filters">
          <input
            type="search"
            placeholder="Search the first words"
            aria-label="search"
            value={q}
            onInput={(event) => go({ q: event.currentTarget.value })}
          />
          <div class="chips">
            <Chip on={order === "l1"} link={{ order: "" }}>
              highest L1
            </Chip>
            <Chip on={order === "newest"} link={{ order: "newest" }}>
              newest
            </Chip>
          </div>
          <div class="chips">
            {Object.entries(filters).map(([name, [title]]) => (
              <Chip key={name} on={only === name} link={{ only: only === name ? "" : name }}>
                {title}
              </Chip>
            ))}
          </div>
          <span class="faint">
            {figure(shown.length)} of {figure(data.length)} samples
          </span>
        </div>
        <LongList count={shown.length} height={rowHeight} selected={selected}>
          {(row) => {
            const { number, trajectory, turn, update, l1, preview } = shown[row]!;
            return (
              <a
                key={number}
                class={`row critique ${number === open ? "on" : ""}`}
                href={change({ n: String(number), t: "" })}
              >
                <b>
                  #{trajectory}
                  {turn !== null && ` turn ${turn + 1}`}
                </b>
                <small>update {figure(update + 1)}</small>
                <span class="bar" title={`L1 ${figure(l1)}`}>
                  <i style={{ width: `${Math.min(100, ((l1 ?? 0) / highest) * 100)}%` }} />
                </span>
                <span class="preview">{visible(preview)}</span>
              </a>
            );
          }}
        </LongList>
      </aside>
      {open === undefined ? (
        <Note>No sample is left by the filters.</Note>
      ) : (
        <OneSample run={run} number={open} />
      )}
    </div>
  );
}

function OneSample({ run, number }: { run: string; number: number }) {
  const { data, error } = useAnswer<SampleView>("sample", { run, n: number });
  if (error !== undefined) return <Note>{error}</Note>;
  if (data === undefined) return <Note>Reading the sample …</Note>;
  return <Sample key={number} sample={data} place={{ run, number }} />;
}
