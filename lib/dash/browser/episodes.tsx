/** Transcripts of a run's training or evaluations, with filters and a slider over its updates. */

import { useEffect, useMemo, useState } from "preact/hooks";
import type { EpisodeList, EpisodeTurn, EpisodeView } from "../types.ts";
import { ask, isExported, useAnswer, versions } from "./api.ts";
import { counted, figure, visible } from "./format.ts";
import { LongList, Messages, Note, Slider, Words } from "./parts.tsx";
import { change, go, linkOf, runId, state, useKeys } from "./state.ts";

const rowHeight = 44;
const results: Record<string, number> = { succeeded: 1, failed: 0, faulty: -1 };
const splits: Record<string, number> = { training: 0, "held out": 1 };

/** The slider hides later episodes of a training, and chooses one of the evaluations. */
export function Episodes() {
  const run = runId.value;
  const isEvaluation = state.value.of === "evaluations";
  const path = isEvaluation ? "evaluation" : "episode";
  const { data, error } = useAnswer<EpisodeList>(`${path}s`, { run }, versions.value[run]);
  const { result = "", outcome = "", task = "", split = "", turns = "" } = state.value;
  const { until = "", q = "", n = "" } = state.value;
  const found = useSearch(run, path, q);
  const stops = useMemo(() => [...new Set(data?.update ?? [])].sort((a, b) => a - b), [data]);
  const at = until === "" ? stops.length - 1 : stops.findLastIndex((update) => update <= Number(until));
  const stop = stops[at] ?? -1;
  const shown = useMemo(() => {
    if (data === undefined) return [];
    const rows: number[] = [];
    for (let i = data.id.length - 1; i >= 0; i--) {
      if (isEvaluation ? data.update[i] !== stop : data.update[i]! > stop) continue;
      if (result !== "" && data.success[i] !== results[result]) continue;
      if (outcome !== "" && data.outcomes[data.outcome[i]!] !== outcome) continue;
      if (task !== "" && data.tasks[data.task[i]!] !== task) continue;
      if (split !== "" && data.heldOut[i] !== splits[split]) continue;
      if (turns !== "" && data.turns[i] !== Number(turns)) continue;
      if (found.places !== undefined && !found.places.has(data.from + i)) continue;
      rows.push(i);
    }
    return rows;
  }, [data, result, outcome, task, split, stop, turns, found.places]);
  const setStop = (stop: number) =>
    go({ until: stop >= stops.length - 1 ? "" : String(stops[Math.max(0, stop)]!) });
  const selected = data === undefined ? -1 : shown.findIndex((i) => String(data.id[i]) === n);
  useKeys({
    move: (by) => {
      const next = shown[selected < 0 ? 0 : selected + by];
      if (next !== undefined) go({ n: String(data!.id[next]) });
    },
    shift: (by) => setStop(at + by),
  });
  if (error !== undefined) return <Note>{error}</Note>;
  if (data === undefined) return <Note>Reading the episodes …</Note>;
  const select = (name: string, value: string, all: string, options: readonly string[]) => (
    <select aria-label={name} value={value} onChange={(event) => go({ [name]: event.currentTarget.value })}>
      <option value="">{all}</option>
      {options.map((option) => (
        // Without a value, that would be its text with the spaces collapsed.
        <option key={option} value={option}>
          {visible(option)}
        </option>
      ))}
    </select>
  );
  const total = isEvaluation ? data.update.filter((update) => update === stop).length : data.id.length;
  const lengths = [...new Set(data.turns)].sort((a, b) => a - b);
  return (
    <div class={`cols two ${n === "" ? "" : "chosen"}`}>
      <aside>
        <div class="filters">
          <input
            type="search"
            placeholder={isExported ? "Search is part of nlac dash" : "Search the transcripts"}
            aria-label="search"
            disabled={isExported}
            value={q}
            onChange={(event) => go({ q: event.currentTarget.value })}
          />
          <span class="faint">
            <a href={linkOf({ view: "episodes", run, of: isEvaluation ? "" : "evaluations" })}>
              {isEvaluation ? "Episodes of the training" : "Episodes of evaluations"}
            </a>
          </span>
          {select("result", result, "any result", Object.keys(results))}
          {select("outcome", outcome, "any ending", data.outcomes)}
          {data.tasks.length > 0 && select("task", task, "any task", data.tasks)}
          {!isEvaluation &&
            data.heldOut.includes(1) &&
            select("split", split, "any split", Object.keys(splits))}
          {select("turns", turns, "any length", lengths.map(String))}
          {stops.length > 1 && (
            <Slider name="updates" count={stops.length} at={at} onMove={setStop}>
              {isEvaluation ? `after ${counted(stop, "update")}` : `up to update ${figure(stop)}`}
            </Slider>
          )}
          <span class="faint">
            {figure(shown.length)} of {figure(total)} episodes
            {data.from > 0 && `, ${figure(data.from)} earlier ones are left out`}
            {found.note}
          </span>
        </div>
        <LongList count={shown.length} height={rowHeight} selected={selected}>
          {(row) => {
            const i = shown[row]!;
            const kind = ["failed", "succeeded"][data.success[i]!] ?? "faulty";
            return (
              <a
                key={data.id[i]}
                class={`row episode ${row === selected ? "on" : ""}`}
                href={change({ n: String(data.id[i]) })}
              >
                <i class={`dot ${kind}`} role="img" aria-label={kind} title={kind} />
                <b>#{data.id[i]}</b>
                <span class="task">{visible(data.names?.[i] ?? data.tasks[data.task[i]!]!)}</span>
                <small>
                  {counted(data.turns[i]!, "turn")} · update {figure(data.update[i])}
                  {data.heldOut[i] === 1 && " · held out"}
                </small>
              </a>
            );
          }}
        </LongList>
      </aside>
      <article>
        {n === "" || stop < 0 ? (
          <Note>Choose an episode: j and k move.</Note>
        ) : (
          <Transcript run={run} path={path} id={n} stop={stop} />
        )}
      </article>
    </div>
  );
}

/** Places of the episodes that contain the text; undefined without one. */
function useSearch(run: string, path: string, text: string): { places?: Set<number>; note: string } {
  const [state, setState] = useState<{ places?: Set<number>; note: string }>({ note: "" });
  useEffect(() => {
    const stop = new AbortController();
    if (text === "" || isExported) setState({ note: "" });
    else
      ask<{ places: number[]; searched: number }>(
        "search",
        { run, of: `${path}s`, q: text },
        stop.signal,
      ).then(
        ({ places, searched }) =>
          setState({
            places: new Set(places),
            note: `; searched the newest ${figure(searched)}`,
          }),
        () => {},
      );
    return () => stop.abort();
  }, [run, text]);
  return state;
}

function Transcript({ run, path, id, stop }: { run: string; path: string; id: string; stop: number }) {
  const isEvaluation = path === "evaluation";
  const query = { run, n: id, ...(isEvaluation && { update: stop }) };
  const { data, error } = useAnswer<EpisodeView>(path, query);
  if (error !== undefined) return <Note>{error}</Note>;
  if (data === undefined) return <Note>Reading the episode …</Note>;
  const { task, seed, outcome, reward, success, update, fault, opening, turns } = data;
  const { isHeldOut, group, parent, branch } = data;
  const kind = ["failed", "succeeded"][success] ?? "faulty";
  const historyOf = (turn: number) =>
    change({ view: "history", run, episode: String(data.id), turn: String(turn), n: "" });
  return (
    <>
      <a class="back" href={change({ n: "" })}>
        ← all episodes
      </a>
      <h2>
        Episode {data.id} <span class={`badge ${kind}`}>{kind}</span>
        {isHeldOut && <span class="badge">held out: nothing trains on it</span>}
      </h2>
      <p class="faint">
        {visible(task)} · reward {figure(reward)} · ended by {outcome} after {counted(update, "update")}
        {seed !== undefined && ` · seed ${seed}`}
        {group && ` · group ${visible(group)}`}
        {parent && ` · worked for ${visible(parent)}`}
        {branch && ` · a branch of episode ${branch.trajectory} from turn ${branch.turn + 1}`}
      </p>
      <Messages messages={opening} open={opening.length} />
      {turns.map((turn, i) => (
        <Turn key={i} turn={turn} number={i} link={isHeldOut || isEvaluation ? undefined : historyOf(i)} />
      ))}
      {fault !== undefined && (
        <div class="message fault">
          <span class="role">{fault.code}</span>
          <Words text={fault.message} />
        </div>
      )}
    </>
  );
}

/** `link`: to the draws of this turn, unless no update can draw it. */
function Turn({ turn, number, link }: { turn: EpisodeTurn; number: number; link: string | undefined }) {
  const { text, thought, tool, says, malformed, observation, reward } = turn;
  return (
    <section class="turn">
      <h3>
        Turn {number + 1}
        {reward !== 0 && <span class="badge">reward {figure(reward)}</span>}
        {link !== undefined && (
          <a class="faint" href={link}>
            history
          </a>
        )}
      </h3>
      {thought && (
        <div class="message agent thought">
          <span class="role">thought</span>
          <Words text={thought} />
        </div>
      )}
      {tool && (
        <div class="message agent">
          <span class="role">calls {visible(tool.name)}</span>
          <Words text={JSON.stringify(tool.arguments, null, 2)} kind="code" />
        </div>
      )}
      {says !== undefined && (
        <div class="message agent">
          <span class="role">says</span>
          <Words text={says} />
        </div>
      )}
      {malformed !== undefined && (
        <div class="message fault">
          <span class="role">unreadable: {visible(malformed)}</span>
          <Words text={text} />
        </div>
      )}
      <Messages messages={observation} open={observation.length} />
    </section>
  );
}
