import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { argumentsText, parseCall } from "../../lib/prompts/calls.ts";
import { parseAction } from "../../lib/prompts/policy.ts";

const json = '{"name": "find", "arguments": {"id": [1]}}';
const find = { name: "find", arguments: { id: [1] } };

describe("a turn in the format of calls", () => {
  test.each([
    ["between tags", `<tool_call>\n${json}\n</tool_call>`, { text: json, tool: find }],
    [
      "after a thought",
      `I look.\n<tool_call>${json}</tool_call>\n`,
      { text: json, thought: "I look.", tool: find },
    ],
    ["bare", `  ${json}`, { text: json, tool: find }],
    ["bare, after a thought", `Well,\n${json}\n`, { text: json, thought: "Well,", tool: find }],
    ["as Llama writes it", json.replace("arguments", "parameters"), { text: json, tool: find }],
    [
      "after Llama's tag",
      `<|python_tag|>${json.replace("arguments", "parameters")}`,
      { text: json, tool: find },
    ],
    [
      "with the key's name elsewhere",
      '{"parameters": {"parameters": "}"}, "name": "parameters"}',
      {
        text: '{"arguments": {"parameters": "}"}, "name": "parameters"}',
        tool: { name: "parameters", arguments: { parameters: "}" } },
      },
    ],
    ["said", " It costs {about} 5 [or so].\n", { text: "It costs {about} 5 [or so]." }],
    ["said, with JSON in a line", 'Write {"a": 1} there.', { text: 'Write {"a": 1} there.' }],
  ])("%s", (_, turn, action) => {
    expect(parseAction(turn, "call")).toEqual({ ok: true, action });
  });

  test.each([
    ["nothing", " \n", "empty"],
    ["no end", `<tool_call>${json}`, "between <tool_call> and </tool_call>"],
    ["no beginning", `${json}</tool_call>`, "between <tool_call> and </tool_call>"],
    ["ends before it begins", `</tool_call>${json}<tool_call>`, "between <tool_call> and </tool_call>"],
    ["two calls", `<tool_call>${json}</tool_call>\n<tool_call>${json}</tool_call>`, "one call only"],
    ["two bare calls", `${json}\n${json}`, "one call only"],
    ["two bare calls, as Llama parts them", `${json}; ${json}`, "one call only"],
    ["text after the call", `<tool_call>${json}</tool_call> Done.`, "after a call"],
    ["text after a bare call", `${json} Done.`, "after a call"],
    ["not JSON", "<tool_call>find(1)</tool_call>", "not valid JSON"],
    ["cut off", json.slice(0, -4), "not valid JSON"],
    ["code", "<|python_tag|>find.call(1)", "must be a JSON object"],
    ["a list", `<tool_call>[${json}]</tool_call>`, "must be a JSON object"],
    ["no arguments", '<tool_call>{"name": "find"}</tool_call>', 'exactly the keys "name" and "arguments"'],
    ["another key", json.replace("{", '{"type": "function", '), "exactly the keys"],
    ["both keys", json.replace("}}", '}, "parameters": {}}'), "exactly the keys"],
    ["a key twice", json.replace("{", '{"name": "a", '), "exactly the keys"],
    ["arguments as text", '{"name": "find", "parameters": "{}"}', '"parameters" must be a JSON object'],
    ["a number without end", '{"name": "find", "arguments": {"a": 1e999}}', "too large"],
  ])("malformed: %s", (_, turn, reason) => {
    expect(parseAction(turn, "call")).toEqual({ ok: false, reason: expect.stringContaining(reason) });
  });
});

describe("parseCall", () => {
  test("counts nesting outside of strings only", () => {
    const brackets = JSON.stringify("[{".repeat(500));
    expect(parseCall(`{"name": "f", "arguments": {"a": ${brackets}}}`).ok).toBe(true);
    const hidden = `{"name": "f", "arguments": {"a": "${"]".repeat(100)}", "b": ${"[".repeat(100)}${"]".repeat(100)}}}`;
    expect(parseCall(hidden)).toEqual({ ok: false, reason: expect.stringContaining("deeper") });
  });

  test("rejects numbers that JSON.parse cannot represent, and keeps the spelling of others", () => {
    expect(parseCall('{"name": "f", "arguments": {"a": [-1e400]}}').ok).toBe(false);
    const call = parseCall('{"name": "f", "arguments": {"a": 250.0, "b": 12345678901234567890}}');
    expect(call).toMatchObject({
      ok: true,
      text: expect.stringContaining('{"a": 250.0, "b": 12345678901234567890}'),
    });
  });

  test("parses its own output, with any text", () => {
    const nested = parseCall('{"name": "f", "arguments": {"a": [{"__proto__": {"b": 1}, "c": 2}]}}');
    expect(nested).toMatchObject({ ok: true, tool: { arguments: { a: [{ c: 2 }] } } });

    const name = fc.string({ minLength: 1 });
    const args = fc.dictionary(fc.string(), fc.jsonValue({ noUnicodeString: false }));
    const withoutPrototype = (key: string, value: unknown) => (key === "__proto__" ? undefined : value);
    fc.assert(
      fc.property(name, args, fc.constantFrom(undefined, 1, "\t"), (name, given, space) => {
        const written = JSON.stringify({ name, arguments: given }, null, space);
        const read = JSON.parse(JSON.stringify(given), withoutPrototype) as object;
        const call = parseCall(written);
        expect(call).toEqual({ ok: true, text: written, tool: { name, arguments: read } });
        expect(JSON.parse(argumentsText({ text: written }), withoutPrototype)).toEqual(read);
        const llama = JSON.stringify({ name, parameters: given }, null, space);
        expect(parseAction(llama, "call")).toMatchObject({
          ok: true,
          action: { tool: { name, arguments: read } },
        });
      }),
    );
    const piece = fc.constantFrom(
      '{"',
      '"name"',
      "{",
      "}",
      "[",
      "]",
      ":",
      ",",
      '"',
      "\\",
      "<tool_call>",
      "</tool_call>",
      "\n",
      "x",
      "1e999",
    );
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 40 }), (pieces) => {
        const parsed = parseAction(pieces.join(""), "call");
        if (parsed.ok && parsed.action.tool !== undefined) argumentsText(parsed.action);
      }),
      { numRuns: 2000 },
    );
  });

  test("takes linear time over text that looks like JSON without end", () => {
    for (const text of [
      `{"${'\\"'.repeat(500_000)}`,
      '{"a'.repeat(300_000),
      `{"name": "${"\\".repeat(1_000_001)}`,
    ]) {
      expect(parseAction(text, "call").ok).toBe(false);
    }
  }, 10_000);
});
