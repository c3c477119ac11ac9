import { setTimeout as wait } from "node:timers/promises";
import { expect, test } from "vitest";
import { Batches, type Player } from "../../lib/playing/batches.ts";

/** A player that records the seeds of each batch; the request's seed identifies it. */
function recorder(unbatched = false) {
  const batches: unknown[][] = [];
  const state = { fails: false };
  const player = {
    unbatched,
    generate: async (requests: readonly { seed: number }[]) => {
      batches.push(requests.map(({ seed }) => seed));
      await wait(5);
      if (state.fails) throw new Error("out of memory");
      return requests.map(({ seed }) => ({ text: `reply ${seed}` }));
    },
  } as unknown as Player;
  return { player, batches, state };
}

const request = (seed: number) => ({ tokens: [1], maxNewTokens: 1, seed });
const text = (reply: unknown) => (reply as { text: string }).text;

test("a batch starts when every episode waits for one, sorted by order and not by arrival", async () => {
  const { player, batches } = recorder();
  const queue = new Batches(player, 3, Number.POSITIVE_INFINITY);
  const first = [2, 0].map((order) => queue.generate(order, request(order)));
  await wait(20);
  expect(batches).toEqual([]);
  const replies = await Promise.all([...first, queue.generate(1, request(1))]);
  expect(replies.map(text)).toEqual(["reply 2", "reply 0", "reply 1"]);
  expect(batches).toEqual([[0, 1, 2]]);
});

test("patience beyond what a timer can wait has no limit", async () => {
  const { player, batches } = recorder();
  const queue = new Batches(player, 2, 2 ** 31);
  const first = queue.generate(0, request(0));
  await wait(20);
  expect(batches).toEqual([]);
  await Promise.all([first, queue.generate(1, request(1))]);
  expect(batches).toEqual([[0, 1]]);
});

test("an episode that has left is not waited for", async () => {
  const { player, batches } = recorder();
  const queue = new Batches(player, 2, Number.POSITIVE_INFINITY);
  const waiting = queue.generate(0, request(7));
  queue.leave();
  expect(text(await waiting)).toBe("reply 7");
  expect(batches).toEqual([[7]]);
});

test("with patience a batch starts without the slow ones, which get the next one", async () => {
  const { player, batches } = recorder();
  const queue = new Batches(player, 3, 1);
  const first = Promise.all([queue.generate(0, request(0)), queue.generate(1, request(1))]);
  while (batches.length === 0) await wait(1);
  const late = queue.generate(2, request(2));
  expect((await first).map(text)).toEqual(["reply 0", "reply 1"]);
  expect(text(await late)).toBe("reply 2");
  expect(batches).toEqual([[0, 1], [2]]);
});

test("an unbatched player gets each request at once", async () => {
  const { player, batches } = recorder(true);
  const queue = new Batches(player, 3, Number.POSITIVE_INFINITY);
  await Promise.all([queue.generate(1, request(1)), queue.generate(0, request(0))]);
  expect(batches).toEqual([[1], [0]]);
});

test("an error rejects every request of its batch, and the next batch runs", async () => {
  const { player, state } = recorder();
  const queue = new Batches(player, 2, Number.POSITIVE_INFINITY);
  const both = () => Promise.allSettled([queue.generate(0, request(0)), queue.generate(1, request(1))]);
  state.fails = true;
  expect((await both()).map(({ status }) => status)).toEqual(["rejected", "rejected"]);
  state.fails = false;
  expect((await both()).map(({ status }) => status)).toEqual(["fulfilled", "fulfilled"]);
});
