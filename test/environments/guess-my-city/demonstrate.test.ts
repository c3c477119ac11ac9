import { describe, expect, it } from "vitest";
import { guessMyCity } from "../../../lib/environments/guess-my-city/index.ts";
import { parseCritique } from "../../../lib/prompts/critic.ts";
import { parseAction } from "../../../lib/prompts/policy.ts";
import { demonstratedTexts } from "../../../lib/training/warmup.ts";
import { ScriptedModel } from "../../support/scripted-model.ts";

describe("demonstrations", () => {
  it("are games that are won, each action with a worse alternative", async () => {
    const environment = guessMyCity();
    const seen = new Set<string>();
    for (const [seed, { city }] of (await environment.tasks("train")).slice(0, 40).entries()) {
      const { turns } = await environment.demonstrate!({ city }, { seed });
      expect(turns.at(-1)!.action.text).toBe(`Is the city ${city}?`);
      for (const { action, judged } of turns) {
        expect(judged).toHaveLength(2);
        const [good, poor] = judged;
        expect(good).toMatchObject({ action });
        expect(good!.advice).toBeUndefined();
        expect(poor!.advice).toContain(action.text);
        expect(poor!.better).toEqual(action);
        expect(poor!.action.text).not.toBe(`Is the city ${city}?`);
        seen.add(poor!.future);
      }
    }
    expect(seen.size).toBe(3);
  });

  it("are reproducible by seed, use no model, and have replies that the parsers accept", async () => {
    const environment = guessMyCity({
      reward: "success",
      oracle: () => {
        throw new Error("asked");
      },
    });
    const shown = await environment.demonstrate!({ city: "Oxford" }, { seed: 4 });
    expect(await environment.demonstrate!({ city: "Oxford" }, { seed: 4 })).toEqual(shown);
    const model = new ScriptedModel(() => "");
    for (const { role, response } of demonstratedTexts(model, environment, shown)) {
      const text = model.decode(response.slice(0, -1));
      if (role === "attempt" || role === "refinement")
        expect(parseAction(text, "text")).toMatchObject({ ok: true });
      if (role === "critique" || role === "target")
        expect(parseCritique(text, false)).toMatchObject({ ok: true });
    }
  });
});
