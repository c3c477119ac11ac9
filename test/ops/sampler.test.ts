import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { PrioritizedSampler } from "../../lib/ops/sampler.ts";
import { codeOf } from "../support/tensors.ts";
import { inDirectory } from "../support/tiny.ts";

describe("options", () => {
  it("have the paper's defaults", () => {
    using sampler = new PrioritizedSampler({ capacity: 5 });
    expect(sampler).toMatchObject({ capacity: 5, alpha: 0.1, beta: 0, draws: 0 });
    expect(sampler.total()).toBe(0);
  });

  it("are rejected out of range", () => {
    const make = (options: object) => codeOf(() => new PrioritizedSampler({ capacity: 4, ...options }));
    for (const capacity of [0, -1, 1.5, 2 ** 27 + 1, Number.NaN, "4"])
      expect(make({ capacity })).toBe("ERR_VALUE");
    for (const alpha of [-0.1, Number.NaN, Number.POSITIVE_INFINITY])
      expect(make({ alpha })).toBe("ERR_VALUE");
    for (const beta of [-0.1, 1.1, Number.NaN]) expect(make({ beta })).toBe("ERR_VALUE");
    for (const seed of [-1, 0.5, -1n, 1n << 64n]) expect(make({ seed })).toBe("ERR_VALUE");
    for (const device of ["tpu", "cuda:", "cuda:999", 1]) expect(make({ device })).toBe("ERR_DEVICE");
    expect(make({ gamma: 1 })).toBe("ERR_VALUE");
    expect(make({ seed: (1n << 64n) - 1n })).toBe("no error");
  });
});

describe("set and get", () => {
  it("behave as an array does; the total is Σ p^alpha, and the extremes are exact", () => {
    const update = fc.array(fc.tuple(fc.nat(15), fc.float({ min: 0, max: 1e6, noNaN: true })));
    fc.assert(
      fc.property(fc.array(update), fc.double({ min: 0, max: 2, noNaN: true }), (updates, alpha) => {
        using sampler = new PrioritizedSampler({ capacity: 16, alpha });
        const expected = new Float32Array(16);
        for (const pairs of updates) {
          sampler.set(
            pairs.map(([index]) => index),
            pairs.map(([, priority]) => priority),
          );
          for (const [index, priority] of pairs) expected[index] = priority;
        }
        expect(sampler.get(expected.map((_, i) => i))).toEqual(expected);
        const positive = expected.filter((p) => p > 0);
        const total = positive.reduce((sum, p) => sum + p ** alpha, 0);
        expect(Math.abs(sampler.total() - total)).toBeLessThanOrEqual(1e-9 * total);
        expect(sampler.min()).toBe(positive.length > 0 ? Math.min(...positive) : 0);
        expect(sampler.max()).toBe(positive.length > 0 ? Math.max(...positive) : 0);
      }),
    );
  });

  it("accept typed and plain arrays", () => {
    using sampler = new PrioritizedSampler({ capacity: 4 });
    sampler.set(Int32Array.of(1, 3), Float32Array.of(0.5, 2));
    sampler.set([0], [7]);
    sampler.set(Uint8Array.of(2), Float64Array.of(4));
    expect(sampler.get([0, 1, 2, 3])).toEqual(Float32Array.of(7, 0.5, 4, 2));
    sampler.set([], []);
  });

  it("reject every invalid index and priority, and then set nothing", () => {
    const badIndex = fc.oneof(
      fc.integer({ min: 8, max: 2 ** 31 - 1 }),
      fc.integer({ min: -(2 ** 31), max: -1 }),
      fc.constantFrom(0.5, 2 ** 32, Number.NaN, Number.POSITIVE_INFINITY),
    );
    const badPriority = fc.oneof(
      fc.double({ max: -Number.MIN_VALUE, noNaN: true }).filter((x) => Math.fround(x) < 0),
      fc.constantFrom(Number.NaN, Number.POSITIVE_INFINITY, 1e39),
    );
    const bad = fc.oneof(
      fc.record({ index: badIndex, priority: fc.constant(1), code: fc.constant("ERR_INDEX") }),
      fc.record({ index: fc.nat(7), priority: badPriority, code: fc.constant("ERR_PRIORITY") }),
    );
    fc.assert(
      fc.property(bad, fc.nat(3), ({ index, priority, code }, at) => {
        using sampler = new PrioritizedSampler({ capacity: 8 });
        const indices = [0, 1, 2, 3].toSpliced(at, 0, index);
        const priorities = [1, 1, 1, 1].toSpliced(at, 0, priority);
        expect(codeOf(() => sampler.set(indices, priorities))).toBe(code);
        expect(sampler.total()).toBe(0);
        if (code === "ERR_INDEX") expect(codeOf(() => sampler.get([index]))).toBe(code);
      }),
    );
  });

  it("reject lists of different lengths", () => {
    using sampler = new PrioritizedSampler({ capacity: 8 });
    expect(codeOf(() => sampler.set([1, 2], [1]))).toBe("ERR_SHAPE");
    expect(codeOf(() => sampler.set(Int32Array.of(1), new Float32Array(2)))).toBe("ERR_SHAPE");
  });
});

describe("sample", () => {
  it("draws in proportion to p^alpha, never at priority 0", () => {
    using sampler = new PrioritizedSampler({ capacity: 4, alpha: 2, beta: 0.5, seed: 1 });
    sampler.set([0, 1, 3], [1, 2, 3]);
    const { indices, probabilities, weights } = sampler.sample(20_000);
    const expected = [1 / 14, 4 / 14, 0, 9 / 14];
    const counts = [0, 0, 0, 0];
    for (const [i, index] of indices.entries()) {
      counts[index]!++;
      expect(probabilities[i]).toBeCloseTo(expected[index]!, 6);
      // (n·P)^-beta over that of the least probable leaf
      expect(weights[i]).toBeCloseTo((expected[index]! / expected[0]!) ** -0.5, 5);
    }
    for (const [index, count] of counts.entries()) {
      expect(Math.abs(count / 20_000 - expected[index]!)).toBeLessThan(0.015);
    }
    expect(counts[2]).toBe(0);
    expect(sampler.draws).toBe(20_000);
  });

  it("weights draws by a smaller beta on request, like a sampler with that beta", () => {
    const priorities = Float32Array.from({ length: 300 }, (_, i) => 1e-6 * 1.1 ** i);
    const make = (beta: number) => {
      const sampler = new PrioritizedSampler({ capacity: 300, alpha: 0.7, beta, seed: 4 });
      sampler.set([...priorities.keys()], priorities);
      return sampler;
    };
    using annealed = make(1);
    for (const beta of [0, 0.1, 0.4, 0.99, 1]) {
      using fixed = make(beta);
      using fresh = make(1);
      const expected = fixed.sample(500);
      const draws = fresh.sample(500, { beta });
      expect(draws.indices).toEqual(expected.indices);
      expect(draws.probabilities).toEqual(expected.probabilities);
      for (const [i, weight] of expected.weights.entries()) {
        expect(Math.abs(draws.weights[i]! / weight - 1)).toBeLessThan(1e-6);
      }
      annealed.sample(10, { beta });
    }
    expect(annealed.draws).toBe(50);
    expect(annealed.beta).toBe(1);
    using half = make(0.5);
    using none = make(0);
    for (const beta of [-0.1, 0.6, Number.NaN]) {
      expect(codeOf(() => half.sample(1, { beta }))).toBe("ERR_VALUE");
    }
    expect(codeOf(() => none.sample(1, { beta: 0.1 }))).toBe("ERR_VALUE");
    expect(none.sample(1, { beta: 0 }).weights).toEqual(Float32Array.of(1));
    expect(half.draws).toBe(0);
  });

  it("writes to the caller's arrays", () => {
    using sampler = new PrioritizedSampler({ capacity: 4 });
    sampler.set([2], [1]);
    const into = {
      indices: new Int32Array(3),
      probabilities: new Float32Array(3),
      weights: new Float32Array(3),
    };
    expect(sampler.sample(3, { into, stratified: true })).toBe(into);
    expect(into).toEqual({
      indices: Int32Array.of(2, 2, 2),
      probabilities: Float32Array.of(1, 1, 1),
      weights: Float32Array.of(1, 1, 1),
    });
    expect(codeOf(() => sampler.sample(4, { into }))).toBe("ERR_SHAPE");
    expect(codeOf(() => sampler.sample(3, { into: { ...into, weights: [] as never } }))).toBe("ERR_VALUE");
  });

  it("rejects an invalid count, and an empty sampler", () => {
    using sampler = new PrioritizedSampler({ capacity: 4 });
    expect(codeOf(() => sampler.sample(1))).toBe("ERR_EMPTY");
    sampler.set([1], [0]);
    expect(codeOf(() => sampler.sample(1))).toBe("ERR_EMPTY");
    for (const count of [0, -1, 1.5, Number.NaN, "2" as never]) {
      expect(codeOf(() => sampler.sample(count))).toBe("ERR_VALUE");
    }
  });

  it("is determined by the seed", () => {
    const draw = (seed: number) => {
      using sampler = new PrioritizedSampler({ capacity: 100, seed });
      sampler.set(
        Array.from({ length: 100 }, (_, i) => i),
        Array.from({ length: 100 }, (_, i) => 1 + (i % 7)),
      );
      return [...sampler.sample(10).indices, ...sampler.sample(10).indices];
    };
    expect(draw(5)).toEqual(draw(5));
    expect(draw(5)).not.toEqual(draw(6));
  });
});

describe("save and load", () => {
  it("continue with the same draws, in a new sampler or an existing one", async () => {
    await inDirectory((directory) => {
      const path = join(directory, "sampler.bin");
      using sampler = new PrioritizedSampler({ capacity: 9, alpha: 0.5, beta: 1, seed: 3 });
      sampler.set([1, 4, 8], [0.25, 1, 3]);
      sampler.sample(5);
      sampler.save(path);
      const expected = sampler.sample(6);
      using loaded = PrioritizedSampler.load(path);
      expect(loaded).toMatchObject({ capacity: 9, alpha: 0.5, beta: 1, draws: 5 });
      expect([loaded.min(), loaded.max()]).toEqual([0.25, 3]);
      expect(loaded.sample(6)).toEqual(expected);
      using reused = new PrioritizedSampler({ capacity: 9 });
      reused.set([0], [5]);
      reused.load(path);
      expect(reused.get([0, 1, 4, 8])).toEqual(Float32Array.of(0, 0.25, 1, 3));
      expect(reused.sample(6)).toEqual(expected);
    });
  });

  it("reject files that are missing, damaged, or of another capacity", async () => {
    await inDirectory((directory) => {
      const path = join(directory, "sampler.bin");
      using sampler = new PrioritizedSampler({ capacity: 9 });
      sampler.set([3], [2]);
      expect(["ERR_IO", "ERR_CHECKPOINT"]).toContain(codeOf(() => PrioritizedSampler.load(path)));
      expect(codeOf(() => sampler.save(join(directory, "no", "such", "place")))).toBe("ERR_IO");
      sampler.save(path);
      using other = new PrioritizedSampler({ capacity: 10 });
      expect(codeOf(() => other.load(path))).toBe("ERR_CHECKPOINT");
      const bytes = readFileSync(path);
      for (const damaged of [bytes.subarray(0, bytes.length - 1), Buffer.from(bytes).fill(255, 20, 24)]) {
        writeFileSync(path, damaged);
        expect(codeOf(() => sampler.load(path))).toBe("ERR_CHECKPOINT");
      }
      expect(sampler.get([3])).toEqual(Float32Array.of(2));
    });
  });
});

// Tests configured for a GPU require it.
const cuda = process.env.NLAC_TEST_DEVICE === "cuda";

describe("cuda", () => {
  it.skipIf(cuda)("is an error if it is not available, never a silent run on the CPU", async () => {
    await inDirectory((directory) => {
      const path = join(directory, "sampler.bin");
      using sampler = new PrioritizedSampler({ capacity: 4 });
      sampler.save(path);
      expect(codeOf(() => new PrioritizedSampler({ capacity: 4, device: "cuda" }))).toBe("ERR_DEVICE");
      expect(codeOf(() => PrioritizedSampler.load(path, { device: "cuda" }))).toBe("ERR_DEVICE");
      expect(codeOf(() => PrioritizedSampler.load(path, { gpu: 0 } as never))).toBe("ERR_VALUE");
    });
  });

  it.runIf(cuda)("draws as on the CPU, and continues from a CPU sampler's file", async () => {
    await inDirectory((directory) => {
      const path = join(directory, "sampler.bin");
      const options = { capacity: 5000, alpha: 0.6, beta: 0.4, seed: 9 };
      using onCpu = new PrioritizedSampler(options);
      using onGpu = new PrioritizedSampler({ ...options, device: "cuda" });
      const indices = Int32Array.from({ length: 9000 }, (_, i) => (i * 7919) % 5000);
      const priorities = Float32Array.from(indices, (_, i) => (i % 5 === 0 ? 0 : 1 / (1 + (i % 97))));
      for (const sampler of [onCpu, onGpu]) sampler.set(indices, priorities);
      expect(onGpu.total()).toBe(onCpu.total());
      expect([onGpu.min(), onGpu.max()]).toEqual([onCpu.min(), onCpu.max()]);
      expect(onGpu.sample(300)).toEqual(onCpu.sample(300));
      onCpu.save(path);
      const expected = onCpu.sample(300, { stratified: true });
      using loaded = PrioritizedSampler.load(path, { device: "cuda" });
      expect(loaded.sample(300, { stratified: true })).toEqual(expected);
    });
  });
});

describe("dispose", () => {
  it("may be called again; everything else throws after it", () => {
    const sampler = new PrioritizedSampler({ capacity: 4 });
    sampler.dispose();
    sampler.dispose();
    for (const call of [
      () => sampler.set([0], [1]),
      () => sampler.get([0]),
      () => sampler.total(),
      () => sampler.min(),
      () => sampler.max(),
      () => sampler.sample(1),
      () => sampler.draws,
      () => sampler.capacity,
      () => sampler.save("never-written"),
    ]) {
      expect(codeOf(call)).toBe("ERR_DISPOSED");
    }
  });
});
