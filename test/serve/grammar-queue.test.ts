import { describe, expect, it, vi } from "vitest";
import { compileMs, GrammarQueue, maxCompileMs } from "../../lib/serve/grammar-queue.ts";

const literal = (text: string) => ({ literal: text });
const tick = () => new Promise((resolve) => setImmediate(resolve));

describe("requests with new grammars", () => {
  it("are compiled one at a time: clients that used the least time first, then the cheapest", async () => {
    const queue = new GrammarQueue();
    const begun: string[] = [];
    const running = new Map<string, () => void>();
    const ask = (name: string, client: string, schema: object = { type: "null" }) =>
      queue.run(
        { sequence: [literal(name), { jsonSchema: { ...schema } }] },
        ["address", client],
        async (compiled) => {
          begun.push(name);
          await new Promise<void>((resolve) => running.set(name, resolve));
          compiled();
        },
      );
    const end = async (name: string) => {
      await new Promise((resolve) => setTimeout(resolve, 5));
      running.get(name)!();
      await tick();
      await tick();
    };
    const all = [
      ask("a1", "a"),
      ask("a2", "a"),
      ask("a3", "a"),
      ask("c", "c", { type: "string", maxLength: 500 }),
      ask("b", "b"),
    ];
    await tick();
    expect(begun).toEqual(["a1"]);
    for (const name of ["a1", "b", "c", "a2", "a3"]) {
      expect(begun.at(-1)).toBe(name);
      await end(name);
    }
    await Promise.all(all);
    // A grammar that was compiled does not wait.
    const slow = ask("d", "d");
    const known = ask("a1", "a");
    await tick();
    expect(new Set(begun.slice(-2))).toEqual(new Set(["d", "a1"]));
    for (const name of ["d", "a1"]) await end(name);
    await Promise.all([slow, known]);
  });

  it("do not wait longer than 10 s for one that is not done", async () => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
    try {
      const queue = new GrammarQueue();
      void queue.run(literal("x"), ["a"], () => new Promise(() => {}));
      const begun: string[] = [];
      const next = queue.run(literal("y"), ["b"], async () => void begun.push("y"));
      await vi.advanceTimersByTimeAsync(9_990);
      expect(begun).toEqual([]);
      await vi.advanceTimersByTimeAsync(20);
      expect(begun).toEqual(["y"]);
      await next;
    } finally {
      vi.useRealTimers();
    }
  });

  it("continue after a failed one", async () => {
    const queue = new GrammarQueue();
    const failing = queue.run(literal("x"), ["a"], () => Promise.reject(new Error("refused")));
    const next = queue.run(literal("y"), ["a"], async () => "done");
    await expect(failing).rejects.toThrow("refused");
    expect(await next).toBe("done");
  });
});

describe("the estimate of a compile time", () => {
  const object = (count: number, more: object = {}) => ({
    jsonSchema: {
      type: "object",
      properties: Object.fromEntries(Array.from({ length: count }, (_, i) => [`p${i}`, { type: "string" }])),
      ...more,
    },
  });

  it("grows with the causes of slow compilation, and accepts ordinary schemas", () => {
    expect(compileMs(object(50))).toBeLessThan(100);
    expect(compileMs(object(1500))).toBeGreaterThan(maxCompileMs);
    expect(compileMs({ jsonSchema: { type: "string", maxLength: 1e15 } })).toBeLessThan(maxCompileMs);
    const patterns = Array.from({ length: 100 }, (_, i) => ({
      type: "string",
      pattern: `^[a-z]{1,64}${i}$`,
    }));
    expect(compileMs({ jsonSchema: { anyOf: patterns } })).toBeGreaterThan(maxCompileMs);
  });
});
