#!/usr/bin/env node
// Measures the accuracy of the recorded oracle of Twenty Questions on held-out questions and on the
// package's table, and how often the scripted player finds a word with it
// (docs/environments/twenty-questions.md). Usage: NLAC_DATA=… node scripts/recorded-oracle.mjs
import { join } from "node:path";
import { importLib } from "./build-native.mjs";

const { readGames, RecordedAnswers, recordedOracle } = await importLib(
  "environments/twenty-questions/recorded",
);
const { Names } = await importLib("environments/twenty-questions/names");
const { attributes } = await importLib("environments/twenty-questions/attributes");
const { byName, table } = await importLib("environments/twenty-questions/table");
const { scriptedGuesser, twentyQuestions } = await importLib("environments/twenty-questions/index");
const { uniform, streams } = await importLib("base/random");
const { bootstrap } = await importLib("statistics/resampling");

const [gpt4, gpt35] = ["selfplay_gpt4.json", "selfplay_gpt35.json"].map((name) =>
  readGames(join(process.env.NLAC_DATA ?? "", "dialogue", name)),
);
const words = [...gpt4.keys()].map((name) => ({ name, aliases: [] }));
const names = new Names(words);

/** Splits off a fifth of each object's questions. */
function heldOut(games) {
  let turn = 0;
  const parts = { rest: new Map(), held: new Map() };
  for (const [object, turns] of games) {
    const held = turns.map(() => uniform(0, streams.split, turn++) < 0.2);
    parts.rest.set(
      object,
      turns.filter((_, i) => !held[i]),
    );
    parts.held.set(
      object,
      turns.filter((_, i) => held[i]),
    );
  }
  return parts;
}

/**
 * Counts per object: questions, answered, answered correctly, answered where no is correct, and
 * answered with yes where yes is correct.
 */
async function ask(known, games) {
  const oracle = recordedOracle(new RecordedAnswers(known), words, names);
  return Promise.all(
    [...games].map(async ([object, turns]) => {
      const counts = [0, 0, 0, 0, 0];
      for (const [question, yes] of turns) {
        const { verdict } = await oracle.answer(object, question);
        counts[0]++;
        if (verdict !== "yes" && verdict !== "no") continue;
        counts[1]++;
        if ((verdict === "yes") === yes) counts[2]++;
        if (!yes) counts[3]++;
        else if (verdict === "yes") counts[4]++;
      }
      return counts;
    }),
  );
}

const figures = ["told", "right", "always no", "gain", "yes right", "no right"];
const [of4, of35] = [heldOut(gpt4), heldOut(gpt35)];
for (const [label, known, games] of [
  ["GPT-3.5's questions from GPT-4's games", [gpt4], gpt35],
  ["GPT-4's questions from GPT-3.5's games", [gpt35], gpt4],
  ["a fifth of GPT-4's questions from all else", [of4.rest, gpt35], of4.held],
  ["a fifth of GPT-3.5's questions from all else", [gpt4, of35.rest], of35.held],
]) {
  const results = bootstrap(
    [await ask(known, games)],
    ([objects]) => {
      const [all, told, right, no, saidYes] = [0, 1, 2, 3, 4].map((k) =>
        objects.reduce((sum, counts) => sum + counts[k], 0),
      );
      const [yesRight, noRight] = [saidYes / (told - no), (right - saidYes) / no];
      return [told / all, right / told, no / told, (right - no) / told, yesRight, noRight];
    },
    { draws: 500 },
  );
  console.log(label);
  for (const [i, { estimate, low, high }] of results.entries()) {
    console.log(`  ${figures[i].padEnd(10)} ${estimate.toFixed(3)} [${low.toFixed(3)}, ${high.toFixed(3)}]`);
  }
}

const oracle = recordedOracle(new RecordedAnswers([gpt4, gpt35]), words, names);
const common = table.filter(({ name }) => gpt4.has(name));
const counts = { asked: 0, told: 0, right: 0, no: 0, affirmed: 0 };
for (const { name, answers } of common) {
  for (const [attribute, { question }] of Object.entries(attributes)) {
    const truth = answers[attribute];
    if (truth === "unknown") continue;
    counts.asked++;
    const { verdict } = await oracle.answer(name, question);
    if (verdict !== "yes" && verdict !== "no") continue;
    counts.told++;
    if (verdict === truth) counts.right++;
    if (truth === "no") counts.no++;
    else if (verdict === "yes") counts.affirmed++;
  }
}
const share = (part, all) => (part / all).toFixed(3);
const { asked, told, right, no, affirmed } = counts;
console.log(`the table's questions about ${common.length} words from all games`);
console.log(`  told ${share(told, asked)}, right ${share(right, told)}, always no ${share(no, told)}`);
console.log(`  affirmed ${share(affirmed, told - no)} of what is true`);

const environment = twentyQuestions({ words: "things", oracle: "recorded" });
const tasks = [...(await environment.tasks("train")), ...(await environment.tasks("test"))];
let games = 0;
let wins = 0;
for (const task of tasks.filter(({ word }) => byName.has(word))) {
  const episode = await environment.start(task, { seed: 0 });
  const player = scriptedGuesser();
  const history = [];
  while (!history.at(-1)?.result.terminated) {
    const action = player({ observation: episode.observation, history });
    history.push({ action, result: await episode.step(action) });
  }
  games++;
  if (history.at(-1).result.info.success) wins++;
}
console.log(`the scripted player finds ${wins} of ${games} words`);
