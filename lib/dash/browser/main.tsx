/** The page of `nlac dash`: its frame and the choice of a screen. */

import "./style.css";
import { type ComponentType, render } from "preact";
import { useEffect } from "preact/hooks";
import { follow, isExported, runs, trouble } from "./api.ts";
import { Compare } from "./compare.tsx";
import { Critiques } from "./critiques.tsx";
import { Episodes } from "./episodes.tsx";
import { visible } from "./format.ts";
import { History } from "./history.tsx";
import { MetricPanels } from "./metrics.tsx";
import { Overview } from "./overview.tsx";
import { RunChoice } from "./parts.tsx";
import { Probes } from "./probes.tsx";
import { linkOf, listenToKeys, readLink, runId, said, state, view } from "./state.ts";

const screens: Record<string, [title: string, screen: ComponentType]> = {
  overview: ["Overview", Overview],
  metrics: ["Metrics", MetricPanels],
  episodes: ["Episodes", Episodes],
  critiques: ["Critiques", Critiques],
  probes: ["Probes", Probes],
  compare: ["Compare", Compare],
};

/** Reached from a sample. */
const further: Record<string, ComponentType> = { history: History };

function App() {
  const Screen = screens[view.value]?.[1] ?? further[view.value] ?? Overview;
  const ofOneRun = !["overview", "compare", "metrics"].includes(view.value);
  const keep = { run: state.value.run ?? "" };
  const current = screens[view.value]?.[0] ?? (view.value in further ? "History" : "Overview");
  useEffect(() => {
    const run = view.value === "overview" || view.value === "compare" ? "" : `${visible(runId.value)}: `;
    document.title = `${run}${current} · nlac dash`;
  }, [current, runId.value]);
  return (
    <>
      <header>
        <b>nlac dash</b>
        <nav>
          {Object.entries(screens).map(([name, [title]]) => {
            const isOn = name === view.value || (name === "critiques" && view.value === "history");
            return (
              <a
                key={name}
                href={linkOf({ view: name, ...keep })}
                class={isOn ? "on" : ""}
                aria-current={isOn ? "page" : undefined}
              >
                {title}
              </a>
            );
          })}
        </nav>
        {ofOneRun && <RunChoice />}
      </header>
      {trouble.value !== undefined && (
        <p class="trouble" role="alert">
          {trouble.value}
        </p>
      )}
      <main class={view.value}>
        {runs.value === undefined ? (
          <p class="note">{trouble.value === undefined ? "Reading the runs …" : ""}</p>
        ) : runs.value.length === 0 ? (
          <p class="note">There is no run yet. This page shows one as soon as it starts.</p>
        ) : (
          <Screen key={`${view.value} ${ofOneRun ? runId.value : ""}`} />
        )}
      </main>
      <div class={`toast ${said.value === "" ? "" : "on"}`} role="status">
        {said.value}
      </div>
    </>
  );
}

readLink();
addEventListener("hashchange", readLink);
addEventListener("popstate", readLink);
listenToKeys();
document.documentElement.classList.toggle("exported", isExported);
render(<App />, document.getElementById("app")!);
void follow();
