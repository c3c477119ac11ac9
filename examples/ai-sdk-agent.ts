/**
 * An agent of Vercel's ai SDK that is trainable by another base URL, a header and a reward. It
 * manages a shop's shelf: it looks up the stock, orders what is low, and reports. The model's chat
 * template must support tools, as Qwen's and Llama's do.
 *
 *   npm install ai @ai-sdk/openai-compatible tsx zod
 *   nlac serve Qwen/Qwen2.5-0.5B-Instruct --record episodes.jsonl
 *   npx tsx examples/ai-sdk-agent.ts http://127.0.0.1:8000/v1 Qwen2.5-0.5B-Instruct 16
 *   nlac train examples/ai-sdk-agent.recipe.ts
 */

import { randomUUID } from "node:crypto";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, tool } from "ai";
import { z } from "zod";

/** Plays one episode and sends its reward: 1 if exactly the low item was ordered, else 0. */
export async function keepShelf(baseURL: string, model: string): Promise<number> {
  // A name is used once: an episode that has its reward accepts no more requests.
  const episode = `shelf-${randomUUID()}`;
  const apiKey = process.env.NLAC_SERVE_TOKEN ?? "none";
  const headers = { "x-episode-id": episode };
  const provider = createOpenAICompatible({ name: "nlac", baseURL, apiKey, headers });
  const shelf: Record<string, number> = { tea: 9, rice: Math.floor(Math.random() * 3), salt: 7 };
  const ordered: string[] = [];
  const item = z.object({ item: z.string() });
  await generateText({
    model: provider.chatModel(model),
    prompt: `Order what we have fewer than 3 of: ${Object.keys(shelf).join(", ")}. Then say what you ordered.`,
    tools: {
      count: tool({
        description: "How many of an item are on the shelf.",
        inputSchema: item,
        execute: async ({ item }) => shelf[item] ?? `There is no ${item}.`,
      }),
      order: tool({
        description: "Orders an item.",
        inputSchema: item,
        execute: async ({ item }) => {
          ordered.push(item);
          return "Ordered.";
        },
      }),
    },
    stopWhen: stepCountIs(8),
    maxOutputTokens: 96,
  });
  const reward = ordered.join() === "rice" ? 1 : 0;
  const response = await fetch(`${baseURL}/episodes/${episode}/reward`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${apiKey}` },
    body: JSON.stringify({ reward }),
  });
  if (!response.ok) throw new Error(`The reward was refused: ${await response.text()}`);
  return reward;
}

const [baseURL, model, episodes = "8"] = process.argv.slice(2);
if (import.meta.filename === process.argv[1] && baseURL !== undefined && model !== undefined)
  for (let i = 0; i < Number(episodes); i++)
    console.log(`episode ${i}: reward ${await keepShelf(baseURL, model)}`);
