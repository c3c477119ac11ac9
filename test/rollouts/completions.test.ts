import { expect, test } from "vitest";
import { complete } from "../../lib/rollouts/completions.ts";
import { jsonServer } from "../support/json-server.ts";

const choice = {
  finish_reason: "stop",
  token_ids: [7, 8],
  prompt_token_ids: [1, 2],
  logprobs: { token_logprobs: [-0.5, null] },
};

/** Completes [1, 2] on a server that answers with `json`. */
async function completed(json: object) {
  const server = await jsonServer(() => ({ json }));
  const about = { model: "m", maxPositions: undefined, about: "vLLM 1", labels: false };
  try {
    const answer = await complete({ url: server.url, ...about }, [1, 2], { model: "m", top_k: 3 }, undefined);
    return { answer, requests: server.requests };
  } finally {
    await server.close();
  }
}

test("sends token ids, asks for token ids and log probabilities, and returns them", async () => {
  const usage = { prompt_tokens_details: { cached_tokens: 16 } };
  const { answer, requests } = await completed({ model: "m", choices: [choice], usage });
  expect(requests).toMatchObject([{ method: "POST", path: "/v1/completions" }]);
  const body = { model: "m", top_k: 3, prompt: [1, 2], logprobs: 0, return_token_ids: true };
  expect(requests[0]!.body).toEqual(body);
  expect(answer).toEqual({
    ...{ tokens: [7, 8], logProbs: Float32Array.of(-0.5, Number.NaN), cachedTokens: 16 },
    ...{ aborted: false, label: undefined, model: "m" },
  });
});

test("an answer without log probabilities, usage and prompt is accepted", async () => {
  const { answer } = await completed({ choices: [{ token_ids: [7] }] });
  expect(answer).toMatchObject({ logProbs: Float32Array.of(Number.NaN), cachedTokens: 0, model: undefined });
});

test("all versions that generated parts of an answer are in its label", async () => {
  const weight_versions = ["a", "b", "a"].map((version, i) => ({ version, start: i, end: i + 1 }));
  const { answer } = await completed({ choices: [{ ...choice, weight_versions }] });
  expect(answer.label).toBe("a, b");
});

test("an aborted answer needs no token ids", async () => {
  const { answer } = await completed({ choices: [{ finish_reason: "abort" }] });
  expect(answer).toMatchObject({ aborted: true, tokens: [] });
});

test.each([
  ["no token ids", { token_ids: null }, /\(vLLM 1\) returns no token_ids/],
  ["another prompt", { prompt_token_ids: [1] }, /did not read the prompt as it was sent/],
  ["a log probability too many", { token_ids: [7] }, /returns 2 log probabilities for 1 tokens/],
  ["a negative id", { token_ids: [-7, 8] }, /an answer of an unexpected form/],
])("%s is refused", async (_, change, message) => {
  await expect(completed({ choices: [{ ...choice, ...change }] })).rejects.toMatchObject({
    ...{ code: "ERR_ROLLOUTS", message: expect.stringMatching(message) },
  });
});
