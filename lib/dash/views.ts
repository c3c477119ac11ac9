/** Records as the page shows them: an episode, a sample with its figures per token. */

import type { EpisodeRecord } from "../episodes/records.ts";
import { isFaulty, succeeded } from "../episodes/trajectory.ts";
import { halvesFromBase64 } from "../files/half-floats.ts";
import { contextOf, type SampleRecord, stateMessages, type TokenRecord } from "../run/samples.ts";
import type { Best, EpisodeView, SampleView, TokenView } from "./types.ts";

export function episodeView(record: EpisodeRecord, update: number, isServed: boolean): EpisodeView {
  const { id, task, seed, outcome, reward, fault, opening = [], group, parent, branch } = record;
  return {
    ...{ id, task, outcome, reward, update, ...(fault && { fault }) },
    ...{ ...(isServed ? {} : { seed }), isHeldOut: record.split === "test" },
    ...{ ...(group && { group }), ...(parent && { parent }), ...(branch && { branch }) },
    success: isFaulty(record) ? -1 : Number(succeeded(record)),
    opening: opening.map(({ role, content }) => ({ role, content })),
    turns: record.turns.map(({ text, action, malformed, observation, reward, info }) => ({
      ...{ text, reward, info, ...(malformed === undefined ? {} : { malformed }) },
      ...(action?.thought ? { thought: action.thought } : {}),
      ...(action?.tool ? { tool: action.tool } : action === undefined ? {} : { says: action.text }),
      observation: observation.map(({ role, content }) => ({ role, content })),
    })),
  };
}

export function sampleView(
  sample: SampleRecord,
  episode: EpisodeRecord | undefined,
  success: boolean | null,
): SampleView {
  const { update, trajectory, turn = null, texts, facts, parsed = {}, tokens = {} } = sample;
  const context = episode === undefined ? {} : contextOf(episode, turn ?? undefined);
  // Records of earlier versions have the state as one text.
  const state =
    texts.state === undefined && episode !== undefined
      ? stateMessages(episode, turn ?? 0)
      : [{ role: "state", content: texts.state ?? "" }];
  return {
    ...{ update, trajectory, turn, facts, parsed, state, success },
    texts: { ...context, ...texts },
    tokens: Object.fromEntries(Object.entries(tokens).map(([role, record]) => [role, tokenView(record)])),
  };
}

export function tokenView({ pieces, l1, online, target, nll, best }: TokenRecord): TokenView {
  const figures = { l1, online, target, nll };
  const decoded = Object.entries(figures).flatMap(([name, text]) =>
    text === undefined ? [] : [[name, halvesFromBase64(text).map(short)]],
  );
  if (best === undefined) return { pieces, ...Object.fromEntries(decoded) };
  const listOf = ({ ids, logProbs }: { ids: number[]; logProbs: string }): Best[][] => {
    const values = halvesFromBase64(logProbs);
    return pieces.map((_, i) =>
      Array.from({ length: best.count }, (_, k) => {
        const at = i * best.count + k;
        return { text: best.words[String(ids[at])] ?? "", logProb: short(values[at]!) ?? -65_504 };
      }),
    );
  };
  return {
    pieces,
    ...Object.fromEntries(decoded),
    best: { online: listOf(best.online), target: listOf(best.target) },
  };
}

/** Four digits, all that a float16 has; null if it is not finite. */
function short(value: number): number | null {
  return Number.isFinite(value) ? Number(value.toPrecision(4)) : null;
}
