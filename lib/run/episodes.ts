/** Episodes as records: what trajectories.jsonl holds, one line an episode, and back. */

import type { Action, Message } from "../environments/contract.ts";
import type { LanguageModel } from "../model.ts";
import type { Outcome, Trajectory } from "../rollout/trajectory.ts";
import type { ConversationJson } from "../tokens/conversation.ts";

export interface EpisodeRecord {
  id: number;
  task: string;
  seed: number;
  outcome: Outcome;
  reward: number;
  fault?: { code: string; message: string };
  turns: {
    /** Length of s in tokens: s is the first so many ids of the conversation. */
    state: number;
    tokens: number[];
    logProbs: number[];
    text: string;
    action?: Action;
    malformed?: string;
    observation: Message[];
    reward: number;
    done: boolean;
    info: Record<string, unknown>;
  }[];
  conversation: ConversationJson;
}

export function toRecord(trajectory: Trajectory): EpisodeRecord {
  const { id, task, seed, outcome, reward, fault } = trajectory;
  return {
    id,
    task,
    seed,
    outcome,
    reward,
    ...(fault === undefined ? {} : { fault }),
    turns: trajectory.turns.map(({ state, logProbs, ...turn }) => ({
      ...turn,
      state: state.length,
      logProbs: Array.from(logProbs),
    })),
    conversation: trajectory.conversation.toJSON(),
  };
}

export function fromRecord(record: EpisodeRecord, model: LanguageModel): Trajectory {
  const conversation = model.restoreConversation(record.conversation);
  return {
    ...record,
    turns: record.turns.map(({ state, logProbs, ...turn }) => ({
      ...turn,
      state: conversation.prefix(state),
      logProbs: Float32Array.from(logProbs),
    })),
    conversation,
  };
}
