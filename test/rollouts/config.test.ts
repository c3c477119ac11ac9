import { expect, test } from "vitest";
import { rolloutsConfig } from "../../lib/rollouts/config.ts";

const url = "http://10.0.0.2:8000";

test("servers that take weights need a shared path; addresses lose their last slash", () => {
  const config = { engine: "vllm", urls: [`${url}//`], shared: "/mnt/weights" };
  expect(rolloutsConfig.parse(config)).toEqual({ ...config, urls: [url], every: 1 });
  expect(rolloutsConfig.parse({ engine: "openai", urls: [url] })).toEqual({ engine: "openai", urls: [url] });
});

test.each([
  ["an address without a scheme", { urls: ["10.0.0.2:80"] }, /http:\/\/ or https:\/\//],
  ["no address", { urls: [] }, /urls/],
  ["an address twice", { urls: [url, `${url}/`] }, /named twice/],
  ["a relative path", { shared: "mnt" }, /an absolute path/],
  ["no path", { shared: undefined }, /shared/],
  ["no step between versions", { every: 0 }, /every/],
  ["an unknown field", { port: 80 }, /port/],
  ["a path that OpenAI's API cannot use", { engine: "openai" }, /no call that changes a server's weights/],
])("%s is refused", (_, change, message) => {
  const config = { engine: "sglang", urls: [url], shared: "/mnt", ...change };
  const { success, error } = rolloutsConfig.safeParse(config);
  expect([success, error?.message]).toEqual([false, expect.stringMatching(message)]);
});
