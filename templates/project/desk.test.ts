/** Tests of the environment: `npm test`. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { checkEnvironment } from "nlac/environments";
import desk, { orders } from "./desk.ts";

test("the desk keeps the contract of environments", async () => {
  assert.deepEqual(await checkEnvironment(desk), []);
});

for (const [kind, order] of Object.entries(orders)) {
  test(`bringing ${order.join(", ")} gets a ${kind}`, async () => {
    const episode = await desk.start({ kind, split: "train" }, { seed: 0 });
    const results = [];
    for (const text of order) results.push(await episode.step({ text }));
    assert.deepEqual(
      results.map(({ reward, terminated }) => [reward, terminated]),
      order.map((_, i) => (i === order.length - 1 ? [1, true] : [0, false])),
    );
    await episode.close();
  });
}

test("a wrong thing costs a move, and the desk says what it wants", async () => {
  const episode = await desk.start({ kind: "loan", split: "train" }, { seed: 0 });
  const { observation, reward, terminated } = await episode.step({ text: "pen" });
  assert.equal(
    observation[0]?.content,
    "The desk first wants the letter. [loan; moves left: 4; brought: nothing]",
  );
  assert.deepEqual([reward, terminated], [0, false]);
  await episode.close();
});
