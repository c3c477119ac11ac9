import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { ToolSchema } from "../../lib/contract/environment.ts";
import { parseCalls } from "../../lib/prompts/calls.ts";

const find: ToolSchema = {
  name: "find",
  description: "Finds.",
  parameters: {
    type: "object",
    properties: {
      text: { type: "string" },
      count: { type: "integer" },
      all: { type: ["boolean", "null"] },
      filter: { type: "object" },
      either: { type: ["string", "number"] },
      mode: { enum: ["a", "b"] },
      free: {},
      none: { anyOf: [{ type: "string" }, { type: "null" }] },
      within: { $ref: "#/$defs/range" },
    },
    $defs: { range: { type: "array", items: { type: "number" } } },
  },
};
const open: ToolSchema = {
  name: "open",
  description: "",
  parameters: { type: "object", properties: {}, additionalProperties: { type: "number" } },
};
const tools = [find, open];
const tagged = (body: string) => `<tool_call>\n<function=find>\n${body}</function>\n</tool_call>`;
const parameter = (key: string, value: string) => `<parameter=${key}>\n${value}\n</parameter>\n`;
const read = (turn: string) => {
  const parsed = parseCalls(turn, tools);
  return parsed.ok ? parsed.calls.map(({ tool }) => tool.arguments) : parsed.reason;
};

describe("arguments in tags", () => {
  test.each<[string, string, unknown]>([
    ["text", "5", "5"],
    ["text", "true", "true"],
    ["text", " \n indented\n", " \n indented\n"],
    ["text", "<b>if a < b: </i>", "<b>if a < b: </i>"],
    ["text", "", ""],
    ["text", "<|im_end|>[TOOL_CALLS]x[ARGS]{}", "<|im_end|>[TOOL_CALLS]x[ARGS]{}"],
    ["count", " 12 ", 12],
    ["count", "2.5e3", 2500],
    ["all", "True", true],
    ["all", "false", false],
    ["all", "None", null],
    [
      "filter",
      '{"a": [1, "</parameter></function></tool_call>"]}',
      { a: [1, "</parameter></function></tool_call>"] },
    ],
    ["either", "7", 7],
    ["either", "seven", "seven"],
    ["mode", "a", "a"],
    ["free", "5", "5"],
    ["none", "null", null],
    ["none", "nothing", "nothing"],
    ["within", "[1, 2]", [1, 2]],
  ])("%s: %j", (key, value, expected) => {
    expect(read(tagged(parameter(key, value)))).toEqual([{ [key]: expected }]);
  });

  test("need no line breaks, and may be of a type for any name", () => {
    expect(read("<tool_call><function=find><parameter=text>a</parameter></function></tool_call>")).toEqual([
      { text: "a" },
    ]);
    expect(read(`<tool_call><function=open>${parameter("x", "1")}</function></tool_call>`)).toEqual([
      { x: 1 },
    ]);
    expect(read("<tool_call><function=open></function></tool_call>")).toEqual([{}]);
  });

  test.each([
    [
      "no end of the call",
      "<tool_call>\n<function=find>\n</function>",
      "end with </function> and </tool_call>",
    ],
    [
      "no end of the function",
      `<tool_call>\n<function=find>\n${parameter("text", "a")}</tool_call>`,
      "end with",
    ],
    ["no end of a parameter", tagged("<parameter=text>\na\n"), "must end with </parameter>"],
    [
      "no end of a parameter before the next",
      tagged(`<parameter=text>\na\n${parameter("count", "1")}`),
      "must not contain <parameter=",
    ],
    [
      "a parameter in a parameter",
      tagged(parameter("text", parameter("count", "1"))),
      "must not contain <parameter=",
    ],
    ["a call in a parameter", tagged(parameter("text", tagged(""))), "must not contain <function="],
    ["a closing tag in a text", tagged(parameter("text", "a</parameter>b")), "must hold parameters only"],
    [
      "the call's end in a text",
      tagged(parameter("text", "a</tool_call>b")),
      "must not contain </tool_call>",
    ],
    ["a parameter twice", tagged(parameter("text", "a") + parameter("text", "b")), '"text" occurs twice'],
    ["an unknown parameter", tagged(parameter("colour", "red")), 'no parameter "colour"'],
    ["a name of Object's", tagged(parameter("constructor", "red")), 'no parameter "constructor"'],
    ["an unknown function", "<tool_call><function=delete></function></tool_call>", 'no function "delete"'],
    ["a function without a name", "<tool_call><function=></function></tool_call>", "followed by a name"],
    ["text for a number", tagged(parameter("count", "two")), '"count" must be a number'],
    ["a list for an object", tagged(parameter("filter", "[1]")), '"filter" must be a JSON object'],
    ["text for true or false", tagged(parameter("all", "yes")), '"all" must be true or false or null'],
    ["a number without end", tagged(parameter("count", "1e999")), "too large"],
    ["nesting", tagged(parameter("filter", `{"a": ${"[".repeat(100)}${"]".repeat(100)}}`)), "deeper"],
    ["text among parameters", tagged(`so:${parameter("text", "a")}`), "must hold parameters only"],
    ["text after the call", `${tagged("")} Done.`, "after a call"],
    ["text between calls", `${tagged("")} and ${tagged("")}`, "after a call"],
    ["an end too many", `${tagged("")}</tool_call>`, "must stand between"],
  ])("malformed: %s", (_, turn, reason) => {
    expect(read(turn)).toContain(reason);
  });
});

describe("calls of Mistral", () => {
  const ids = '[TOOL_CALLS] [{"name": "find", "arguments": {"text": "]"}, "id": "abcdefghi"}, ';
  test.each<[string, string, unknown]>([
    ["one", '[TOOL_CALLS]find[ARGS]{"text": "[TOOL_CALLS]"}', [{ text: "[TOOL_CALLS]" }]],
    ["two", '[TOOL_CALLS]find[ARGS]{"count": 1}[TOOL_CALLS]open[ARGS]{}', [{ count: 1 }, {}]],
    ["with an id", '[TOOL_CALLS]find[CALL_ID]a1B2c3D4e[ARGS]{"count": 1}', [{ count: 1 }]],
    ["of a name with a slash", '[TOOL_CALLS]files/2-find[ARGS]{"count": 1}', [{ count: 1 }]],
    ["a list", `${ids}{"id": "jklmnopqr", "name": "open", "arguments": {}}]`, [{ text: "]" }, {}]],
    ["in a list without ids", '[TOOL_CALLS][{"name": "open", "arguments": {}}]', [{}]],
  ])("%s", (_, turn, expected) => {
    expect(read(turn)).toEqual(expected);
  });

  test.each([
    ["no arguments", "[TOOL_CALLS]find", "[ARGS] and a JSON object"],
    ["arguments without end", '[TOOL_CALLS]find[ARGS]{"text": "}', "not valid JSON"],
    ["arguments that are no object", "[TOOL_CALLS]find[ARGS][1]", "[ARGS] and a JSON object"],
    ["broken arguments", "[TOOL_CALLS]find[ARGS]{text}", "not valid JSON"],
    ["text after a call", "[TOOL_CALLS]find[ARGS]{} Done.", "after a call"],
    ["no name", "[TOOL_CALLS][ARGS]{}", "followed by a name"],
    ["a list without end", ids.slice(0, -2), "end with ]"],
    ["a list with a comma too many", `${ids}]`, "list of JSON objects"],
    ["an empty list", "[TOOL_CALLS] []", "list of JSON objects"],
    ["another key", '[TOOL_CALLS] [{"name": "open", "arguments": {}, "then": 1}]', "exactly the keys"],
    ["two ids", '[TOOL_CALLS] [{"id": "a", "id": "b", "name": "open", "arguments": {}}]', "exactly the keys"],
    ["text after a list", '[TOOL_CALLS] [{"name": "open", "arguments": {}}] So.', "after a call"],
  ])("malformed: %s", (_, turn, reason) => {
    expect(read(turn)).toContain(reason);
  });
});

describe("calls like Python's", () => {
  const calls = (body: string) => `<function_calls>${body}</function_calls>`;
  test.each<[string, string, unknown]>([
    [
      "JSON values",
      'find(text="a\\n</function_calls>", count=-2.5e1, all=null)',
      { text: "a\n</function_calls>", count: -25, all: null },
    ],
    [
      "Python's literals",
      "find(all=True, none=None, text='it\\'s \"\\x41\\u0042')",
      { all: true, none: null, text: "it's \"AB" },
    ],
    [
      "nested values",
      `find(filter={"a": [1, {'b': False}], "c": []})`,
      { filter: { a: [1, { b: false }], c: [] } },
    ],
    ["spaces", '\n find( text = "a" , )\n', { text: "a" }],
    ["no arguments", "open()", {}],
  ])("%s", (_, body, expected) => {
    expect(read(calls(body))).toEqual([expected]);
  });

  test.each([
    ["no end", '<function_calls>find(text="a")', "end with </function_calls>"],
    ["no beginning", 'find(text="a")</function_calls>', "between <function_calls> and </function_calls>"],
    ["no call", calls(""), "no call between"],
    ["no bracket", calls('find(text="a"'), "must end with )"],
    ["a string without end", calls('find(text="a)'), "values as JSON"],
    ["a position", calls('find("a")'), "key=value"],
    ["an expression", calls("find(count=1+1)"), "must end with )"],
    ["a name as a value", calls("find(text=name)"), "values as JSON"],
    ["a call as a value", calls("find(text=open())"), "values as JSON"],
    ["an argument twice", calls("find(count=1, count=2)"), "occurs twice"],
    ["a list without end", calls("find(within=[1)"), "values as JSON"],
    ["nesting", calls(`find(within=${"[".repeat(100_000)})`), "values as JSON"],
    ["text after the calls", `${calls("open()")} Done.`, "after a call"],
  ])("malformed: %s", (_, turn, reason) => {
    expect(read(turn)).toContain(reason);
  });
});

test("markup of any form, cut and mixed, is read in linear time without an exception", () => {
  const pieces = [
    ...["<tool_call>", "</tool_call>", "<function=find>", "</function>", "<parameter=text>", "</parameter>"],
    ...[
      "[TOOL_CALLS]",
      "find",
      "[ARGS]",
      "[CALL_ID]",
      "[",
      "]",
      "{",
      "}",
      '{"name": "find", "arguments": {',
      "}}",
    ],
    ...[
      "<function_calls>",
      "</function_calls>",
      "find(",
      ")",
      "text=",
      '"',
      "'",
      "\\",
      ",",
      ":",
      "\n",
      " ",
      "1",
      "id",
    ],
  ];
  fc.assert(
    fc.property(fc.array(fc.constantFrom(...pieces), { maxLength: 40 }), (drawn) => {
      const parsed = parseCalls(drawn.join(""), tools);
      if (parsed.ok) for (const { text, tool } of parsed.calls) expect(JSON.parse(text).name).toBe(tool.name);
      else expect(parsed.reason).not.toBe("");
    }),
    { numRuns: 2000 },
  );
  for (const piece of [...pieces, tagged(parameter("text", "a")), "[TOOL_CALLS]find[ARGS]{}", "find()\n"])
    for (const start of [
      "",
      "<function_calls>",
      "[TOOL_CALLS] [",
      `<tool_call><function=find><parameter=filter>`,
    ])
      expect(parseCalls(start + piece.repeat(200_000 / piece.length), tools)).toHaveProperty("ok");
}, 60_000);
