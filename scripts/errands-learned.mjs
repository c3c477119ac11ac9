#!/usr/bin/env node
// What NLAC has learned on Errands without dead ends: whether attempts, critiques and refinements know the thing that
// the desk wants next, by whether its last reply named it. Reads the recorded samples of runs.
//   node scripts/errands-learned.mjs RUN… [--every UPDATES]
// A row: the samples of a range of updates, and how many attempts are right, how many critiques name the right thing or
// approve of it, and how many refinements are right.
import { join } from "node:path";
import { parseArgs } from "node:util";
import { importLib } from "./build-native.mjs";

const { adviceText } = await importLib("environments/errands/words");
const { readEpisodeRecords } = await importLib("episodes/records");
const { parseAction } = await importLib("prompts/policy");
const { readSamples } = await importLib("run/samples");

const { values, positionals: runs } = parseArgs({
  allowPositionals: true,
  options: { every: { type: "string", default: "32" } },
});
const every = Number(values.every);

/** [{ update, isNamed, attempt, critique, refinement }]: whether each of the three is right. */
function samplesOf(run) {
  const episodes = new Map();
  for (const record of readEpisodeRecords(join(run, "trajectories.jsonl"))) episodes.set(record.id, record);
  const samples = [];
  for (const { update, trajectory, turn, texts, parsed } of readSamples(run)) {
    const { turns, privileged } = episodes.get(trajectory);
    const events = turns.slice(0, turn).map(({ info }) => info.event);
    const taken = events.filter((event) => event?.kind === "took").length;
    const right = privileged.secret.split(", ")[taken];
    if (right === undefined || texts.critique === undefined) continue;
    const isRight = (text = "") => {
      const action = parseAction(text, "text");
      return action.ok && action.action.text === right;
    };
    const attempt = isRight(texts.attempt);
    const names = texts.critique.includes(adviceText("first", right));
    samples.push({
      ...{ update, isNamed: events.at(-1)?.kind === "wants", attempt },
      ...{ critique: names || (attempt && parsed.critique?.yes === true) },
      refinement: isRight(texts.refinement),
    });
  }
  return samples;
}

console.log("run | updates | the desk has | samples | attempts | critiques | refinements");
for (const run of runs) {
  const samples = samplesOf(run);
  const last = samples.reduce((most, { update }) => Math.max(most, update), 0);
  for (let first = 0; first <= last; first += every)
    for (const isNamed of [true, false]) {
      const all = samples.filter(
        (sample) => sample.update >= first && sample.update < first + every && sample.isNamed === isNamed,
      );
      const counts = ["attempt", "critique", "refinement"].map(
        (part) => all.filter((one) => one[part]).length,
      );
      const range = `${first} to ${Math.min(first + every - 1, last)}`;
      console.log([run, range, isNamed ? "named it" : "not named it", all.length, ...counts].join(" | "));
    }
}
