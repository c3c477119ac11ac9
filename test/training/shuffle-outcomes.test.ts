import { describe, expect, it } from "vitest";
import type { Transition } from "../../lib/episodes/trajectory.ts";
import { withShuffledOutcomes } from "../../lib/training/shuffle-outcomes.ts";

const transitions = (count: number): Transition[] =>
  Array.from(
    { length: count },
    (_, i) =>
      ({
        ...{ turn: i, trajectory: i, action: [i], reward: i, received: i },
        ...{ terminated: i % 2 === 0, truncated: false, rest: undefined },
        observation: [{ role: "user", content: `o${i}` }],
      }) as unknown as Transition,
  );

describe("withShuffledOutcomes", () => {
  it.each([2, 3, 10, 64])("gives each of %d transitions the outcome of another one", (count) => {
    const before = transitions(count);
    for (let seed = 0; seed < 20; seed++) {
      const after = withShuffledOutcomes(before, seed);
      expect(after.map(({ action }) => action)).toEqual(before.map(({ action }) => action));
      expect(after.map(({ reward }) => reward).sort((a, b) => a - b)).toEqual(
        before.map(({ reward }) => reward),
      );
      for (const [i, { reward, received, observation, terminated }] of after.entries()) {
        expect(reward).not.toBe(i);
        // The parts of an outcome stay together.
        const from = before[reward]!;
        expect([received, observation, terminated]).toEqual([
          from.received,
          from.observation,
          from.terminated,
        ]);
      }
    }
  });

  it("gives no transition its own outcome from a copy of it in the batch", () => {
    const distinct = transitions(3);
    const before = [0, 0, 1, 0, 2, 0].map((i) => distinct[i]!);
    for (let seed = 0; seed < 50; seed++)
      for (const { turn, reward } of withShuffledOutcomes(before, seed)) expect(reward).not.toBe(turn);
    const copies = [distinct[1]!, distinct[1]!];
    expect(withShuffledOutcomes(copies, 0)).toEqual(copies);
  });

  it("tells transitions apart by their episode and their turn", () => {
    const batch = transitions(6);
    const sameEpisode = batch.map((one) => ({ ...one, trajectory: 0 }));
    const sameTurn = batch.map((one) => ({ ...one, turn: 0 }));
    for (const before of [sameEpisode, sameTurn])
      for (const [i, { reward }] of withShuffledOutcomes(before, 4).entries()) expect(reward).not.toBe(i);
  });

  it("leaves a single transition as it is, and changes none of its input", () => {
    const [one] = transitions(1);
    expect(withShuffledOutcomes([one!], 3)).toEqual([one]);
    const input = transitions(5);
    withShuffledOutcomes(input, 1);
    expect(input).toEqual(transitions(5));
  });

  it("depends on its seed only", () => {
    const orders = new Set<string>();
    for (let seed = 0; seed < 20; seed++) {
      const order = withShuffledOutcomes(transitions(8), seed).map(({ reward }) => reward);
      expect(withShuffledOutcomes(transitions(8), seed).map(({ reward }) => reward)).toEqual(order);
      orders.add(order.join());
    }
    expect(orders.size).toBeGreaterThan(10);
  });
});
