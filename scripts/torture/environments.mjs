// Environments that throw, hang, lie and answer garbage, and a language service that fails in every
// way. A run is 100 episodes. Each must end, be counted once, with a known outcome and a code if it
// failed; each started episode is closed once and never stepped again; the records can be written
// and read.
import { createHash } from "node:crypto";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { uniform } from "../../dist/base/random.js";
import { chatService, openService } from "../../dist/environments/index.js";
import { readEpisodeRecords, toRecord } from "../../dist/episodes/records.js";
import { transitionsOf } from "../../dist/episodes/trajectory.js";
import { RecordWriter } from "../../dist/files/records.js";
import { collectTrajectories, evaluate, servicePlayer } from "../../dist/index.js";
import { hostileEnvironment } from "./support/hostile-environment.mjs";
import { hostileService } from "./support/hostile-service.mjs";
import { expect, randomOf, within } from "./support/in-process.mjs";
import { inDirectory } from "./support/sandbox.mjs";

export const about = "environments that throw, hang, lie and answer garbage; a failing language service";

const episodes = 100;
const stepTimeout = 40;
const outcomes = [
  "done",
  "turn-limit",
  "truncated",
  "context-limit",
  "malformed",
  "environment-fault",
  "service-fault",
];
const playing = { maxActionTokens: 100, maxPromptTokens: 1_000_000, temperature: 1 };

export async function run({ runs, seed, first = 0, report }) {
  const unhandled = [];
  const listen = (error) => unhandled.push(error?.stack ?? String(error));
  process.on("unhandledRejection", listen);
  try {
    await inDirectory(async (directory) => {
      for (let number = first; number < first + runs; number++) {
        const kind = number % 4 === 3 ? "service" : number % 4 === 2 ? "evaluation" : "environment";
        const began = performance.now();
        let failure;
        let counts = {};
        try {
          counts = await within(60, kind, kinds[kind]({ seed, number, directory }));
        } catch (error) {
          failure = { number, message: `${kind}: ${error?.stack ?? error}` };
        }
        if (unhandled.length > 0)
          failure ??= { number, message: `${kind}: unhandled rejection: ${unhandled.splice(0)[0]}` };
        report({
          runs: 1,
          counts: { episodes, ...counts },
          worst: { "s a run": (performance.now() - began) / 1000 },
          ...(failure && { failure }),
        });
      }
    });
  } finally {
    process.off("unhandledRejection", listen);
  }
}

const kinds = { environment: playHostile, evaluation: evaluateHostile, service: playService };

/** Random choices of a run that depend on a name, not on the order of events. */
function named(seed, number) {
  return (...names) => {
    const digest = createHash("sha256").update(names.join("\n")).digest().readUInt32LE();
    return randomOf(uniform, seed * 1_000_003 + number, digest);
  };
}

function hostile(seed, number) {
  const watch = { started: 0, closed: 0, stepsAfterEnd: 0, overlapping: 0 };
  const random = named(seed, number);
  const environment = hostileEnvironment((task) => random("environment", task), watch);
  const script = (messages) => {
    const { random: next, pick } = random("agent", messages.length, messages[0]?.content.slice(0, 100));
    return next() < 0.1
      ? pick(["Action:", "garbage", "Thought: \ud800", "x".repeat(10_000)])
      : "Thought: I go on.\nAction: go";
  };
  return { environment, watch, model: servicePlayer(openService(script)) };
}

async function playHostile({ seed, number, directory }) {
  const { environment, watch, model } = hostile(seed, number);
  const told = [];
  const trajectories = await collectTrajectories({
    model,
    environment,
    episodes: Array.from({ length: episodes }, (_, id) => ({ id, task: id })),
    seed: number,
    ...{ ...playing, stepTimeout, concurrency: 64 },
    onEpisode: ({ id }) => told.push(id),
  });
  const counts = check(trajectories, told, directory);
  expect(watch.stepsAfterEnd === 0, `${watch.stepsAfterEnd} steps after the end`);
  // Episodes that started late are closed when they have started.
  await new Promise((resolve) => setTimeout(resolve, 100));
  expect(watch.closed >= watch.started, `${watch.started} episodes started, ${watch.closed} closed`);
  return counts;
}

function check(trajectories, told, directory) {
  const ids = trajectories.map(({ id }) => id);
  const all = Array.from({ length: episodes }, (_, id) => id);
  expect(isDeepStrictEqual(ids, all), `episodes ${ids}`);
  expect(
    isDeepStrictEqual(
      [...told].sort((a, b) => a - b),
      all,
    ),
    `onEpisode was called for ${told}`,
  );
  const counts = {};
  for (const { outcome, fault, reward, task, turns } of trajectories) {
    expect(outcomes.includes(outcome), `outcome ${outcome}`);
    expect(
      outcome.endsWith("fault") === (fault !== undefined),
      `outcome ${outcome} with fault ${fault?.code}`,
    );
    expect(
      fault === undefined || (/^ERR_/.test(fault.code) && typeof fault.message === "string"),
      `fault ${fault?.code}`,
    );
    expect(Number.isFinite(reward), `reward ${reward}`);
    expect(typeof task === "string", `task ${task}`);
    for (const turn of turns)
      expect(
        turn.observation.every(({ content }) => typeof content === "string"),
        "a recorded message has no text",
      );
    counts[outcome] = (counts[outcome] ?? 0) + 1;
  }
  trajectories.flatMap(transitionsOf);
  const path = join(directory, "episodes.jsonl");
  const writer = new RecordWriter(path);
  const records = trajectories.map((trajectory) => JSON.parse(JSON.stringify(toRecord(trajectory))));
  for (const trajectory of trajectories) writer.append(toRecord(trajectory));
  writer.close();
  expect(
    isDeepStrictEqual([...readEpisodeRecords(path)], records),
    "the records read differ from those written",
  );
  rmSync(path);
  return counts;
}

async function evaluateHostile({ seed, number, directory }) {
  const { environment, model } = hostile(seed, number);
  const told = [];
  const { trajectories, ...figures } = await evaluate({
    model,
    environment,
    tasks: Array.from({ length: episodes }, (_, task) => task),
    seed: number,
    ...{ ...playing, stepTimeout, concurrency: 64 },
    onEpisode: ({ id }) => told.push(id),
  });
  expect(figures.episodes === episodes, `the evaluation counts ${figures.episodes} episodes`);
  return check(trajectories, told, directory);
}

async function playService({ seed, number, directory }) {
  const random = named(seed, number);
  const server = await hostileService((text, attempt) => random("service", text, attempt));
  try {
    const service = chatService({
      ...{ model: "m", baseURL: server.baseURL, apiKey: "none" },
      ...{ timeout: 150, maxRetries: 1, concurrency: 32 },
    });
    const start = async (task, { signal }) => {
      let turn = 0;
      return {
        observation: { messages: [{ role: "user", content: `task ${task}` }] },
        async step() {
          const said = `line ${++turn} of ${task}`;
          const heard = await service.complete([{ role: "user", content: said }], { signal });
          return {
            observation: [{ role: "user", content: heard }],
            ...{ reward: 0, terminated: turn === 2, truncated: false, info: { said, heard } },
          };
        },
        close: async () => {},
      };
    };
    const environment = {
      ...{
        name: "served",
        actionFormat: "text",
        maxTurns: 2,
        start,
        taskId: String,
        usage: () => service.usage(),
      },
      ...{ tasks: async () => [], reset: start, step: start, close: async () => {} },
    };
    const told = [];
    const trajectories = await collectTrajectories({
      model: servicePlayer(openService(() => "Thought: I go on.\nAction: go")),
      environment,
      episodes: Array.from({ length: episodes }, (_, id) => ({ id, task: id })),
      seed: number,
      ...playing,
      onEpisode: ({ id }) => told.push(id),
    });
    for (const { turns, fault } of trajectories) {
      for (const { info } of turns)
        expect(
          info.heard === undefined || info.heard === `heard ${info.said}` || info.heard === "x",
          `the reply to "${info.said}" is "${info.heard}"`,
        );
      expect(fault === undefined || fault.code === "ERR_SERVICE", `fault ${fault?.code}: ${fault?.message}`);
    }
    return check(trajectories, told, directory);
  } finally {
    await server.close();
  }
}
