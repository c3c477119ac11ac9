import { expect, test } from "vitest";
import { membersOf, shapeOf } from "../../lib/base/json-text.ts";

test("values keep their spelling", () => {
  expect(membersOf('{"a": 250.0, "b\\u0063": {"a": [1e3, "x, }"]} , "d":-0}')).toEqual([
    { key: "a", value: "250.0" },
    { key: "bc", value: '{"a": [1e3, "x, }"]}' },
    { key: "d", value: "-0" },
  ]);
  expect(membersOf("{}")).toEqual([]);
});

test("the scan ends with the first bracket, and counts nesting outside of strings", () => {
  const text = '  {"a": "[[[", "b": [[{}]]} {"c": 1}';
  const { depth, end, keys } = shapeOf(text);
  expect([depth, text.slice(0, end), keys.map(({ text: key }) => key)]).toEqual([
    ...[4, '  {"a": "[[[", "b": [[{}]]}', ["a", "b"]],
  ]);
  expect(shapeOf('{"a": [1, 2}, "b"')).toEqual({ depth: 2, keys: expect.any(Array) });
  expect(shapeOf("no JSON")).toEqual({ depth: 0, keys: [] });
});
