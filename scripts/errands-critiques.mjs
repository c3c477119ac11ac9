#!/usr/bin/env node
// What NLAC's critic says of actions on Errands, by whether they are right. Reads the recorded samples of runs with the
// default kinds of errands.
//   node scripts/errands-critiques.mjs RUN…
// A row: the attempts of one kind in errands that can still be done. "right": what the errand wants; "dead end": what the
// desk accepts by mistake; "refused": anything else. Then the shares of critiques that approve, that name the right
// thing, that name another, and that say only what not to bring; and the share of refinements that are right, of all
// attempts and of those after "not".
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { importLib } from "./build-native.mjs";

const { makeErrands, isDeadEnd, wanted } = await importLib("environments/errands/world");
const { adviceText, phrases } = await importLib("environments/errands/words");
const { readEpisodeRecords } = await importLib("episodes/records");
const { parseAction } = await importLib("prompts/policy");
const { readSamples } = await importLib("run/samples");

const kinds = ["right", "dead end", "refused"];
const verdicts = ["approves", "right thing", "other thing", "not"];

function verdictOf(critique, right) {
  if (critique.includes(adviceText("first", right))) return "right thing";
  if (critique.includes(phrases.first)) return "other thing";
  if (critique.includes(phrases.not)) return "not";
  return critique.trimEnd().endsWith("Yes") ? "approves" : undefined;
}

/** [{ kind, verdict, refined }], refined: whether the refinement is right. */
function attemptsOf(run) {
  const { options } = JSON.parse(readFileSync(join(run, "run.json"), "utf8")).recipe.environment;
  const { seed = 0, chain = 4, deadEnds = 0 } = options;
  const errands = new Map(
    makeErrands(seed, { kinds: options.kinds ?? 8, chain, deadEnds }).map((errand) => [errand.kind, errand]),
  );
  const episodes = new Map();
  for (const record of readEpisodeRecords(join(run, "trajectories.jsonl"))) episodes.set(record.id, record);
  const attempts = [];
  for (const { trajectory, turn, texts } of readSamples(run)) {
    const episode = episodes.get(trajectory);
    const errand = errands.get(episode?.task);
    const [attempt, refinement] = [texts.attempt, texts.refinement].map((text) =>
      parseAction(text ?? "", "text"),
    );
    if (errand === undefined || !attempt.ok || texts.critique === undefined) continue;
    const brought = episode.turns
      .slice(0, turn)
      .flatMap(({ info }) => (info.event?.kind === "took" ? [info.event.thing] : []));
    if (brought.some((thing, i) => thing !== errand.chain[i])) continue; // lost
    const [right, thing] = [wanted(errand, { brought }), attempt.action.text];
    const kind = thing === right ? "right" : isDeadEnd(errand, { brought }, thing) ? "dead end" : "refused";
    const refined = refinement.ok && refinement.action.text === right;
    attempts.push({ kind, verdict: verdictOf(texts.critique, right), refined });
  }
  return attempts;
}

const percent = (part, all) =>
  all.length === 0 ? "-" : `${((100 * part.length) / all.length).toFixed(0)} %`;

console.log(["run", "attempt", "number", ...verdicts, "refined right", "after not"].join(" | "));
for (const run of process.argv.slice(2)) {
  const attempts = attemptsOf(run);
  for (const kind of kinds) {
    const all = attempts.filter((attempt) => attempt.kind === kind);
    const by = (verdict) => all.filter((attempt) => attempt.verdict === verdict);
    const right = (some) =>
      percent(
        some.filter(({ refined }) => refined),
        some,
      );
    const shares = verdicts.map((verdict) => percent(by(verdict), all));
    console.log([run, kind, all.length, ...shares, right(all), right(by("not"))].join(" | "));
  }
}
