import { expect, test } from "vitest";
import { GroupOrder } from "../../lib/agents/group-order.ts";
import { Tasks, tasksConfig } from "../../lib/agents/tasks.ts";
import type { EpisodeRecord } from "../../lib/episodes/records.ts";

/** The numbers of episodes in the order of training, with a stroke after each added one. */
function orderOf(groups: (string | undefined)[], size: number): string {
  const order = new GroupOrder(size);
  return groups
    .map((group, id) => order.add({ id, group } as EpisodeRecord))
    .map((records) => records.map(({ id }) => id).join(" "))
    .join(" | ");
}

test("without groups, episodes come in the order of their file", () => {
  expect(orderOf([undefined, "a", undefined], 1)).toBe("0 | 1 | 2");
});

test("groups come when they are complete; episodes without a group, and incomplete groups, do not", () => {
  expect(orderOf(["a", "b", undefined, "b", "a", "a", "b", "a"], 2)).toBe(" |  |  | 1 3 | 0 4 |  |  | 5 7");
});

test("an episode beyond a leased group's size is left out; it begins no group", () => {
  const { group } = new Tasks([{}], tasksConfig.parse({ groupSize: 2 })).next()!;
  expect(orderOf([group, group, group, "a", group, "a"], 2)).toBe(" | 0 1 |  |  |  | 3 5");
});

test("a group that stays incomplete while 1,024 others grow is dropped", () => {
  const others = (count: number) => Array.from({ length: count }, (_, i) => `other ${i}`);
  // As the group is completed by the last episode, or only begun again.
  const last = (count: number) =>
    orderOf(["a", ...others(count), "a"], 2)
      .split(" | ")
      .at(-1);
  expect(last(1023)).toBe("0 1024");
  expect(last(1024)).toBe("");
});
