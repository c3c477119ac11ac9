import { expect, test, vi } from "vitest";
import { messageOf, NlacError } from "../../lib/base/errors.ts";
import {
  closeEnvironment,
  descriptionProblems,
  inEnvironment,
  requireDescription,
  tasksOf,
} from "../../lib/contract/checks.ts";

const described = { name: "desk", actionFormat: "text", maxTurns: 3 } as const;

test.each([
  [{ maxTurns: undefined }, "maxTurns must be an integer of at least 1; it is undefined"],
  [{ maxTurns: "3" }, 'maxTurns must be an integer of at least 1; it is "3"'],
  [{ maxTurns: 0 }, "maxTurns must be an integer of at least 1; it is 0"],
  [{ actionFormat: "txt" }, 'actionFormat must be one of text, tool, call, solution; it is "txt"'],
  [{ idle: "wait" }, 'idle must be an action, such as { text: "wait" }, or a call made by callAction'],
  [{ stepTimeout: 0 }, "stepTimeout must be a positive number, in milliseconds; it is 0"],
  [{ name: undefined }, "name must be a string; it is undefined"],
])("a description with %o has a problem", (wrong, problem) => {
  const environment = { ...described, ...wrong } as never;
  expect(descriptionProblems(environment)).toEqual([problem]);
  expect(() => requireDescription(environment, "desk.ts")).toThrow(
    expect.objectContaining({ code: "ERR_CONFIG", message: `desk.ts: ${problem}.` }),
  );
});

test("a valid description has none", () => {
  expect(descriptionProblems({ ...described, idle: { text: "" }, rewardRange: [-1, 1] })).toEqual([]);
  requireDescription(described, "desk.ts");
});

test("tasks that fail or are no list are a fault of the environment", async () => {
  const listed = (tasks: unknown) => tasksOf({ name: "desk", tasks: tasks as never }, "test");
  expect(await listed(() => ["a"])).toEqual(["a"]);
  const fault = (message: string) => ({ code: "ERR_ENVIRONMENT", message });
  await expect(listed(async () => undefined)).rejects.toMatchObject(
    fault("desk: the test tasks must be a list of tasks; they are undefined."),
  );
  const fails = () => {
    throw new TypeError("no database");
  };
  await expect(listed(fails)).rejects.toMatchObject(
    fault("desk: the test tasks cannot be listed: no database"),
  );
});

test("closing that fails or takes too long is a warning", async () => {
  const warn = vi.fn();
  const close = async () => {
    throw new Error("the socket is closed");
  };
  await closeEnvironment({ name: "desk", close }, warn);
  await closeEnvironment({ name: "desk", close: async () => {} }, warn);
  await closeEnvironment({ name: "desk", close: () => new Promise(() => {}), stepTimeout: 1 }, warn);
  expect(warn.mock.calls).toEqual([
    ["desk: closing failed: the socket is closed"],
    ["desk: closing failed: The environment gave no answer within 1 ms."],
  ]);
});

test("a failed request says why", async () => {
  const failed = inEnvironment("desk: a step failed", () => fetch("http://127.0.0.1:1"));
  await expect(failed).rejects.toThrow(/^desk: a step failed: fetch failed: (bad port|.*ECONNREFUSED.*)$/);
  const refused = new TypeError("fetch failed", {
    cause: Object.assign(new Error(""), { code: "ECONNREFUSED" }),
  });
  expect(messageOf(refused)).toBe("fetch failed: ECONNREFUSED");
  expect(messageOf(new Error("a", { cause: new Error("b") }))).toBe("a");
  expect(messageOf("text")).toBe("text");
  expect(messageOf(Object.create(null))).toBe("an error without a readable message");
  expect(messageOf(new NlacError("ERR_SERVICE", "down"))).toBe("down");
});
