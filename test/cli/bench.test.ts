import {
  chmodSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, expect, test, vi } from "vitest";
import type { Report } from "../../lib/bench/run.ts";
import { nlac } from "../support/command-line.ts";

const root = mkdtempSync(join(tmpdir(), "nlac-bench-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));
afterEach(() => {
  vi.unstubAllEnvs();
});

/** A program that stands for the peers' Python. */
function interpreter(name: string, body: string): string {
  const path = join(root, name);
  writeFileSync(path, `#!/bin/sh\n${body}\n`);
  chmodSync(path, 0o755);
  return path;
}

test.skipIf(!existsSync("/proc/self"))(
  "a directory that cannot be made is refused before measuring",
  async () => {
    const { code, output, errors } = await nlac("bench", "sampler", "--quick", "--out", "/proc/nlac/results");
    expect([code, output]).toEqual([1, ""]);
    expect(errors).toMatch(/^nlac: ERR_IO: \/proc\/nlac/m);
  },
);

test("a quick bench measures, prints its report and writes it to the given path", async () => {
  const out = join(root, "results");
  const ran = await nlac("bench", "sampler", "--quick", "--threads", "1", "--json", "--out", out);
  expect(ran.code).toBe(0);
  const report = JSON.parse(ran.output) as Report;
  expect(report).toMatchObject({ suite: "sampler", device: "cpu", threads: 1, trials: 1, quick: true });
  expect(report.cases.map(({ id }) => id)).toEqual(["sample-64", "set-64", "cycle-64"]);
  for (const { rows } of report.cases) {
    expect(rows.length).toBeGreaterThan(0);
    for (const row of rows) {
      expect(row).toMatchObject({ role: "ours", missing: null });
      expect(row.time!.samples).toBeGreaterThanOrEqual(10);
      expect(row.time!.median).toBeGreaterThan(0);
      expect(row.check).toBeGreaterThan(0);
    }
  }
  const files = readdirSync(out).sort();
  expect(files).toHaveLength(2);
  expect(files[0]).toMatch(new RegExp(`^${report.date.slice(0, 10)}-sampler-cpu-.+\\.json$`));
  expect(JSON.parse(readFileSync(join(out, files[0]!), "utf8"))).toEqual(report);
  expect(readFileSync(join(out, files[1]!), "utf8")).toMatch(/^<svg /);
  // Reports of some cases, or with other threads, do not replace that of all.
  await nlac("bench", "sampler", "--quick", "--threads", "1", "--only", "set", "--out", out);
  const more = String(availableParallelism() + 1);
  await nlac("bench", "sampler", "--quick", "--threads", more, "--only", "set", "--out", out);
  expect(readdirSync(out)).toHaveLength(6);
  expect(readdirSync(out).filter((name) => name.includes(`-threads-${more}-`))).toHaveLength(2);
  expect(JSON.parse(readFileSync(join(out, files[0]!), "utf8"))).toEqual(report);
});

test("a peer that fails, or cannot run here, has a row with the reason", async () => {
  const ends = ["--quick", "--peers", "--only", "set", "--python"];
  const failing = interpreter("failing", "echo 'ValueError: no such thing' >&2; exit 1");
  const failed = await nlac("bench", "sampler", ...ends, failing);
  expect(failed.code).toBe(0);
  expect(failed.output).toMatch(/^nlac +[\d.]+ [µm]s/m);
  expect(failed.output).toMatch(/^cpprb +failed: ValueError: no such thing$/m);
  const skipping = interpreter("skipping", `echo '{"skipped": "no such device"}' >&3`);
  const skipped = await nlac("bench", "sampler", ...ends, skipping);
  expect(skipped.output).toMatch(/^sumtree +skipped: no such device$/m);
  const unmeasured = await nlac("bench", "sampler", ...ends, skipping, "--skip", "cpprb", "torchrl");
  expect(unmeasured.output).toMatch(/^cpprb +skipped: --skip$/m);
  expect(unmeasured.output).toMatch(/^torchrl sampler +skipped: --skip$/m);
  expect(unmeasured.output).toMatch(/^sumtree +skipped: no such device$/m);
  const absent = await nlac("bench", "sampler", ...ends, join(root, "absent"));
  expect(absent.output).toMatch(/^cpprb +failed: spawn .+ ENOENT$/m);
  const killed = await nlac("bench", "sampler", ...ends, interpreter("killed", "kill -9 $$"));
  expect(killed.output).toMatch(/^cpprb +failed: ended by SIGKILL$/m);
});

test("an impossible bench ends with one line that gives the reason", async () => {
  const unknown = await nlac("bench", "sorting");
  expect(unknown.code).toBe(1);
  expect(unknown.errors).toBe(
    'nlac: ERR_VALUE: There is no benchmark "sorting"; there are losses, sampler, ema, adamw, generation, training, families, soak.\n',
  );
  expect((await nlac("bench", "sampler", "--device", "tpu")).errors).toMatch(/^nlac: ERR_DEVICE: .+\n$/);
  const nowhere = await nlac("bench", "sampler", "--quick", "--device", "cuda:99");
  expect([nowhere.code, nowhere.output]).toEqual([1, expect.stringContaining("sampler · cuda:99")]);
  expect(nowhere.errors).toMatch(/^nlac: ERR_DEVICE: .+\n$/);
  vi.stubEnv("XDG_CACHE_HOME", join(root, "empty"));
  const absent = await nlac("bench", "sampler", "--quick", "--peers");
  expect(absent.code).toBe(1);
  expect(absent.errors).toMatch(
    /^nlac: ERR_CONFIG: The peers are not installed .+scripts\/peers\.sh bench`.+\n$/,
  );
});
