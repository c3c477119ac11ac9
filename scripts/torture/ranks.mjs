// SIGKILL of a random rank during trainings on 2 to 4 ranks, each an `nlac train` process. A run is
// a training that is killed up to three times, at random moments, and continued with the command
// that started it. Every other rank must end with ERR_PEER within seconds. The training must then
// continue from the checkpoint that `latest` named, and end as an uncut training on as many ranks:
// the same weights, episodes and metrics. No episode that was on disk may be lost or changed.
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { uniform } from "../../dist/base/random.js";
import { freePort, startRanks } from "./support/rank-processes.mjs";
import { recipe } from "./support/recipes.mjs";
import { difference, fingerprint, inDirectory } from "./support/sandbox.mjs";

export const about = "SIGKILL of a random rank during trainings on 2 to 4 ranks";

const kinds = [
  { name: "nlac", ranks: 2, sharding: 1 },
  { name: "ppo", ranks: 3, sharding: 2 },
  { name: "nlac", ranks: 2, sharding: 3 },
  { name: "lora", ranks: 4, sharding: 1 },
  { name: "rft", ranks: 2, sharding: "none" },
  { name: "nlac", ranks: 4, sharding: 2 },
  { name: "sac", ranks: 2, sharding: 2 },
  { name: "ppo", ranks: 3, sharding: 3, layerwise: true },
];
const kills = 3;
/** Share of the kills that happen before the ranks have connected. */
const early = 0.1;
/** Seconds until the other ranks must have ended. */
const longest = 20;
/** NLAC_PEER_TIMEOUT: the wait for a rank that has not connected yet. */
const connectSeconds = 30;

export async function run({ runs, seed, first = 0, report }) {
  await inDirectory(async (directory) => {
    const uncut = uncutTrainings(directory);
    for (let number = first; number < first + runs; number++) {
      const kind = kinds[number % kinds.length];
      const { counts, worst, fault } = await cutTraining(directory, kind, await uncut(kind), (draw) =>
        uniform(seed, number, draw),
      );
      const message = `${kind.name}, ${kind.ranks} ranks, sharding ${kind.sharding}: ${fault}`;
      report({ runs: 1, counts, worst, ...(fault === undefined ? {} : { failure: { number, message } }) });
    }
  });
}

/** The command line of a training in `path`. Its recipe is a file beside it. */
function commandOf(path, { name, sharding, layerwise = false }) {
  const file = join(dirname(path), `${name}.mjs`);
  writeFileSync(file, `export default ${JSON.stringify(recipe(name))};\n`);
  const changes = [`learner.sharding=${sharding}`, `learner.layerwiseGeneration=${layerwise}`];
  return ["train", file, ...changes.flatMap((change) => ["--set", change]), "--run", path];
}

/** Starts the ranks of a training. A launcher that repeats its command uses the same port again. */
function start(path, kind, port) {
  return startRanks(kind.ranks, port, commandOf(path, kind), { NLAC_PEER_TIMEOUT: String(connectSeconds) });
}

/** Uncut trainings, one of each kind: their fingerprints, and the seconds of their two parts. */
function uncutTrainings(directory) {
  const made = new Map();
  return async (kind) => {
    const key = JSON.stringify(kind);
    if (made.has(key)) return made.get(key);
    const path = join(directory, "uncut", `${made.size}`);
    mkdirSync(dirname(path), { recursive: true });
    const began = performance.now();
    const ranks = start(path, kind, await freePort());
    await Promise.race([ranks.connected, ranks.ended]);
    const connected = performance.now();
    const endings = await ranks.ended;
    const failed = endings.find(({ code }) => code !== 0);
    if (failed !== undefined) throw new Error(`an uncut training failed: ${told(failed)}`);
    const seconds = { start: (connected - began) / 1000, train: (performance.now() - connected) / 1000 };
    const uncut = { ...seconds, fingerprint: fingerprint(path) };
    made.set(key, uncut);
    rmSync(path, { recursive: true });
    return uncut;
  };
}

async function cutTraining(directory, kind, uncut, random) {
  const path = join(directory, "run");
  const port = await freePort();
  const counts = { kills: 0, "of rank 0": 0, "before they connected": 0, "ends before the kill": 0 };
  const worst = {};
  const saw = (name, value) => {
    worst[name] = Math.max(worst[name] ?? 0, value);
  };
  const onDisk = [];
  let fault;
  for (let time = 0; time < kills && fault === undefined; time++) {
    const draw = (i) => random(10 * time + i);
    const number = newestOf(path);
    const ranks = start(path, kind, port);
    const isEarly = draw(0) < early;
    if (!isEarly) await Promise.race([ranks.connected, ranks.ended]);
    await ranks.wait((isEarly ? uncut.start : uncut.train) * draw(1));
    const victim = Math.floor(draw(2) * kind.ranks);
    const wasConnected = ranks.isConnected();
    const killed = performance.now();
    const hit = ranks.kill(victim);
    const endings = await ranks.ended;
    const others = endings.filter((_, rank) => rank !== victim);
    fault = resumedFrom(number, endings[0]);
    if (existsSync(join(path, "trajectories.jsonl"))) onDisk.push(episodesOf(path));
    if (!hit || others.some(({ code }) => code === 0)) {
      // The training ended before the kill, or before all ranks had noticed it.
      counts["ends before the kill"]++;
      if (hit) fault ??= finished(path, uncut);
      else fault ??= endings.map((one) => (one.code === 0 ? undefined : told(one))).find(Boolean);
      break;
    }
    counts.kills++;
    if (victim === 0) counts["of rank 0"]++;
    if (!wasConnected) counts["before they connected"]++;
    for (const one of others) {
      const seconds = (one.at - killed) / 1000;
      saw(wasConnected ? "s until all ended" : "s until all ended, before they connected", seconds);
      if (!one.errors.includes("ERR_PEER")) fault ??= `rank ${one.rank} ended without ERR_PEER: ${told(one)}`;
      // A rank that has no connection yet waits for as long as it was told to.
      if (seconds > longest + (wasConnected ? 0 : connectSeconds + uncut.start)) {
        const when = wasConnected ? "" : ", before they connected";
        fault ??= `rank ${one.rank} ended ${seconds.toFixed(1)} s after the kill of rank ${victim}${when}`;
      }
    }
  }
  if (fault === undefined) {
    const number = newestOf(path);
    const began = performance.now();
    const endings = await start(path, kind, port).ended;
    saw("s to resume and end", (performance.now() - began) / 1000);
    const failed = endings.find(({ code }) => code !== 0);
    fault = failed && `it cannot be continued: ${told(failed)}`;
    fault ??= resumedFrom(number, endings[0]) ?? finished(path, uncut);
  }
  if (fault === undefined) {
    const all = episodesOf(path);
    if (onDisk.some((some) => !all.startsWith(some)))
      fault = "episodes that were on disk are lost or changed";
  }
  for (const name of readdirSync(directory).filter((one) => one.startsWith(basename(path))))
    rmSync(join(directory, name), { recursive: true });
  return { counts, worst, fault };
}

/**
 * Number of the run's newest checkpoint; undefined if it has none. A kill may have prevented that the
 * file `latest` names it.
 */
function newestOf(path) {
  const root = join(path, "checkpoints");
  const names = existsSync(root) ? readdirSync(root).filter((name) => /^\d{6,}$/.test(name)) : [];
  return names.sort().at(-1);
}

/** A fault if rank 0 opened its learner, but not from checkpoint `number`. */
function resumedFrom(number, { errors }) {
  const opening = errors.split("\n").find((line) => /(checkpoint \d+: resuming|loading) /.test(line));
  if (number === undefined || opening === undefined) return undefined;
  const from = /checkpoint (\d+): resuming/.exec(opening)?.[1];
  if (from !== undefined && Number(from) === Number(number)) return undefined;
  return `it did not continue from checkpoint ${number}: ${opening}`;
}

/** The complete records of the run's episodes. */
function episodesOf(path) {
  const text = readFileSync(join(path, "trajectories.jsonl"), "utf8");
  return text.slice(0, text.lastIndexOf("\n") + 1);
}

function finished(path, uncut) {
  if (newestOf(path) === undefined) return "the finished run has no checkpoint";
  const differs = difference(uncut.fingerprint, fingerprint(path));
  return differs && `it ends differently: ${differs}`;
}

function told({ rank, code, signal, errors }) {
  return `rank ${rank}: code ${code}, signal ${signal}, ${errors.trim().split("\n").slice(-3).join(" / ")}`;
}
