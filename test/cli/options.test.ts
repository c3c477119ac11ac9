import { expect, test } from "vitest";
import { collectOrigins } from "../../lib/cli/options.ts";

test("origins get the form of the header Origin, and other texts are refused", () => {
  const origin = (text: string) => collectOrigins(text, []);
  expect(collectOrigins("*", ["https://a.example"])).toEqual(["https://a.example", "*"]);
  expect(origin("http://localhost:3000")).toEqual(["http://localhost:3000"]);
  // No browser sends a final slash, capital letters or the usual port.
  expect(origin("https://Chat.Example:443/")).toEqual(["https://chat.example"]);
  expect(origin("chrome-extension://abc/")).toEqual(["chrome-extension://abc"]);
  expect(origin("null")).toEqual(["null"]);
  for (const text of ["", "chat.example", "https://", "https://chat.example/page", "https://a b", "foo"])
    expect(() => origin(text), text).toThrow(/must be an origin/);
});
