import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { homedir, tmpdir } from "node:os";
import { join, relative } from "node:path";
import { describe, expect, it } from "vitest";
import { renderSvg } from "../../lib/bench/chart.ts";
import {
  formatFigure,
  formatSpeedup,
  formatTime,
  formatTimes,
  isExceeded,
  threeDigits,
} from "../../lib/bench/format.ts";
import { growthPerRequest, heapBound, heldBytes, maxGrowth, processBound } from "../../lib/bench/growth.ts";
import { randomBits, spread, uniform } from "../../lib/bench/inputs.ts";
import { measurePeakMemory } from "../../lib/bench/memory.ts";
import { countElements, modelShapes } from "../../lib/bench/model-shapes.ts";
import { prompts } from "../../lib/bench/prompts.ts";
import {
  type CaseResult,
  exceeded,
  type Report,
  runSuite,
  summarize,
  type TrialEnd,
} from "../../lib/bench/run.ts";
import { statistics } from "../../lib/bench/statistics.ts";
import type { Case, Figure, Row } from "../../lib/bench/suite.ts";
import { suites } from "../../lib/bench/suite-list.ts";
import { families } from "../../lib/bench/suites/families.ts";
import { renderBar, renderCase } from "../../lib/bench/table.ts";
import { packageRoot } from "../../lib/native/paths.ts";

const row = (role: Row["role"], name: string, resultBytes: number | null = 0): Row => ({
  ...{ role, name, implementation: name, resultBytes },
});
const example: Case = {
  id: "example",
  title: "an example",
  parameters: {},
  timing: { warmup: 1, calls: 1, seconds: 0 },
  work: { amount: 2e9, unit: "GB/s" },
  tolerance: 0.01,
  rows: [],
};
const trial = (samples: number[], check: number | null = null, bytes: number | null = null): TrialEnd => ({
  ...{ samples, check, bytes, versions: {} },
});
const plain = { columns: 100, colour: false };

/** Ours in 100 ms, a peer in 300, one that fails, and a limit of 50. */
function summarized(): CaseResult {
  return summarize(example, [
    [row("ours", "nlac", 1_000_000), [trial([90, 100], 1, 3_000_000), trial([100, 110], 1, 5_000_000)]],
    [row("peer", "slow"), [trial([300], 1.001, 8_000_000)]],
    [row("peer", "wrong"), [trial([400], 1.2)]],
    [row("peer", "broken"), [trial([1]), { missing: "failed: ValueError: no" }]],
    [row("limit", "copy"), [trial([50])]],
  ]);
}

describe("statistics", () => {
  it("are order statistics, linear between neighbours", () => {
    expect(statistics([4, 1, 3, 2])).toEqual({ samples: 4, min: 1, q1: 1.75, median: 2.5, q3: 3.25 });
    expect(statistics([7])).toEqual({ samples: 1, min: 7, q1: 7, median: 7, q3: 7 });
    expect(statistics([10, 9, 100]).median).toBe(10); // numbers, not text, are sorted
  });

  it("of a case: rates, shares of the limit, speed-ups and agreement", () => {
    const [ours, slow, wrong, broken, limit] = summarized().rows;
    expect(ours).toMatchObject({ rate: 20, ofLimit: 0.5, speedup: null, agrees: null });
    expect(ours).toMatchObject({ trialMedians: [95, 105], bytes: 4_000_000, scratchBytes: 3_000_000 });
    expect(ours!.time).toMatchObject({ samples: 4, min: 90, median: 100 });
    expect(slow).toMatchObject({ speedup: 3, agrees: true, bytes: 8_000_000 });
    expect(wrong).toMatchObject({ agrees: false, bytes: null });
    expect(broken).toMatchObject({ missing: "failed: ValueError: no", time: null, speedup: null });
    expect(limit).toMatchObject({ ofLimit: 1, speedup: null });
  });
});

describe("growth of memory", () => {
  it("is the memory in use, not V8's limit", () => {
    const before = heldBytes();
    const kept = Buffer.alloc(64 * 2 ** 20, 1);
    const [outside, objects] = [heldBytes(), Array.from({ length: 2 ** 20 }, () => ({}))];
    expect((outside.process - before.process) / 2 ** 20).toBeGreaterThan(48);
    expect((outside.heap - before.heap) / 2 ** 20).toBeLessThan(16);
    expect((heldBytes().heap - outside.heap) / 2 ** 20).toBeGreaterThan(16);
    expect([kept.at(-1), objects.length]).toEqual([1, 2 ** 20]);
  });

  /** A thousand requests a sample, `bytes` of each. */
  const sampled = (bytes: (requests: number) => number) =>
    Array.from({ length: 100 }, (_, i) => ({ requests: 1000 * (i + 1), bytes: bytes(1000 * (i + 1)) }));

  it("is a slope that neither the beginning, a step nor lone samples decide", () => {
    expect(growthPerRequest(sampled((requests) => 5e8 + 120 * requests))).toBeCloseTo(120, 9);
    expect(growthPerRequest(sampled((requests) => 5e8 + (requests <= 10_000 ? 9e4 * requests : 9e8)))).toBe(
      0,
    );
    expect(growthPerRequest(sampled((requests) => (requests > 30_000 ? 6e8 : 5e8)))).toBe(0);
    expect(growthPerRequest(sampled((requests) => 5e8 + (requests % 7000 === 0 ? 5e7 : 0)))).toBe(0);
    // A leak under a saw tooth of half a MiB.
    const tooth = (requests: number) => 5e8 + 100 * requests + ((requests / 1000) % 5) * 2 ** 17;
    expect(Math.abs(growthPerRequest(sampled(tooth)) - 100)).toBeLessThan(10);
  });

  it("may be large allocations, or many small ones", () => {
    expect(maxGrowth(1_000_000, processBound)).toBe(64);
    expect(maxGrowth(1000, processBound)).toBeCloseTo(2 ** 23 / 900, 9);
    expect(maxGrowth(100, processBound)).toBeGreaterThan(maxGrowth(1000, processBound));
    expect(maxGrowth(1_000_000, heapBound)).toBe(8);
  });
});

describe("figures", () => {
  const figure = (value: number, most: number | null): Figure => ({
    ...{ name: "event loop p99", value, unit: "ms", most },
  });

  it("other than times are the worst of the trials, and are compared with their bounds", () => {
    const ends = [3, 12, 5].map((value) => ({
      ...trial([100]),
      figures: [figure(value, 10), { ...figure(value, null), name: "event loop max" }],
    }));
    const result = summarize(example, [[row("ours", "nlac", null), ends]]);
    expect(result.rows[0]!.figures.map(({ value }) => value)).toEqual([12, 12]);
    expect(result.rows[0]!.figures.map(isExceeded)).toEqual([true, false]);
    expect(isExceeded(figure(10, 10))).toBe(false);
    expect(exceeded({ cases: [result, summarized()] } as unknown as Report)).toEqual([
      "example: event loop p99 12.0 ms, of 10.0 at most",
    ]);
    expect(renderCase(result, plain)).toMatch(
      /\n\n! event loop p99 12\.0 ms, of 10\.0 at most\nevent loop max 12\.0 ms$/,
    );
  });

  it("have three digits and a unit", () => {
    expect([0.00005, 0.0123, 1, 412.34, 1912].map(formatTime)).toEqual([
      ...["50.0 ns", "12.3 µs", "1.00 ms", "412 ms", "1.91 s"],
    ]);
    expect(formatTimes(999, 1400)).toBe("999–1400 ms");
    expect([0, 0.05, 1234.5].map(threeDigits)).toEqual(["0", "0.0500", "1235"]);
    expect([0.5, 4.638, 1234.5].map(formatSpeedup)).toEqual(["0.500 ×", "4.64 ×", "1235 ×"]);
  });

  it("become bars to an eighth of a cell", () => {
    expect(renderBar(1, 10)).toBe("█".repeat(10));
    expect(renderBar(0.55, 10)).toBe("█████▌");
    expect(renderBar(0.0001, 10)).toBe("▏");
    expect(renderBar(0, 10)).toBe("");
    expect(renderBar(0.5, 4, "▒")).toBe("▒▒");
  });
});

describe("the table", () => {
  it("contains a row's figures, and names what is missing or differs", () => {
    const lines = renderCase(summarized(), plain).split("\n");
    const of = (name: string) => lines.find((line) => line.startsWith(name))!.split(/ {2,}/);
    expect(lines[2]!.trim().split(/ {2,}/)).toEqual([
      ...["median", "quartiles", "least", "memory", "scratch", "GB/s", "of limit", "speed-up"],
    ]);
    expect(of("nlac")).toEqual([
      "nlac",
      "100 ms",
      "97.5–103 ms",
      "90.0 ms",
      "4.0 MB",
      "3.0 MB",
      "20.0",
      "50 %",
    ]);
    expect(of("slow").slice(-2)).toEqual(["17 %", "3.00 ×"]);
    expect(of("broken")).toEqual(["broken", "failed: ValueError: no"]);
    expect(lines.at(-1)).toBe("! wrong computes another result: 1.2; nlac has 1.");
  });

  it("fits its columns, with the bars beside it or below", () => {
    const below = renderCase(summarized(), plain).split("\n");
    const beside = renderCase(
      summarize(example, [
        [row("ours", "nlac", null), [trial([1])]],
        [row("peer", "peer", null), [trial([4])]],
      ]),
      plain,
    ).split("\n");
    for (const line of [...below, ...beside]) expect(line.length).toBeLessThanOrEqual(100);
    expect(below.filter((line) => line.includes("█"))).toHaveLength(3);
    expect(below.find((line) => line.includes("▒"))).toMatch(/^copy +▒+[▏▎▍▌▋▊▉]? 50\.0 ms$/);
    const bars = beside.map((line) => line.split("█").length - 1).filter((count) => count > 0);
    expect(bars[1]! / bars[0]!).toBeCloseTo(4, 0);
    expect(beside).toHaveLength(5);
  });

  it("has colours for a terminal only", () => {
    const code = String.fromCharCode(27);
    expect(renderCase(summarized(), plain)).not.toContain(code);
    expect(renderCase(summarized(), { columns: 100, colour: true })).toContain(`${code}[32mnlac`);
  });
});

it("the chart draws every row to scale and escapes its text", () => {
  const result = { ...summarized(), title: "a < b & c" };
  const figure: Figure = { name: "growth", value: 3, unit: "bytes a request", most: 64 };
  const report = {
    ...{ suite: "ema", date: "2026-01-02T03:04:05Z", device: "cpu", threads: 2, trials: 3, quick: false },
    machine: { cpu: "CPU", cores: 2, memory: 1, gpu: null, kernel: "linux", node: "20", busy: 0 },
    source: { version: "1.0.0", commit: "abc" },
    cases: [result],
  } satisfies Report;
  const svg = renderSvg(report);
  const widths = [...svg.matchAll(/<rect class="(?:ours|peer|limit)"[^>]* width="([\d.]+)"/g)].map(([, w]) =>
    Number(w),
  );
  expect(widths).toEqual([135, 405, 540, 67.5]);
  expect(svg).toContain("a &lt; b &amp; c");
  expect(svg).toContain("failed: ValueError: no");
  const watched = { ...result, rows: [{ ...result.rows[0]!, figures: [figure] }] };
  expect(renderSvg({ ...report, cases: [watched] })).toContain(formatFigure(figure));
  expect(svg).toContain("CPU, 2 of 2 cores · cpu · nlac 1.0.0 at abc · 2026-01-02");
});

describe("inputs", () => {
  it("spread over their range", () => {
    const values = uniform(3, 100_000);
    expect(values.reduce((sum, value) => sum + value, 0) / values.length).toBeCloseTo(0.5, 2);
    const wide = spread(3, 3_000_000, 4);
    expect(Math.max(...wide.subarray(0, 1000))).toBeGreaterThan(3.9);
    expect(wide.every((value) => Math.abs(value) <= 4)).toBe(true);
    expect(wide[2 ** 20 + 7]).toBe(wide[0]);
    expect(randomBits(1, 3)).not.toEqual(randomBits(2, 3));
  });

  const cache = process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache");
  const python = join(cache, "nlac", "peers", "bin", "python");

  it("are what the peers compute", ({ skip }) => {
    if (!existsSync(python)) skip("scripts/peers.sh has not run");
    const script = `import json, common
print(json.dumps([common.random_bits(2**32 - 1, 4).tolist(), common.uniform(5, 4).tolist(), common.spread(6, 4, 0.3).tolist()]))`;
    const printed = execFileSync(python, ["-c", script], { cwd: "bench/peers", encoding: "utf8" });
    expect(JSON.parse(printed)).toEqual([
      [...randomBits(2 ** 32 - 1, 4)],
      [...uniform(5, 4)],
      [...spread(6, 4, 0.3)],
    ]);
  });

  it("are prompts that share a beginning, or are as long and share none", ({ skip }) => {
    const given = { groups: 2, texts: 3, shared: 40, own: 5 };
    const [sharing, apart] = [prompts(given), prompts(given, false)];
    const beginnings = (texts: number[][]) => texts.map((ids) => ids.slice(0, 40).join(" "));
    expect([...sharing, ...apart].map(({ length }) => length)).toEqual(new Array(12).fill(45));
    expect(new Set(beginnings(sharing)).size).toBe(2);
    expect(beginnings(sharing)[0]).toBe(beginnings(sharing)[2]);
    // The first ids differ too, so that no cached prefix can be used.
    expect(new Set(apart.map(([first]) => first)).size).toBe(6);
    expect(apart.map((ids) => ids.slice(40))).toEqual(sharing.map((ids) => ids.slice(40)));
    if (!existsSync(python)) skip("scripts/peers.sh has not run");
    const script = `import json, generation; print(json.dumps(generation.prompts(${JSON.stringify(given)})))`;
    const printed = execFileSync(python, ["-c", script], { cwd: "bench/peers", encoding: "utf8" });
    expect(JSON.parse(printed)).toEqual(sharing);
  });

  it("have the shapes of the models", () => {
    expect(countElements(modelShapes("SmolLM2-135M"))).toBe(134_515_008);
    expect(countElements(modelShapes("Qwen2.5-3B"))).toBe(3_085_938_688);
    expect(countElements(modelShapes("Qwen2.5-7B"))).toBe(7_615_616_512);
  });
});

// The kernel may take pages back, and V8 may collect garbage, between the two measurements.
it("peak memory is the largest use beyond the start", { retry: 3 }, ({ skip }) => {
  const peak = measurePeakMemory("cpu");
  const mebibytes = (count: number) => Buffer.alloc(count * 2 ** 20, 1).at(-1);
  mebibytes(64);
  const bytes = peak();
  if (bytes === null) skip("this system does not tell");
  expect(bytes! / 2 ** 20).toBeGreaterThan(60);
  expect(bytes! / 2 ** 20).toBeLessThan(96);
});

describe("suites", () => {
  it.each(suites)("$name: cases have names of their own, and rows start with ours", (suite) => {
    for (const device of ["cpu", "cuda"]) {
      for (const quick of [false, true]) {
        const cases = suite.cases({ device, quick });
        expect(new Set(cases.map(({ id }) => id)).size).toBe(cases.length);
        for (const { rows, work } of cases) {
          expect(rows[0]!.role).toBe("ours");
          expect(
            rows
              .filter(({ role }) => role !== "ours")
              .every(({ script }) => existsSync(`bench/peers/${script}`)),
          ).toBe(true);
          expect(new Set(rows.map(({ name }) => name)).size).toBe(rows.length);
          expect(work.amount).toBeGreaterThan(0);
        }
      }
    }
  });

  it("have a random model for every family", () => {
    const script = readFileSync("bench/peers/random_models.py", "utf8");
    const written = [...script.matchAll(/^ {4}"(\w+)": dict\(model_type=/gm)].map(([, name]) => name);
    const cases = families.cases({ device: "cpu", quick: false });
    expect(written.length).toBeGreaterThan(1);
    expect(new Set(cases.map(({ parameters }) => parameters.family))).toEqual(new Set(written));
  });

  it("reject an `only` that matches no case", async () => {
    const [suite] = suites;
    await expect(
      runSuite({
        suite: suite!,
        device: "cpu",
        threads: 1,
        peers: false,
        quick: true,
        trials: 1,
        only: "none",
      }),
    ).rejects.toThrow(/No case of losses has "none" in its name; there are kl-/);
  });
});

it("a trial that ends without a result is reported in its row, and the others continue", async () => {
  const directory = mkdtempSync(join(tmpdir(), "nlac-bench-"));
  const scriptOf = (name: string, text: string) => {
    writeFileSync(join(directory, name), text);
    return relative(join(packageRoot(), "bench", "peers"), join(directory, name));
  };
  const result = { samples: [1], check: 1, bytes: null, versions: {} };
  const fine = `require("node:fs").writeFileSync(3, ${JSON.stringify(JSON.stringify(result))})`;
  const rows = [
    { ...row("peer", "silent"), script: scriptOf("silent.cjs", "") },
    { ...row("peer", "torn"), script: scriptOf("torn.cjs", 'require("node:fs").writeFileSync(3, "{")') },
    { ...row("peer", "fine"), script: scriptOf("fine.cjs", fine) },
  ];
  const suite = { name: "made-up", summary: "", cases: () => [{ ...example, rows }], prepare: () => never() };
  const options = { suite, device: "cpu", threads: 1, peers: true, quick: true, trials: 1, python: "none" };
  const { cases } = await runSuite(options);
  rmSync(directory, { recursive: true });
  expect(cases[0]!.rows.map(({ missing }) => missing)).toEqual([
    "failed: ended without a result",
    "failed: ended without a result",
    null,
  ]);
});

function never(): never {
  throw new Error("only in the trial's process");
}
