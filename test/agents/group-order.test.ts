import { expect, test } from "vitest";
import { GroupOrder } from "../../lib/agents/group-order.ts";
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
