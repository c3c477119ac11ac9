import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { domainNames } from "../../../lib/environments/tau-bench/domain.ts";
import { importTauBench } from "../../../lib/environments/tau-bench/import.ts";
import { tauBench } from "../../../lib/environments/tau-bench/index.ts";
import { readLiteral } from "../../../lib/environments/tau-bench/literals.ts";
import { dumps } from "../../../lib/environments/tau-bench/text.ts";
import { nlac } from "../../support/command-line.ts";

const fixtures = join(import.meta.dirname, "../../fixtures/tau-bench");
const className = (name: string) => name.replace(/(?:^|_)(.)/g, (_, letter: string) => letter.toUpperCase());
const json = (...path: string[]) => JSON.parse(readFileSync(join(...path), "utf8"));

let root: string;
let checkout: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "nlac-tau-bench-"));
  checkout = join(root, "checkout");
  for (const domain of domainNames) makeDomain(domain);
  write("LICENSE", "MIT License\n");
});
afterEach(() => rmSync(root, { recursive: true }));

function write(path: string, text: string): void {
  mkdirSync(dirname(join(checkout, path)), { recursive: true });
  writeFileSync(join(checkout, path), text);
}

/** A checkout with our own fixtures' domains, in the official layout. */
function makeDomain(domain: string): void {
  const at = `tau_bench/envs/${domain}`;
  const tables = domain === "retail" ? ["orders", "products"] : ["flights", "reservations"];
  for (const table of [...tables, "users"]) {
    mkdirSync(join(checkout, at, "data"), { recursive: true });
    cpSync(join(fixtures, domain, `${table}.json`), join(checkout, at, "data", `${table}.json`));
  }
  cpSync(join(fixtures, domain, "wiki.md"), join(checkout, at, "wiki.md"));
  write(`${at}/rules.py`, '# Rules\n\nRULES = [\n    "Be kind."\n    " Always.",\n]\n');
  const tools = json(fixtures, domain, "tools.json");
  for (const tool of tools) {
    const { name } = tool.function;
    const body = `class ${className(name)}(Tool):
    @staticmethod
    def invoke(data: Dict[str, Any]) -> str:
        return {"what": exec("never run")}

    @staticmethod
    def get_info() -> Dict[str, Any]:
        return ${JSON.stringify(tool)}
`;
    write(`${at}/tools/${name}.py`, `import json\n\n\n${body}`);
  }
  const names = tools.map(
    (tool: { function: { name: string } }) => `    ${className(tool.function.name)},\n`,
  );
  write(`${at}/tools/__init__.py`, `from .calculate import Calculate\n\nALL_TOOLS = [\n${names.join("")}]\n`);
  write(
    `${at}/tasks_test.py`,
    `from tau_bench.types import Task, Action

TASKS = [
    Task(
        annotator="0",
        user_id="noa_berg_5",
        instruction="It's \\"me\\".\\nI want " 'a "refund"',
        # What is right.
        actions=[
            Action(name="calculate", kwargs={"expression": "1 + 1", "amount": 54.0, "more": [1, -2.50, True, None]}),
        ],
        outputs=["2",],
    ),
    Task(annotator="0", user_id="x", instruction="""Two
lines""", actions=[], outputs=[]),
]
`,
  );
}

describe("nlac data import tau-bench", () => {
  it("makes the files that the environment reads", async () => {
    const out = join(root, "out");
    const { code, output, errors } = await nlac("data", "import", "tau-bench", checkout, out);
    expect([code, errors]).toEqual([0, ""]);
    expect(output).toBe(`${out}/retail: 2 test tasks\n${out}/airline: 2 test tasks\n`);
    for (const domain of domainNames) {
      expect(json(out, domain, "tools.json")).toEqual(json(fixtures, domain, "tools.json"));
      expect(json(out, domain, "rules.json")).toEqual(["Be kind. Always."]);
      for (const file of ["users.json", "wiki.md"]) {
        const [made, given] = [out, fixtures].map((at) => readFileSync(join(at, domain, file), "utf8"));
        expect(made).toBe(given);
      }
      const text = readFileSync(join(out, domain, "tasks_test.json"), "utf8");
      // As written: an integer and a float are different.
      expect(text).toContain('"amount": 54.0, "more": [1, -2.5, true, null]');
      expect(JSON.parse(text)[0]).toMatchObject({
        index: 0,
        annotator: "0",
        user_id: "noa_berg_5",
        instruction: 'It\'s "me".\nI want a "refund"',
        outputs: ["2"],
      });
      const [task, other] = await tauBench({ domain, data: out }).tasks("test");
      expect(task!.actions[0]).toMatchObject({ name: "calculate" });
      expect(other!.instruction).toBe("Two\nlines");
    }
    expect(existsSync(join(out, "LICENSE"))).toBe(true);
    const again = await nlac("data", "import", "tau-bench", checkout, out);
    expect(again).toMatchObject({ code: 1, errors: expect.stringContaining("is not empty") });
    const asJson = await nlac("data", "import", "tau-bench", checkout, join(root, "other"), "--json");
    expect(JSON.parse(asJson.output).tasks).toEqual({ retail: { test: 2 }, airline: { test: 2 } });
  });

  it("rejects an invalid checkout", () => {
    const out = join(root, "out");
    const refused = (message: RegExp) => {
      expect(() => importTauBench(checkout, out)).toThrowError(
        expect.objectContaining({ code: "ERR_CONFIG", message: expect.stringMatching(message) }),
      );
      expect(readdirSync(root)).toEqual(["checkout"]);
    };
    expect(() => importTauBench(root, out)).toThrowError(/is not a checkout of tau-bench/);
    const tasks = "tau_bench/envs/retail/tasks_test.py";
    write(tasks, 'TASKS = [\n    Task(user_id="a", instruction=open("/etc/passwd").read()),\n]\n');
    refused(/retail\/tasks_test\.py:2: "open" is not a literal/);
    write(tasks, "TASKS = make_tasks()\n");
    refused(/"make_tasks" is not a literal/);
    write(tasks, 'TASKS = {"a": 1}\n');
    refused(/has no list of tasks/);
    write(tasks, "TASKS = [1]\n");
    refused(/task 0 is not an object/);
    write(tasks, 'TASKS = [Task(user_id="a")]\n');
    refused(/"actions" must be a list/);
    write(tasks, "TASKS = []\n");
    write("tau_bench/envs/retail/tools/__init__.py", "ALL_TOOLS = [Calculate, Missing]\n");
    refused(/has no tool Missing/);
    write("tau_bench/envs/retail/tools/__init__.py", "ALL_TOOLS = [Calculate]\n");
    refused(/must describe the domain's tools/);
    rmSync(join(checkout, "tau_bench/envs/retail/wiki.md"));
    expect(() => importTauBench(checkout, out)).toThrowError(
      expect.objectContaining({ code: "ERR_IO", message: expect.stringContaining("wiki.md") }),
    );
  });

  it.skipIf(!existsSync("/proc/self"))("refuses a directory below /proc", () => {
    expect(() => importTauBench(checkout, "/proc/nlac/data")).toThrowError(
      expect.objectContaining({ code: "ERR_IO", message: expect.stringContaining("/proc/nlac") }),
    );
  });
});

describe("Python literals", () => {
  const read = (source: string) => dumps(readLiteral(`x = ${source}\n`, /^x = /m, "file.py", ["Task"]));

  it.each([
    ["[1, 2.0, -3, 1e3, .5, 5.]", "[1, 2.0, -3, 1000.0, 0.5, 5.0]"],
    ['{"10": 1, "9": {},}', '{"10": 1, "9": {}}'],
    ["'a' \"b\"\n  # comment\n  'c'", '"abc"'],
    ['("a" \'"\')', '"a\\""'],
    ["'\\x41\\u00e9\\U0001f389\\\\\\'\\\n\\t'", '"A\\u00e9\\ud83c\\udf89\\\\\'\\t"'],
    ["'''a\n'b'''", '"a\\n\'b"'],
    ["Task(a=None, b=[True, False])", '{"a": null, "b": [true, false]}'],
    ["[[], ([])]", "[[], []]"],
  ])("reads %s", (source, expected) => {
    expect(read(source)).toBe(expected);
  });

  it.each([
    "f'a'",
    "[1 + 2]",
    "[1 2]",
    "[,]",
    "{1: 2}",
    "{'a'}",
    "'a",
    "'a\nb'",
    "'\\q'",
    "'\\x4'",
    "'\\U00110000'",
    "Task('a')",
    "Other(a=1)",
    "[1",
    "()",
    "name",
    "1_000",
    "__import__('os')",
    "lambda: 0",
  ])("rejects %s", (source) => {
    expect(() => read(source)).toThrowError(expect.objectContaining({ code: "ERR_CONFIG" }));
  });
});
