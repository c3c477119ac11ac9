// The property tests of test/ under fresh seeds. A run is every property test once, with a seed of
// its own and with twice the cases where a test does not set their number. The test suite uses one
// constant seed.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { randomSource } from "./support/hostile-models.mjs";

export const about = "the property tests under fresh seeds: no counterexample";

const root = fileURLToPath(new URL("../..", import.meta.url));

export async function run({ runs, seed, first = 0, report }) {
  const { files, names, properties } = propertyTests();
  for (let number = first; number < first + runs; number++) {
    const began = performance.now();
    const drawn = randomSource(seed, number).below(2 ** 31);
    const { tests, failures, output } = await runTests(files, names, drawn);
    if (tests < properties)
      failures.push(`${tests} tests ran; ${files.length} files have ${properties}\n${output}`);
    const worst = { "s a run": (performance.now() - began) / 1000 };
    report({ runs: 1, counts: { tests }, worst });
    for (const message of failures)
      report({ failure: { number, message: `NLAC_PROPERTY_SEED=${drawn}: ${message}` } });
  }
}

/**
 * The files with properties, a pattern of the names of their tests, and the number of these names.
 */
export function propertyTests() {
  const files = readdirSync(join(root, "test"), { recursive: true })
    .flatMap((name) => (name.endsWith(".test.ts") ? [join("test", name)] : []))
    .sort()
    .filter((name) => readFileSync(join(root, name), "utf8").includes("fc.assert("));
  const titles = new Set(files.flatMap((name) => titlesIn(readFileSync(join(root, name), "utf8"))));
  const patterns = [...titles].map((title) =>
    title.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&").replace(/%[sdijo]/g, ".*"),
  );
  return { files, names: `(${patterns.join("|")})$`, properties: titles.size };
}

/** The title of the test around each property: the last title above it. */
function titlesIn(text) {
  const heads = [
    ...text.matchAll(/\b(?:it|test)(?:\.\w+)*(?:\((?:\[[\s\S]*?\]|\w+)\))?\(\s*"((?:\\.|[^"\\])*)"/g),
  ];
  return [...text.matchAll(/fc\.assert\(/g)].map(({ index }) => {
    const head = heads.findLast((match) => match.index < index);
    if (head === undefined) throw new Error("A property stands before the first test of its file.");
    return JSON.parse(`"${head[1]}"`);
  });
}

async function runTests(files, names, seed) {
  const directory = mkdtempSync(join(tmpdir(), "nlac-properties-"));
  const out = join(directory, "report.json");
  try {
    const child = spawn(
      process.execPath,
      [
        "node_modules/vitest/vitest.mjs",
        "run",
        "-t",
        names,
        "--reporter=json",
        `--outputFile=${out}`,
        ...files,
      ],
      {
        cwd: root,
        env: {
          ...process.env,
          NLAC_PROPERTY_SEED: String(seed),
          NLAC_PROPERTY_RUNS: "200",
          // More than half of the time otherwise.
          NLAC_HOSTILE_RUNS: process.env.NLAC_HOSTILE_RUNS ?? "2000",
        },
        stdio: ["ignore", "pipe", "pipe"],
      },
    );
    let output = "";
    for (const stream of [child.stdout, child.stderr]) stream.on("data", (chunk) => (output += chunk));
    await once(child, "close");
    const { testResults } = JSON.parse(readFileSync(out, "utf8"));
    const failures = testResults.flatMap(({ name, message, assertionResults }) => [
      // A file that does not load has no results.
      ...(assertionResults.length === 0 ? [`${relative(root, name)}: ${message}`] : []),
      ...assertionResults
        .filter(({ status }) => status === "failed")
        .map((result) => `${relative(root, name)}: ${result.fullName}\n${result.failureMessages.join("\n")}`),
    ]);
    const tests = testResults
      .flatMap((file) => file.assertionResults)
      .filter((test) => test.status === "passed");
    return { tests: tests.length, failures, output: output.slice(-2000) };
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}
