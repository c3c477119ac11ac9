/** A scripted model that replies by role, and what NLAC's roles need: transitions and a writer. */

import type { Environment } from "../../lib/contract/environment.ts";
import { type Transition, transitionsOf } from "../../lib/episodes/trajectory.ts";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { type RolesConfig, RoleWriter, rolesConfig } from "../../lib/roles/role-writer.ts";
import { type Errand, errandEnvironment } from "./errand.ts";
import { ScriptedModel } from "./scripted-model.ts";

export const act = (word: string) => `Thought:\nhm\nAction:\n${word}`;
export const critique = "Future:\nforeseen\nOptimality:\nNo, bring the key.";
export const target = "Future:\njoined\nOptimality:\nNo, bring what was asked for.";

/** The role that a prompt addresses, by the last request in it. */
export function roleOf(prompt: string): string {
  const last = prompt.slice(prompt.lastIndexOf("<|im_start|>user"));
  if (last.includes("corrected_think")) return "correction";
  if (last.includes("revised action") || last.includes("better solution")) return "refiner";
  if (last.includes("judge your latest action") || last.includes("was graded")) return "backup";
  if (last.includes("Starting from this point")) return "future";
  if (last.includes("Judge your last action") || last.includes("Check the solution")) return "critic";
  if (last.includes("Picture what follows")) return "successor";
  if (last.includes("Weigh them together")) return "evaluator";
  return "policy";
}

/** A model with a reply for each role; `replies` replaces some of them. */
export function scriptedRoles(replies: Partial<Record<string, string>> = {}): ScriptedModel {
  const all: Partial<Record<string, string>> = {
    policy: act("soap"),
    refiner: act("key"),
    backup: target,
    critic: critique,
    evaluator: "Optimality:\nNo, bring the key.",
    ...replies,
  };
  return new ScriptedModel((prompt) => all[roleOf(prompt)] ?? `a ${roleOf(prompt)} text`);
}

/** The calls of a model whose prompts address `role`. */
export function callsOf(model: ScriptedModel, role: string): ScriptedModel["calls"] {
  return model.calls.filter(({ prompt }) => roleOf(prompt) === role);
}

/** The transitions of one episode; the model's calls are then forgotten. */
export async function transitionsFrom(
  model: ScriptedModel,
  environment: Environment<Errand>,
): Promise<Transition[]> {
  const [trajectory] = await collectTrajectories({
    ...{ model, environment, episodes: [{ id: 0, task: { word: "key" } }], seed: 0, temperature: 1 },
    ...{ maxActionTokens: 10_000, maxPromptTokens: 50_000 },
  });
  model.calls.length = 0;
  return transitionsOf(trajectory!);
}

export function roleWriter(
  model: ScriptedModel,
  config: Partial<RolesConfig> = {},
  environment: Environment<Errand> = errandEnvironment(),
  update = 0,
): RoleWriter {
  const limits = { maxPromptTokens: 50_000, maxActionTokens: 100, maxCriticTokens: 100 };
  const { seed = 0, ...roles } = config;
  const full = { ...rolesConfig.parse({ ...limits, ...roles }), seed };
  return new RoleWriter(model, environment, full, update, new AbortController().signal);
}
