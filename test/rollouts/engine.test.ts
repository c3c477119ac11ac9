import { expect, test } from "vitest";
import { z } from "zod";
import { callOrAdvise, firstModel, logProbsOf, readAnswer } from "../../lib/rollouts/engine.ts";
import { jsonServer } from "../support/json-server.ts";

test("firstModel reads the name and the context, which some servers do not say", async () => {
  const data: object[] = [{ id: "base", max_model_len: 4096 }, { id: "adapter" }];
  const server = await jsonServer(() => ({ json: { data } }));
  expect(await firstModel(server.url)).toEqual({ id: "base", maxPositions: 4096 });
  data[0] = { id: "base", max_model_len: null };
  expect(await firstModel(server.url)).toEqual({ id: "base", maxPositions: undefined });
  data.length = 0;
  await expect(firstModel(server.url)).rejects.toMatchObject({ code: "ERR_ROLLOUTS" });
  expect(new Set(server.requests.map(({ path }) => path))).toEqual(new Set(["/v1/models"]));
  await server.close();
});

test("readAnswer names the call and the field", () => {
  const schema = z.object({ tokens: z.array(z.int()) });
  expect(readAnswer(schema, { tokens: [1], more: 2 }, "http://h/x")).toEqual({ tokens: [1] });
  expect(() => readAnswer(schema, { tokens: ["a"] }, "http://h/x")).toThrow(/http:\/\/h\/x[\s\S]*tokens/);
  expect(() => readAnswer(schema, undefined, "http://h/x")).toThrow(/unexpected form/);
});

test("callOrAdvise says how to enable a call that a server lacks, and only then", async () => {
  let status = 404;
  const server = await jsonServer(() => ({ status, json: { done: true } }));
  const call = () => callOrAdvise(server.url, "/pause?mode=abort", {}, "Start it with --pause.");
  await expect(call()).rejects.toMatchObject({
    ...{ code: "ERR_ROLLOUTS", message: `${server.url} has no /pause. Start it with --pause.` },
  });
  status = 500;
  await expect(call()).rejects.toMatchObject({ status: 500 });
  status = 200;
  expect(await call()).toEqual({ done: true });
  await server.close();
});

test("a missing log probability is NaN", () => {
  expect(logProbsOf([-1, null, 0])).toEqual(Float32Array.of(-1, Number.NaN, 0));
});
