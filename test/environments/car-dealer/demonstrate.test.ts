import { describe, expect, it } from "vitest";
import { carDealer } from "../../../lib/environments/car-dealer/index.ts";
import { parseCritique } from "../../../lib/prompts/critic.ts";
import { parseAction } from "../../../lib/prompts/policy.ts";
import { demonstratedTexts } from "../../../lib/training/warmup.ts";
import { ScriptedModel } from "../../support/scripted-model.ts";

describe("demonstrations", () => {
  it("end in a sale, each action with a worse alternative", async () => {
    const environment = carDealer();
    const seen = new Set<string>();
    for (const [seed, task] of (await environment.tasks("train")).entries()) {
      const { turns } = await environment.demonstrate!(task, { seed });
      const [last, poor] = turns.at(-1)!.judged;
      expect(last!.outcome).toMatchObject({ terminated: true });
      expect(last!.outcome!.reward).toBeGreaterThan(0.3);
      // The gift is accepted or not, but never rewarded.
      expect(poor!.outcome!.reward).toBe(0);
      for (const { action, judged } of turns) {
        expect(judged).toHaveLength(2);
        expect(judged[0]!.action).toBe(action);
        expect(judged[1]!.advice).toBeDefined();
        expect(judged[1]!.better).toBe(action);
        expect(JSON.parse(action.text)).toEqual(action.tool);
        seen.add(judged[1]!.future);
      }
    }
    expect(seen.size).toBe(3);
  });

  it("are reproducible by seed, use no model, and have replies that the parsers accept", async () => {
    const environment = carDealer({
      buyer: () => {
        throw new Error("asked");
      },
    });
    const shown = await environment.demonstrate!({ buyer: "train-2-1" }, { seed: 4 });
    expect(await environment.demonstrate!({ buyer: "train-2-1" }, { seed: 4 })).toEqual(shown);
    const model = new ScriptedModel(() => "");
    for (const { role, response } of demonstratedTexts(model, environment, shown)) {
      const text = model.decode(response.slice(0, -1));
      if (role === "attempt" || role === "refinement")
        expect(parseAction(text, "tool")).toMatchObject({ ok: true });
      if (role === "critique" || role === "target")
        expect(parseCritique(text, false)).toMatchObject({ ok: true });
    }
  });
});
