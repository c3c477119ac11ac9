/** The output of `nlac train --dry-run`: the resolved recipe, and the memory and time it needs. */

import { existsSync } from "node:fs";
import { counted } from "../base/counted.ts";
import { NlacError, NotHere } from "../base/errors.ts";
import { isObject } from "../base/validation.ts";
import { formatPercent, threeDigits } from "../bench/format.ts";
import { closeEnvironment, tasksOf } from "../contract/checks.ts";
import { alignColumns } from "../display/columns.ts";
import { formatBytes } from "../display/reporter.ts";
import { openEnvironment } from "../environments/registry.ts";
import { gpuReached, links } from "../estimate/devices.ts";
import { candidates, type Estimate, estimate, type Fit } from "../estimate/estimate.ts";
import { type Memory, total } from "../estimate/memory.ts";
import { linkSeconds, type RankPlan, type RankPlans } from "../estimate/ranks.ts";
import { findShape, hasKnownShape } from "../estimate/shape.ts";
import { seconds } from "../estimate/time.ts";
import { parseHubName, readHubConfig } from "../hub/hugging-face.ts";
import { KNOWN_MODELS, shippedModel } from "../hub/resolve-model.ts";
import type { Recipe } from "../recipe/recipe.ts";
import { wrap } from "./wrap.ts";

export interface DryRun {
  recipe: Recipe;
  /** Figures of the environment, or what it lacks here. */
  environment: { trainingTasks: number; turns: number } | { fault: string };
  /** The estimate, or why there is none. */
  estimate: Estimate | { fault: string };
}

/**
 * Resolves and estimates `recipe`. Starts no training and writes no files.
 *
 * @throws NlacError for an environment that cannot be opened unless only something is missing here, such as data;
 *   ERR_MODEL_NOT_FOUND for an unknown name of a model
 */
export async function dryRun(recipe: Recipe): Promise<DryRun> {
  // Another command may make a path, or the model may be on the hub: then only the estimate is missing.
  const { model } = recipe;
  if (typeof model === "string" && !model.includes("/") && !existsSync(model)) findShape(model);
  const environment = await orFault(() => figuresOf(recipe), NotHere);
  const play =
    "fault" in environment ? undefined : { turns: environment.turns, tasks: environment.trainingTasks };
  const estimated = await orFault(async () =>
    estimate(recipe, play, undefined, findShape(await configIfOnHub(recipe.model))),
  );
  return { recipe, environment, estimate: estimated };
}

/** The configuration of a model that would be downloaded; otherwise `model`. */
async function configIfOnHub(model: Recipe["model"]): Promise<Parameters<typeof findShape>[0]> {
  if (typeof model !== "string" || existsSync(model) || hasKnownShape(model)) return model;
  const name = parseHubName(model);
  if (name === undefined || name.file !== undefined) return model;
  const config = await readHubConfig(name, { env: process.env });
  if (!isObject(config)) throw new NlacError("ERR_MODEL_FORMAT", `The config.json of ${model} is no object.`);
  return { config };
}

async function figuresOf({ environment: { name, options } }: Recipe) {
  const environment = await openEnvironment(name, options);
  try {
    return { trainingTasks: (await tasksOf(environment, "train")).length, turns: environment.maxTurns };
  } finally {
    await closeEnvironment(environment);
  }
}

async function orFault<T>(
  open: () => Promise<T>,
  expected: typeof NlacError | typeof NotHere = NlacError,
): Promise<T | { fault: string }> {
  try {
    return await open();
  } catch (error) {
    if (error instanceof expected) return { fault: `${error.code}: ${error.message}` };
    throw error;
  }
}

/** `dry` as text of at most 100 columns. */
export function renderDryRun(dry: DryRun): string {
  const parts = [renderRecipe(dry)];
  if ("fault" in dry.estimate) parts.push(paragraph(`No estimate: ${dry.estimate.fault}`));
  else parts.push(...renderEstimate(dry.recipe, dry.estimate));
  return parts.join("\n\n");
}

// -------------------------------------------------------------------------------------- the recipe

const columns = 100;
const labels = 13;

function renderRecipe({ recipe, environment, estimate }: DryRun): string {
  const { name, description, environment: chosen, warmup } = recipe;
  return [
    paragraph(description === "" ? name : `${name}: ${description}`),
    "",
    labelled("model", modelLine(recipe, estimate)),
    labelled("learner", settings(recipe.learner)),
    labelled("environment", [chosen.name, settings(chosen.options)].filter(Boolean).join(", ")),
    labelled(
      "",
      "fault" in environment
        ? `cannot be opened here: ${environment.fault}`
        : `${counted(environment.trainingTasks, "training task")}, ${counted(environment.turns, "turn")} per episode`,
    ),
    labelled("warmup", warmup.steps === 0 ? "none" : settings(warmup)),
    labelled("algorithm", recipe.algorithm),
    labelled("config", settings(recipe.config)),
    labelled("run", settings(recipe.run)),
  ].join("\n");
}

function modelLine({ model }: Recipe, estimate: DryRun["estimate"]): string {
  const named = typeof model === "string" ? model : "a new model";
  if ("fault" in estimate) return named;
  const { layers, hidden } = estimate.shape;
  const { parameters, activeParameters } = estimate;
  const active = activeParameters < parameters ? ` (${amount(activeParameters)} used by a token)` : "";
  const size = `${named}: ${amount(parameters)} parameters${active}, ${layers} layers of ${hidden}`;
  const here =
    typeof model !== "string" ||
    existsSync(model) ||
    shippedModel(model) !== undefined ||
    KNOWN_MODELS.some((known) => known.name === model);
  if (here) return size;
  return parseHubName(model) === undefined
    ? `${size}; no directory of this name exists yet`
    : `${size}; it is downloaded from the hub unless it is in the cache`;
}

/** `a 1, b 2`. Values too long to print are abbreviated. */
function settings(values: object): string {
  return Object.entries(values)
    .map(([key, value]) => {
      const text = typeof value === "string" ? value : JSON.stringify(value);
      if (text.length <= 40) return `${key} ${text}`;
      if (Array.isArray(value)) return `${key} (${value.length} values)`;
      return typeof value === "string" ? `${key} ${value.slice(0, 39)}…` : `${key} (${settings(value)})`;
    })
    .join(", ");
}

function labelled(label: string, text: string): string {
  return paragraph(label.padEnd(labels) + text, labels);
}

/** `text` as one paragraph, wrapped. */
function paragraph(text: string, indent = 0): string {
  return wrap(text.replaceAll(/\s*\n\s*/g, " "), columns, indent);
}

// ------------------------------------------------------------------------------------ the estimate

function renderEstimate(recipe: Recipe, estimate: Estimate): string[] {
  return [
    renderMemory(candidates(recipe, estimate.fits)[0]!),
    renderDevices(estimate.fits),
    renderRemedies(recipe, estimate),
    ...(estimate.ranks === undefined ? [] : [renderRanks(recipe, estimate.ranks)]),
    renderWork(recipe, estimate),
  ];
}

function renderMemory({ assumed, atLimits }: Fit): string {
  const rows: string[][] = [["memory", "as assumed", "at the limits"]];
  const add = (parts: keyof Omit<Memory, "peak">) => {
    for (const [i, { name, bytes }] of assumed[parts].entries()) {
      // A name may contain a number of tokens that differs between the two columns.
      const other = atLimits[parts][i]!;
      const label = name === other.name ? name : name.replace(/[\d,]+ tokens/, "the largest micro-batch");
      rows.push([`  ${label}`, formatBytes(bytes), formatBytes(other.bytes)]);
    }
  };
  const phase = (parts: "generation" | "training", title: string) => {
    const [now, most] = [total(assumed[parts]), total(atLimits[parts])];
    rows.push([title, formatBytes(now), formatBytes(most)]);
    add(parts);
  };
  rows.push(["throughout", formatBytes(total(assumed.held)), formatBytes(total(atLimits.held))]);
  add("held");
  phase("generation", "in addition, during generation");
  phase("training", "or during training");
  rows.push(["peak", formatBytes(assumed.peak), formatBytes(atLimits.peak)]);
  return alignColumns(rows);
}

function renderDevices(fits: readonly Fit[]): string {
  const warms = fits.some(({ time }) => seconds(time.warmup) > 0);
  const times = ["update", "iteration", "run"];
  const rows = [["device", "has", "as assumed", "at the limits", ...(warms ? ["warm-up"] : []), ...times]];
  for (const { device, assumed, atLimits, time } of fits) {
    rows.push([
      device.name,
      formatBytes(device.memory),
      room(device.memory - assumed.peak),
      room(device.memory - atLimits.peak),
      ...(warms ? [duration(seconds(time.warmup))] : []),
      duration(seconds(time.update)),
      duration(seconds(time.iteration)),
      duration(seconds(time.run)),
    ]);
  }
  return alignColumns(rows);
}

function room(bytes: number): string {
  return bytes >= 0 ? `${formatBytes(bytes)} left` : `${formatBytes(-bytes)} short`;
}

function renderRemedies(recipe: Recipe, { fits, remedies }: Estimate): string {
  const devices = candidates(recipe, fits);
  const fitting = devices.filter(({ device, atLimits }) => atLimits.peak <= device.memory);
  if (fitting.length > 0) return `It fits at the limits on ${listed(fitting)}.`;
  const rows = [["changes that reduce it, cumulative", "as assumed", "at the limits"]];
  for (const { change, assumed, atLimits } of remedies) {
    rows.push([`  --set ${change}`, formatBytes(assumed), formatBytes(atLimits)]);
  }
  const last = remedies.at(-1);
  const then = devices.filter(({ device }) => last !== undefined && last.atLimits <= device.memory);
  const verdict =
    then.length > 0
      ? `It then fits at the limits on ${listed(then)}.`
      : `Even then no device in the table has enough memory: in this recipe, weights, gradients, moments and θ̄ take ${formatBytes(weightBytes(devices[0]!))}.`;
  const lines = remedies.length === 0 ? [] : [alignColumns(rows)];
  return [...lines, paragraph(verdict)].join("\n");
}

function renderRanks({ learner }: Recipe, { device, plans, fewest, fewestAssumed }: RankPlans): string {
  const fits = ({ atLimits }: RankPlan) => atLimits <= device.memory;
  const sent = (ranks: number, bytes: number) =>
    ranks === 1 || bytes === 0 ? "–" : `${formatBytes(bytes)}, ${duration(linkSeconds(ranks, bytes))}`;
  // Layer by layer costs time, so it is shown only where the whole model does not fit.
  const shown = plans.filter((plan, i) =>
    plan.ranks === 1 ? plan.sharding === "none" : !plan.layerwise || !fits(plans[i - 1]!),
  );
  const layerwise = shown.some((plan) => plan.layerwise);
  const titles = ["ranks (GPUs)", "sharding", "as assumed", "at the limits", "sent per step"];
  const rows = [[...titles, ...(layerwise ? ["sent per token"] : [])]];
  for (const plan of shown) {
    rows.push([
      `  ${plan.ranks}`,
      plan.layerwise ? `${plan.sharding}, layerwise` : String(plan.sharding),
      formatBytes(plan.assumed),
      `${formatBytes(plan.atLimits)}${fits(plan) ? "" : " !"}`,
      sent(plan.ranks, plan.sent),
      ...(layerwise ? [sent(plan.ranks, plan.layerwise ? plan.gathered : 0)] : []),
    ]);
  }
  const verdict = [
    ...(fewest?.device === device
      ? []
      : [`None fits at the limits on ${device.name}s of ${formatBytes(device.memory)}.`]),
    ...(fewest?.device === device || fewestAssumed === undefined
      ? []
      : [`As assumed, the fewest are ${fewestAssumed.ranks}, with ${changesOf(fewestAssumed)}.`]),
    ...(fewest === undefined ? [] : [renderFewest(fewest)]),
  ].join(" ");
  const now = `This recipe has learner.sharding ${learner.sharding}${learner.layerwiseGeneration ? ", layerwise" : ""}. "!" does not fit. docs/scaling.md shows how to start ranks.`;
  const { machine, network, gpusPerMachine, reached } = links;
  const meaning = `"layerwise" is learner.layerwiseGeneration=true: generation sends the layers again for each token of all running sequences, and for each 2,048 tokens of prompts. Sharding 3 without it sends as much once after each change of the weights.`;
  const rates = `Times assume ${formatPercent(reached)} of ${formatBytes(machine)}/s between ${gpusPerMachine} GPUs of a machine, and of ${formatBytes(network)}/s between machines.`;
  const notes = [verdict, now, ...(layerwise ? [meaning] : []), rates];
  return [alignColumns(rows), paragraph(notes.filter(Boolean).join(" "))].join("\n");
}

function renderFewest({ device, plan }: NonNullable<RankPlans["fewest"]>): string {
  const memory = formatBytes(device.memory);
  return plan.ranks === 1
    ? `One ${device.name} of ${memory} has enough memory at the limits; more ranks are faster.`
    : `The fewest ${device.name}s of ${memory} that fit at the limits: ${plan.ranks}, with ${changesOf(plan)}.`;
}

function changesOf({ sharding, layerwise }: RankPlan): string {
  const changes = [
    `learner.sharding=${sharding}`,
    ...(layerwise ? ["learner.layerwiseGeneration=true"] : []),
  ];
  return changes.map((change) => `--set ${change}`).join(" ");
}

function listed(fits: readonly Fit[]): string {
  return fits.map(({ device }) => device.name).join(", ");
}

function weightBytes({ assumed }: Fit): number {
  return total(assumed.held.filter(({ name }) => name !== "keys and values"));
}

function renderWork(recipe: Recipe, { work, fits }: Estimate): string {
  const { lengths, limits } = work;
  const { time } = candidates(recipe, fits)[0]!;
  const spent = (key: "update" | "run") => {
    const { generated, read, flops } = time[key];
    return `${amount(generated)} tokens generated, ${amount(read)} read, ${flops.toExponential(1)} floating-point operations`;
  };
  const { flops, bandwidth } = gpuReached;
  const cores = fits
    .flatMap(({ device }) => device.cores ?? [])
    .map((of) => ` CPU times assume the cores of ${of}.`);
  const [episodes, updates] = [work.iterations * work.episodes, work.iterations * work.updates];
  return [
    labelled("an update", `${spent("update")}; ${counted(work.steps, "optimizer step")}`),
    labelled(
      "the run",
      `${counted(episodes, "episode", amount(episodes))}, ${counted(updates, "update", amount(updates))}; ${spent("run")}`,
    ),
    labelled(
      "assumed",
      `tokens: opening ${lengths.opening}, action ${lengths.action}, observation ${lengths.observation}, critique ${lengths.critique}, request ${lengths.request}${lengths.thought > 0 ? ` (a thought is ${lengths.thought} of an action or critique)` : ""}; ${counted(lengths.turns, "turn")} per episode. The limits: prompt ${limits.prompt}, action ${limits.action}, critique ${limits.critique}.`,
    ),
    labelled(
      "",
      `Times are for one device with no other load.${cores.join("")} GPU times assume ${formatPercent(flops)} of the peak operations and ${formatPercent(bandwidth)} of the memory bandwidth; no step of a large model has been timed on one.`,
    ),
  ].join("\n");
}

const units = [
  [1e12, " trillion"],
  [1e9, " billion"],
  [1e6, " million"],
] as const;

/** 7615616512 → "7.62 billion". */
function amount(number: number): string {
  const unit = units.find(([size]) => number >= size);
  return unit === undefined
    ? Math.round(number).toLocaleString("en")
    : `${threeDigits(number / unit[0])}${unit[1]}`;
}

const year = 365.25 * 86_400;
const spans = [
  [year, "years"],
  [2 * 86_400, "days"],
  [2 * 3600, "h"],
  [120, "min"],
] as const;
const lengthOf = { years: year, days: 86_400, h: 3600, min: 60 };

/** Two significant digits: an estimate is no more precise. */
function duration(time: number): string {
  if (time === 0) return "–";
  const span = spans.find(([least]) => time >= least);
  const [value, unit] = span === undefined ? [time, "s"] : [time / lengthOf[span[1]], span[1]];
  return `${value >= 10 ? Math.round(value).toLocaleString("en") : value.toPrecision(2)} ${unit}`;
}
