import { expect, test } from "vitest";
import { pythonCalls } from "../../lib/prompts/python-calls.ts";

/** The JSON of the calls of a turn, or why there are none. */
const read = (text: string) => {
  const parsed = pythonCalls(`${text}</function_calls>`);
  return parsed.ok ? parsed.calls.map(({ json }) => json) : parsed.reason;
};

test("values are JSON, with their spelling, or Python's literals", () => {
  expect(read('\nf(a=250.0, b=[1, {"c": null}])\ng.h()\n')).toEqual([
    '{"name": "f", "arguments": {"a": 250.0, "b": [1, {"c": null}]}}',
    '{"name": "g.h", "arguments": {}}',
  ]);
  expect(read("f(a=True, b=None, c={'k': 'it\\'s'}, d='\\x41\\n\"', e=\"\\'\")")).toEqual([
    '{"name": "f", "arguments": {"a": true, "b": null, "c": {"k": "it\'s"}, "d": "A\\n\\"", "e": "\'"}}',
  ]);
});

test("names are those that a tool may have", () => {
  expect(read("files/open()\n2fa-check()")).toEqual([
    '{"name": "files/open", "arguments": {}}',
    '{"name": "2fa-check", "arguments": {}}',
  ]);
});

test.each([
  ["", /there is no call/],
  ["f", /must be written name\(key=value\)/],
  ["f(1)", /arguments of f must be written key=value/],
  ["f(a=x)", /key=value, with values as JSON/],
  ["f(a=01)", /key=value, with values as JSON/],
  ["f(a={1: 2})", /key=value, with values as JSON/],
  ["f(a=1 b=2)", /must end with \)/],
  ["f(a=1, a=2)", /"a" occurs twice/],
  [`f(a=${"[".repeat(100)}`, /key=value, with values as JSON/],
])("%s is refused with a reason", (text, reason) => {
  expect(read(text)).toMatch(reason);
});

test("nothing may stand after the closing tag, and the tag must be there", () => {
  expect(pythonCalls("f()</function_calls> and more")).toMatchObject({ ok: false });
  expect(pythonCalls("f()")).toMatchObject({ ok: false });
  expect(pythonCalls("f()\n</function_calls>\n")).toMatchObject({ ok: true });
});
