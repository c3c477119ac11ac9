/** Fixed transitions, explained at every evaluation: a critique is seen changing. */

import { useMemo } from "preact/hooks";
import type { ProbeList, SampleView } from "../types.ts";
import { useAnswer, versions } from "./api.ts";
import { Chart, colourOf, isDashed } from "./chart.tsx";
import { counted, figure, visible } from "./format.ts";
import { Note, Slider, Words } from "./parts.tsx";
import { Sample } from "./sample.tsx";
import { change, go, runId, state, useKeys } from "./state.ts";

export function Probes() {
  const run = runId.value;
  const { data, error } = useAnswer<ProbeList>("probes", { run }, versions.value[run]);
  const { n = "0", at } = state.value;
  const probe = data?.probes[Number(n)];
  const count = probe?.explained.length ?? 0;
  const place = at === undefined ? count - 1 : Math.min(Number(at), count - 1);
  useKeys({
    move: (by) => {
      const next = Number(n) + by;
      if (data?.probes[next] !== undefined) go({ n: String(next), t: "" });
    },
    shift: (by) => {
      if (place + by >= 0 && place + by < count) go({ at: String(place + by), t: "" });
    },
  });
  const lines = useMemo(
    () =>
      (data?.probes ?? []).map(({ explained, trajectory, turn }, i) => ({
        ...{ name: `#${trajectory} turn ${turn + 1}`, colour: i },
        x: explained.map(({ update }) => update),
        y: explained.map(({ l1 }) => l1),
      })),
    [data],
  );
  if (error !== undefined) return <Note>{error}</Note>;
  if (data === undefined) return <Note>Reading the probes …</Note>;
  if (probe === undefined)
    return (
      <Note>
        There are no probes. A run of NLAC explains them at every evaluation: set{" "}
        <code>config.evaluation.every</code>.
      </Note>
    );
  return (
    <div class={`cols ${state.value.n === undefined ? "" : "chosen"}`}>
      <aside>
        <div class="filters">
          <section class="panel">
            <h3>L1 of the probes</h3>
            <Chart lines={lines} over="updates" height={120} />
          </section>
        </div>
        <div class="longlist">
          {data.probes.map(({ trajectory, turn, explained }, i) => (
            <a
              key={i}
              class={`row critique ${i === Number(n) ? "on" : ""}`}
              href={change({ n: String(i), t: "" })}
            >
              <b>
                <i class={`mark ${isDashed(i) ? "dashed" : ""}`} style={{ background: colourOf(i) }} /> #
                {trajectory} turn {turn + 1}
              </b>
              <small>L1 {figure(explained.at(-1)?.l1)}</small>
              <span class="preview">
                {visible(explained.at(-1)?.texts.target ?? explained.at(-1)?.texts.critique ?? "")}
              </span>
            </a>
          ))}
        </div>
      </aside>
      <div class="timed">
        <a class="back" href={change({ n: "", t: "", at: "" })}>
          ← the list
        </a>
        <Slider
          name="evaluations"
          count={count}
          at={place}
          onMove={(chosen) => go({ at: String(chosen), t: "" })}
        >
          after {counted(probe.explained[place]!.update, "update")} ({place + 1} of {count}; [ and ] move)
        </Slider>
        <section class="part changes">
          <h3>
            Critic on (s, a) <small>at every evaluation</small>
          </h3>
          <ol>
            {probe.explained.map(({ number, update, l1, texts }, i) => (
              <li key={number} class={i === place ? "on" : ""}>
                <a href={change({ n, at: String(i), t: "" })}>
                  {figure(update)} <small>L1 {figure(l1)}</small>
                </a>
                <Words text={texts.critic ?? texts.critique ?? ""} />
              </li>
            ))}
          </ol>
        </section>
        <OneProbe run={run} number={probe.explained[place]!.number} />
      </div>
    </div>
  );
}

function OneProbe({ run, number }: { run: string; number: number }) {
  const { data, error } = useAnswer<SampleView>("probe", { run, n: number });
  if (error !== undefined) return <Note>{error}</Note>;
  if (data === undefined) return <Note>Reading the probe …</Note>;
  return <Sample key={number} sample={data} isProbe />;
}
