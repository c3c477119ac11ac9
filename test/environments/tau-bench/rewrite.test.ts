import { describe, expect, test } from "vitest";
import type { Message } from "../../../lib/contract/environment.ts";
import { rewritingFault } from "../../../lib/environments/tau-bench/rewrite.ts";
import { synthesize } from "../../support/scenarios.ts";

describe("rewriting", () => {
  test("a text with the same meaning replaces the template's", async () => {
    const asked: string[] = [];
    const plain = await synthesize({ train: 20, test: 0 });
    const progress: number[] = [];
    const { train, rewritten } = await synthesize({
      train: 20,
      test: 0,
      rewrite: (messages) => {
        asked.push(messages[0]!.content);
        // The template's text, which is a separate paragraph.
        return `<think>Hm.</think>Listen: ${messages[0]!.content.split("\n\n")[1]}`;
      },
      onProgress: (done) => progress.push(done),
    });
    expect(rewritten).toBe(20);
    expect(train.map(({ instruction }) => instruction)).toEqual(
      plain.train.map(({ instruction }) => `Listen: ${instruction}`),
    );
    expect(train.map(({ actions }) => actions)).toEqual(plain.train.map(({ actions }) => actions));
    expect(asked.length).toBe(20);
    expect(progress).toEqual([16, 20]);
  });

  test("the prompt", async () => {
    let prompt = "";
    const rewrite = (messages: readonly Message[]) => {
      prompt = messages[0]!.content;
      return "-";
    };
    await synthesize({ train: 1, test: 0, rewrite });
    expect(prompt).toMatchSnapshot();
  });

  test("one that differs is requested again with the difference, then discarded", async () => {
    const asked: string[] = [];
    const { train, rewritten } = await synthesize({
      train: 5,
      test: 0,
      rewrite: (messages) => {
        asked.push(messages.at(-1)!.content);
        return "<think>Let me see.</think>Cancel everything.";
      },
    });
    expect([rewritten, asked.length]).toEqual([0, 10]);
    expect(asked[9]).toMatch(/^That cannot be used: it must contain /);
    expect(train).toEqual((await synthesize({ train: 5, test: 0 })).train);
  });

  test.each([
    ["Order #W12 of ANN LEE (ann.lee1@example.com), please: the 1.5 liters one.", undefined],
    ["Ann Lee wants the 1.5 liters one.", "it must contain ann.lee1@example.com, #W12"],
    ["Ann Lee, ann.lee1@example.com: the 1.5 liters one of #W12 and #W13.", "it must not contain #w13"],
    ["Ann Lee, ann.lee1@example.com: 2 of the 1.5 liters ones of #W12.", "it must not contain 2"],
  ])("%j: %s", (text, fault) => {
    const before = {
      text: "You are Ann Lee (ann.lee1@example.com). From #W12 you want the one with 1.5 liters.",
      facts: ["Ann Lee", "ann.lee1@example.com", "#W12", "1.5 liters"],
    };
    expect(rewritingFault(text, before)).toBe(fault);
  });

  test("a service that fails is ERR_SERVICE", async () => {
    const rewrite = { model: "x", baseURL: "http://127.0.0.1:1/v1", maxRetries: 0 };
    await expect(synthesize({ train: 1, test: 0, rewrite })).rejects.toMatchObject({ code: "ERR_SERVICE" });
  });
});
