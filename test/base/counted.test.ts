import { expect, test } from "vitest";
import { counted } from "../../lib/base/counted.ts";

test("one has no plural, and thousands are separated", () => {
  expect([0, 1, 2, 1048].map((count) => counted(count, "update"))).toEqual([
    ...["0 updates", "1 update", "2 updates", "1,048 updates"],
  ]);
  expect(counted(2_000_000, "episode", "2 million")).toBe("2 million episodes");
});
