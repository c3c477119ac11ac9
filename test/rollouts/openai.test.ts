import { expect, test } from "vitest";
import type { ActionRequest } from "../../lib/rollouts/engine.ts";
import { openai } from "../../lib/rollouts/openai.ts";
import { jsonServer } from "../support/json-server.ts";

const plain: ActionRequest = {
  ...{ tokens: [1], maxNewTokens: 4, temperature: 1, topP: 1, topK: 0, minP: 0, repetitionPenalty: 1 },
  ...{ stopTokenIds: [2], seed: undefined },
};

test("fields without an effect are not sent, because some servers refuse them", async () => {
  const server = await jsonServer(({ path }) =>
    path === "/v1/models"
      ? { json: { data: [{ id: "teacher" }] } }
      : { json: { model: "teacher", choices: [{ token_ids: [5] }] } },
  );
  const opened = await openai.open(server.url, "model");
  expect(opened).toEqual({
    ...{
      url: server.url,
      model: "teacher",
      maxPositions: undefined,
      about: "the model teacher",
      labels: false,
    },
  });
  const answer = await openai.generate(opened, plain, undefined, undefined);
  expect(answer).not.toHaveProperty("model");
  expect(answer).toMatchObject({ tokens: [5], label: undefined });
  const all = { topK: 3, minP: 0.1, repetitionPenalty: 1.2, seed: 9 };
  await openai.generate(opened, { ...plain, ...all }, undefined, undefined);
  const always = ["logprobs", "max_tokens", "model", "prompt", "return_token_ids", "temperature", "top_p"];
  const sent = server.requests.slice(1).map(({ body }) => Object.keys(body).sort());
  expect(sent).toEqual([always, [...always, "min_p", "repetition_penalty", "seed", "top_k"].sort()]);
  await server.close();
});

test("weights are refused", async () => {
  const server = { url: "http://h", model: "m", maxPositions: 1, about: "", labels: false };
  const weights = { label: "a", kind: "model", directory: "/d" } as const;
  await expect(openai.install(server, weights)).rejects.toMatchObject({ code: "ERR_ROLLOUTS" });
  await expect(openai.release(server, weights)).rejects.toMatchObject({ code: "ERR_ROLLOUTS" });
});
