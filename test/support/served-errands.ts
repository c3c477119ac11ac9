/**
 * Errands of the shipped model that is served and trained: a recipe of small updates, and an agent.
 */

import type OpenAI from "openai";
import { errands } from "../../lib/environments/errands/index.ts";
import type { RecipeInput } from "../../lib/recipe/recipe.ts";

export function servedErrands(changes: object = {}): RecipeInput {
  return {
    name: "served-errands",
    model: "errands-base",
    learner: { dtype: "float32" },
    environment: { name: "errands" },
    run: { checkpointSeconds: 0 },
    config: {
      ...{ episodesPerIteration: 2, updatesPerIteration: 2, batchSize: 2, targetRate: 0.02 },
      ...{ criticLearningRate: 3e-4, policyLearningRate: 3e-4, rehearsal: 2 },
      ...{ maxPromptTokens: 256, maxActionTokens: 8, maxCriticTokens: 16 },
      ...changes,
    },
  };
}

const office = errands();

/** The form in which the model was taught to answer. */
const form = [
  "Write every turn in exactly this form and add nothing after it:",
  "",
  "Thought:",
  "<One line of reasoning that leads to what you do next.>",
  "Action:",
  "<What you say or do, on one line.>",
].join("\n");

/** Runs one errand of this process and posts its reward: 1 if it was done in time, else 0. */
export async function runErrand(
  client: OpenAI,
  model: string,
  name: string,
  seed: number,
  headers: Record<string, string> = {},
): Promise<number> {
  const tasks = await office.tasks("train");
  const errand = await office.start(tasks[seed % tasks.length]!, { seed });
  const [system, desk] = errand.observation.messages;
  const messages: OpenAI.ChatCompletionMessageParam[] = [
    { role: "system", content: `${system!.content}\n\n${form}` },
    { role: "user", content: desk!.content },
  ];
  let reward = 0;
  let last = "";
  for (let move = 0; move < office.maxTurns; move++) {
    const answer = await client.chat.completions.create(
      { model, messages, max_tokens: 8, temperature: 1 },
      { headers: { "x-episode-id": name, ...headers } },
    );
    const content = answer.choices[0]!.message.content ?? "";
    const text = /^Thought:\n.*\nAction:\n(.+)$/.exec(content)?.[1];
    if (text === undefined) break;
    const { observation, terminated, ...step } = await errand.step({ text });
    last = observation[0]!.content;
    reward = step.reward;
    if (terminated) break;
    messages.push({ role: "assistant", content }, { role: "user", content: last });
  }
  await client.post(`/episodes/${name}/reward`, {
    body: { reward, messages: last === "" ? [] : [{ role: "user", content: last }] },
  });
  return reward;
}
