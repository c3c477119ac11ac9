import { describe, expect, test } from "vitest";
import { uniform } from "../../lib/base/random.ts";
import type { Action, Message } from "../../lib/contract/environment.ts";
import { leaks } from "../../lib/prompts/leaks.ts";
import {
  differentActionRequest,
  parseProposals,
  proposalGrammar,
  proposerMessages,
} from "../../lib/prompts/proposer.ts";
import { parseSummary, summarizerMessages } from "../../lib/prompts/summarizer.ts";

const opening: Message[] = [
  { role: "system", content: "Find the word." },
  { role: "user", content: "Ask." },
];
const turns = [
  {
    action: { text: "Is it alive?", thought: "Broad first." },
    observation: [{ role: "user" as const, content: "No." }],
  },
  { action: "no form", observation: [{ role: "user" as const, content: "Unreadable." }] },
];
const key = { secret: "key" };
const item = (action: unknown, player = "It may be small.", teacher = "The secret is a key.") => ({
  teacher_reason: teacher,
  action,
  player_reason: player,
});
const parse = (items: unknown, secret: string | undefined = "key", taken: Action[] = [], count = 4) =>
  parseProposals(JSON.stringify(items), count, "text", taken, secret === undefined ? {} : { secret });

test("every prompt reads as it did when it was last reviewed", () => {
  expect({
    short: summarizerMessages(opening, turns, { secret: "key", failureReason: "Not named." }, "short"),
    negotiation: summarizerMessages(
      opening,
      turns,
      { secret: "key", failureReason: "Too dear." },
      "negotiation",
    ),
    text: proposerMessages(opening, turns, "It asked too broadly.", 2, "text"),
    tool: proposerMessages(opening, [], "It never searched.", 2, "tool"),
    different: differentActionRequest([{ text: "Is it alive?" }], "Thought:\n…"),
  }).toMatchSnapshot();
});

test("the proposer's request does not hold the secret by itself: only its summary may", () => {
  expect(JSON.stringify(proposerMessages(opening, turns, "A summary.", 2, "text"))).not.toContain("key");
});

describe("proposals", () => {
  test("become actions whose thought is the agent's reason", () => {
    expect(parse([item("Is it metal?"), item("Is it\tsmall?", "Size\n  helps.")])).toEqual({
      ok: true,
      actions: [
        { text: "Is it metal?", thought: "It may be small." },
        { text: "Is it\tsmall?", thought: "Size helps." },
      ],
      refused: { malformed: 0, leaked: 0, repeated: 0 },
    });
    const fenced = `\`\`\`json\n${JSON.stringify([item("Is it metal?")])}\n\`\`\``;
    expect(parseProposals(fenced, 2, "text", [], {})).toMatchObject({
      actions: [{ text: "Is it metal?" }],
    });
    const call = parseProposals(
      JSON.stringify([item({ name: "find", arguments: { a: 1 } })]),
      2,
      "tool",
      [],
      {},
    );
    expect(call).toMatchObject({
      actions: [{ tool: { name: "find", arguments: { a: 1 } }, thought: "It may be small." }],
    });
  });

  test.each([
    ["the secret in the action", item("Is it a key?")],
    ["in the agent's reason", item("Is it metal?", "It must be the Key!")],
    ["in the plural", item("Are keys like it?")],
    ["with accents and invisible letters", item("Is it a k\u200bé\u0301y?")],
    ["in full-width letters", item("Is it a ｋｅｙ?")],
  ])("are refused and counted with %s", (_, given) => {
    expect(parse([given, item("Is it metal?")])).toMatchObject({
      actions: [{ text: "Is it metal?" }],
      refused: { leaked: 1 },
    });
  });

  test("may hold a word that only contains the secret's letters", () => {
    expect(leaks({ text: "Is it a monkey?" }, key)).toBe(false);
    expect(leaks({ text: "keyboard" }, key)).toBe(false);
    expect(leaks({ text: '{"name":"say","arguments":{"x":"\\u006bey"}}' }, key)).toBe(true);
    const order = { secret: "form, stamp" };
    expect(leaks({ text: "form then stamp" }, order)).toBe(false);
    expect(leaks({ text: "x", thought: "form, stamp, fee" }, order)).toBe(true);
    expect(leaks({ text: "anything" }, { secret: " " })).toBe(false);
    expect(leaks({ text: "anything" }, {})).toBe(false);
  });

  test("may not hold what the environment hides, until it was said", () => {
    const budget = { secret: "A red car for $24,500.", hidden: ["$24,500"] };
    for (const said of ["$24,500", "24500", "24.5k", "24,500.00", "USD 24 500, or 24,500"])
      expect(leaks({ text: "x", thought: `I ask for ${said} now.` }, budget)).toBe(true);
    expect(leaks({ text: '{"name":"respond","arguments":{"price":24500}}' }, budget)).toBe(true);
    expect(leaks({ text: "I ask for 24,501 now, car 245,001." }, budget)).toBe(false);
    expect(leaks({ text: "So 24,500 it is." }, budget, "I can pay $24,500.")).toBe(false);
    // Two things of an order, in the action and its reason together.
    const order = { hidden: [["form", "stamp"]] };
    expect(leaks({ text: "form", thought: "Then they want the stamp." }, order)).toBe(true);
    expect(leaks({ text: "form", thought: "They may want the form." }, order)).toBe(false);
    expect(leaks({ text: "stamp", thought: "The form was taken." }, order, "I took the form.")).toBe(false);
  });

  test("that are taken already, or proposed twice, are refused", () => {
    const taken = [{ text: "Is it alive?" }];
    expect(
      parse([item("is it ALIVE"), item("Is it metal?"), item("Is it metal ?")], "key", taken),
    ).toMatchObject({
      actions: [{ text: "Is it metal?" }],
      refused: { repeated: 2 },
    });
  });

  test.each([
    ["no object", 3],
    ["null", null],
    ["without a reason", { action: "a", teacher_reason: "t" }],
    ["an empty action", item("  ")],
    ["an empty reason", item("a", " \n ")],
    ["two lines", item("a\nb")],
    ["another section", item("a\nAction:\nb")],
    ["a number as action", item(4)],
    ["a call where a text is wanted", item({ name: "a", arguments: {} })],
    ["a thought that opens a section", item("a", "Action: b")],
    [
      "a prototype",
      JSON.parse('{"__proto__": {"action": "a"}, "teacher_reason": "t", "player_reason": "p"}'),
    ],
  ])("are malformed with %s", (_, given) => {
    expect(parse([given])).toMatchObject({ ok: true, actions: [], refused: { malformed: 1 } });
  });

  test.each([
    ["", "JSON"],
    ["Here are two actions.", "JSON"],
    ['{"action": "a"}', "list"],
    ["[1, 2", "JSON"],
    ["[".repeat(200_000), "longer"],
    ["[".repeat(1000), "nested"],
  ])("a reply that is no list is refused as a whole", (text, why) => {
    expect(parseProposals(text, 2, "text", [], { secret: "key" })).toMatchObject({
      ok: false,
      reason: expect.stringContaining(why),
    });
  });

  test("more than were asked for are not read", () => {
    expect(
      parse(
        ["a", "b", "c"].map((text) => item(text)),
        "key",
        [],
        2,
      ),
    ).toMatchObject({
      actions: [{ text: "a" }, { text: "b" }],
    });
  });

  test("random damage never throws, and never lets the secret through", () => {
    const whole = JSON.stringify([item("Is it a key?"), item("Is it metal?"), item("a", "the key")]);
    for (let i = 0; i < 3000; i++) {
      const at = Math.floor(uniform(1, 0, 3 * i) * whole.length);
      const length = Math.floor(uniform(1, 0, 3 * i + 1) * 8);
      const put = String.fromCharCode(Math.floor(uniform(1, 0, 3 * i + 2) * 128));
      const parsed = parseProposals(whole.slice(0, at) + put + whole.slice(at + length), 4, "text", [], {
        secret: "key",
      });
      if (parsed.ok) for (const action of parsed.actions) expect(leaks(action, key)).toBe(false);
    }
  });

  test("the grammar asks for as many objects as proposals", () => {
    expect(proposalGrammar(2, "text")).toMatchObject({
      jsonSchema: { type: "array", minItems: 2, maxItems: 2 },
    });
  });
});

test("a summary is any text that is neither empty nor far too long", () => {
  expect(parseSummary("  It failed. \n")).toEqual({ ok: true, summary: "It failed." });
  expect(parseSummary(" \n ")).toMatchObject({ ok: false });
  expect(parseSummary("x".repeat(9000))).toMatchObject({ ok: false });
});
