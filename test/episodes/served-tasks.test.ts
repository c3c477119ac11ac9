import { expect, test } from "vitest";
import { Tasks, tasksConfig } from "../../lib/agents/tasks.ts";
import { isLeasedGroup, servedTask } from "../../lib/episodes/served-tasks.ts";

const lease = (groupSize: number) => new Tasks([{}], tasksConfig.parse({ groupSize })).next()!;

test("the task of a lease is known by its episode, its group or its parent", () => {
  const { episode, group } = lease(2);
  expect(servedTask({ task: episode })).toBe("task 0");
  expect(servedTask({ task: episode, group: group! })).toBe("task 0");
  expect(servedTask({ task: "mine", group: group! })).toBe("task 0");
  expect(servedTask({ task: "mine", parent: episode })).toBe("task 0");
  expect(isLeasedGroup(group!)).toBe(true);
});

test("a held-out task has another name than the training task of its number", () => {
  expect(servedTask({ task: lease(1).episode, split: "test" })).toBe("held-out task 0");
});

test("other episodes have the task of their group, or an unknown one", () => {
  expect(servedTask({ task: "customer 1", group: "refunds" })).toBe("refunds");
  expect(servedTask({ task: "customer 1" })).toBeUndefined();
  expect(servedTask({ task: "task-1-x" })).toBeUndefined();
});
