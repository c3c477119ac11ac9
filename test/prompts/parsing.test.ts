import { describe, expect, it } from "vitest";
import { parseVerdict, sections } from "../../lib/prompts/parsing.ts";

const tags = ["Future", "Optimality"] as const;

describe("sections", () => {
  it("are the texts after their tags, which begin a line", () => {
    const text = "  Future: The desk\naccepts it.\n\n Optimality:\nYes. The Future: is bright.\n";
    expect(sections(text, tags)).toEqual({
      ok: true,
      sections: { Future: "The desk\naccepts it.", Optimality: "Yes. The Future: is bright." },
    });
  });

  it.each<[string, string, string]>([
    ["a missing tag", "Future: a", 'the line "Optimality:" is missing'],
    ["a tag within a line", "Future: a. Optimality: b", 'the line "Optimality:" is missing'],
    ["a tag in other letters", "future: a\nOptimality: b", 'the line "Future:" is missing'],
    ["a repeated tag", "Future: a\nFuture: b\nOptimality: c", '"Future:" occurs 2 times instead of once'],
    ["another order", "Optimality: b\nFuture: a", '"Future:" must come before "Optimality:"'],
    ["an empty section", "Future:\nOptimality: b", 'nothing stands after "Future:"'],
    ["an empty last section", "Future: a\nOptimality: \n", 'nothing stands after "Optimality:"'],
    ["text before the first", "Sure!\nFuture: a\nOptimality: b", 'the reply must begin with "Future:"'],
    ["an empty reply", "", 'the line "Future:" is missing'],
  ])("are refused for %s", (_, text, reason) => {
    expect(sections(text, tags)).toEqual({ ok: false, reason });
  });
});

describe("a verdict", () => {
  it.each(["Yes", "yes.", '"Yes"', "**Yes**, well done", "YES - it is right"])("%s is a Yes", (text) => {
    expect(parseVerdict(text)).toEqual({ ok: true, yes: true, advice: "" });
  });

  it.each([
    ["No. Ask about size.", "Ask about size."],
    ["no, ask about size", "ask about size"],
    ["**No** — bring the form.", "bring the form."],
    ["No: 5 is too small", "5 is too small"],
  ])("%s is a No with its advice", (text, advice) => {
    expect(parseVerdict(text)).toEqual({ ok: true, yes: false, advice });
  });

  it.each([
    "No",
    "No.",
    "**No**",
    "Maybe",
    "",
    "Not really, ask again",
    "Yesterday it was right",
    "It is right: yes",
  ])("%j is neither", (text) => {
    expect(parseVerdict(text)).toMatchObject({ ok: false });
  });
});
