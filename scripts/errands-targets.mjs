#!/usr/bin/env node
// What the targets of NLAC's backup say on Errands, beside the desk's replies that they were written after. Reads the
// recorded samples of runs.
//   node scripts/errands-targets.mjs RUN… [--every UPDATES]
// A row: the targets of a range of updates, and the shares of them that can be parsed and that repeat what the desk did;
// the share of refused actions that they call not optimal, and for which they name what the desk wants; the share of taken
// actions that they call optimal. (If the environment has dead ends, some actions that are taken are not.)
import { join } from "node:path";
import { parseArgs } from "node:util";
import { importLib } from "./build-native.mjs";

const { adviceText, eventText } = await importLib("environments/errands/words");
const { readEpisodeRecords } = await importLib("episodes/records");
const { readSamples } = await importLib("run/samples");

const { values, positionals: runs } = parseArgs({
  allowPositionals: true,
  options: { every: { type: "string", default: "160" } },
});
const every = Number(values.every);

/** [{ update, event, text, parsed }] */
function targetsOf(run) {
  const events = new Map();
  for (const { id, turns } of readEpisodeRecords(join(run, "trajectories.jsonl")))
    events.set(
      id,
      turns.map(({ info }) => info.event),
    );
  const targets = [];
  for (const { update, trajectory, turn, texts, parsed } of readSamples(run)) {
    const event = events.get(trajectory)?.[turn];
    if (event !== undefined && texts.target !== undefined)
      targets.push({ update, event, text: texts.target, parsed: parsed.target });
  }
  return targets;
}

function share(all, holds) {
  return all.length === 0 ? "-" : `${((100 * all.filter(holds).length) / all.length).toFixed(0)} %`;
}

const heads = [
  "run",
  "updates",
  "targets",
  "parsed",
  "repeat the reply",
  "refused",
  "No",
  "name the right thing",
];
console.log([...heads, "taken", "Yes"].join(" | "));
for (const run of runs) {
  const targets = targetsOf(run);
  const last = targets.reduce((most, { update }) => Math.max(most, update), 0);
  for (let first = 0; first <= last; first += every) {
    const all = targets.filter(({ update }) => update >= first && update < first + every);
    const refused = all.filter(({ event }) => event.kind !== "took");
    const taken = all.filter(({ event }) => event.kind === "took");
    console.log(
      [
        ...[run, `${first} to ${Math.min(first + every - 1, last)}`, all.length],
        share(all, ({ parsed }) => parsed?.ok === true),
        share(all, ({ text, event }) => text.includes(eventText(event))),
        ...[refused.length, share(refused, ({ parsed }) => parsed?.yes === false)],
        share(refused, ({ text, event }) => text.includes(adviceText("first", event.thing))),
        ...[taken.length, share(taken, ({ parsed }) => parsed?.yes === true)],
      ].join(" | "),
    );
  }
}
