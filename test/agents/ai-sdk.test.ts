/**
 * An unmodified agent of the ai SDK, with tools and streaming, trains the model behind its base
 * URL.
 */

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { stepCountIs, streamText, tool } from "ai";
import { expect, it } from "vitest";
import { z } from "zod";
import { serveAndTrain } from "../../lib/agents/serve-and-train.ts";
import { readEpisodeRecords } from "../../lib/episodes/records.ts";
import { callingTokenizerParts } from "../support/calling-model.ts";
import { inDirectory, tinyConfig } from "../support/tiny.ts";

it("is trained on streamed episodes with tools, with the ids that were sampled", () =>
  inDirectory(async (run) => {
    const server = await serveAndTrain({
      recipe: {
        name: "shelf",
        model: {
          config: { ...tinyConfig, max_position_embeddings: 8192 },
          tokenizer: callingTokenizerParts(),
        },
        learner: { dtype: "float32" },
        environment: { name: "recorded" },
        config: {
          ...{ episodesPerIteration: 2, updatesPerIteration: 1, batchSize: 1 },
          ...{ maxPromptTokens: 8000, maxActionTokens: 4, maxCriticTokens: 4 },
        },
      },
      ...{ directory: run, name: "tiny", port: 0 },
    });
    try {
      for (const episode of ["a", "b"]) {
        const provider = createOpenAICompatible({
          ...{ name: "nlac", baseURL: `${server.url}/v1`, headers: { "x-episode-id": episode } },
        });
        const { text } = streamText({
          model: provider.chatModel("tiny"),
          prompt: "Order rice.",
          tools: {
            order: tool({ inputSchema: z.object({ item: z.string() }), execute: async () => "Ordered." }),
          },
          stopWhen: stepCountIs(2),
          maxOutputTokens: 4,
        });
        await text;
        const reply = await fetch(`${server.url}/v1/episodes/${episode}/reward`, {
          method: "POST",
          headers: { "content-type": "application/json" },
          body: JSON.stringify({ reward: episode === "a" ? 1 : 0 }),
        });
        expect(reply.status).toBe(200);
      }
      while (server.updates < 1) await new Promise((resolve) => setTimeout(resolve, 20));
    } finally {
      await server.close(20);
    }
    const records = [...readEpisodeRecords(`${run}/episodes.jsonl`)];
    expect(records.map(({ task, reward }) => [task, reward])).toEqual([
      ["a", 1],
      ["b", 0],
    ]);
    for (const { turns, conversation } of records) {
      const sampled = conversation.segments.filter(({ source }) => source === "model");
      expect(sampled).toHaveLength(turns.length);
      for (const { start, end, logProbs } of sampled)
        expect(Buffer.from(logProbs!, "base64")).toHaveLength(4 * (end - start));
    }
  }));
