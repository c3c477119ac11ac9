// Hostile servers of the Model Context Protocol, behind the client of @modelcontextprotocol/sdk. A
// run is one server: its list of tools, and 20 calls in one episode. Each of them lies, throws,
// hangs, answers garbage or disconnects, chosen at random. Many servers run at once, because a run
// mostly waits for timeouts.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { uniform } from "../../dist/base/random.js";
import { defineEnvironment, mcpTools } from "../../dist/environments/index.js";
import { ending, expect, randomOf, within } from "./support/in-process.mjs";

export const about = "MCP servers that throw, hang, lie, disconnect and answer garbage";

const calls = 20;
/** Milliseconds of a call. */
const timeout = 100;
/** Servers at a time. */
const together = 10;

export async function run({ runs, seed, first = 0, report }) {
  const unhandled = [];
  const listen = (error) => unhandled.push(error?.stack ?? String(error));
  process.on("unhandledRejection", listen);
  process.on("uncaughtException", listen);
  const oneRun = async (number) => {
    const began = performance.now();
    const counts = {};
    let failure;
    try {
      await within(60, "a server", oneServer(randomOf(uniform, seed, number), counts));
    } catch (error) {
      failure = { number, message: String(error?.stack ?? error) };
    }
    const worst = { "s a run": (performance.now() - began) / 1000 };
    report({ runs: 1, counts, worst, ...(failure && { failure }) });
  };
  try {
    for (let start = first; start < first + runs; start += together) {
      const count = Math.min(together, first + runs - start);
      await Promise.all(Array.from({ length: count }, (_, i) => oneRun(start + i)));
      await new Promise(setImmediate);
      for (const error of unhandled.splice(0)) {
        const servers = `one of the servers ${start} to ${start + count - 1}`;
        report({ failure: { number: start, message: `unhandled, by ${servers}: ${error}` } });
      }
    }
  } finally {
    process.off("unhandledRejection", listen);
    process.off("uncaughtException", listen);
  }
}

async function oneServer(random, counts) {
  const count = (name) => {
    counts[name] = (counts[name] ?? 0) + 1;
  };
  const client = new Client({ name: "torture", version: "1" });
  await client.connect(new HostileTransport(random));
  try {
    const { value, code, uncoded } = await ending(mcpTools(client, { timeout }));
    expect(uncoded === undefined, `the list of tools: ${uncoded}`);
    if (code !== undefined) return count(`${code} of the list`);
    const environment = await ending((async () => environmentOf(value.tools))());
    expect(environment.uncoded === undefined, `the environment: ${environment.uncoded}`);
    if (environment.code !== undefined) return count(`${environment.code} of the tools`);
    const episode = await environment.value.start("a", { seed: 0 });
    count("episodes");
    for (let i = 0; i < calls; i++) {
      const name = random.pick([...value.tools.map(({ schema }) => schema.name), "none"]);
      const call = { name, arguments: random.pick([{}, { x: "1" }, { x: 1 }, { __proto__: { x: 1 } }]) };
      const step = await ending(episode.step({ text: JSON.stringify(call), tool: call }));
      expect(step.uncoded === undefined, `a call: ${step.uncoded}`);
      if (step.code !== undefined) {
        expect(step.code === "ERR_ENVIRONMENT", `a call ended with ${step.code}`);
        count("failed calls");
        break;
      }
      const [{ content }] = step.value.observation;
      expect(typeof content === "string", `an observation is ${typeof content}`);
      count(step.value.info.toolError === true ? "refused calls" : "answered calls");
      if (step.value.terminated || step.value.truncated) break;
    }
    await episode.close();
    await value.close();
  } finally {
    await client.close();
  }
}

const environmentOf = (tools) =>
  defineEnvironment({
    name: "hostile",
    tasks: { train: ["a"], test: ["a"] },
    taskId: String,
    start: () => ({}),
    prompt: () => "Begin.",
    tools,
    score: () => 0,
    maxTurns: calls,
  });

/** A server in this process. It speaks JSON-RPC, more or less. */
class HostileTransport {
  #random;
  #closed = false;

  constructor(random) {
    this.#random = random;
  }

  async start() {}

  async close() {
    if (this.#closed) return;
    this.#closed = true;
    this.onclose?.();
  }

  async send(request) {
    const { id, method } = request;
    if (id === undefined) return; // a notification
    const answer = (more) => this.#give({ jsonrpc: "2.0", id, ...more });
    if (method === "initialize")
      return answer({
        result: {
          protocolVersion: request.params.protocolVersion,
          capabilities: { tools: {} },
          serverInfo: { name: "hostile", version: "1" },
        },
      });
    const { random, pick } = this.#random;
    const sound =
      method === "tools/list"
        ? () => answer({ result: tools(this.#random) })
        : () => answer({ result: result(pick) });
    if (random() < 0.7) return sound();
    return pick([
      () =>
        answer({ result: pick([null, 5, "x", [], {}, { tools: 5 }, { content: "x" }, { content: [null] }]) }),
      () => answer({ error: { code: pick([-32602, -32603, 0, 1.5]), message: pick(texts) } }),
      () => answer({ error: pick([null, 5, {}, { code: "x" }]) }),
      () => {
        throw new Error("cannot be sent");
      },
      () => this.close(),
      () => {}, // never
      () =>
        this.#give(
          pick([null, 5, "x", [], {}, { jsonrpc: "1.0", id }, { jsonrpc: "2.0", id: -1, result: {} }]),
        ),
      () => {
        sound();
        sound(); // twice
      },
      () => this.onerror?.(new Error("broken")),
    ])();
  }

  #give(message) {
    setImmediate(() => {
      if (!this.#closed) this.onmessage?.(message);
    });
  }
}

const texts = ["", "x", "\ud800", "\0", "<|im_end|>", "x".repeat(1_000_000), "\u2028"];

const deep = JSON.parse(`${'{"type":"object","properties":{"x":'.repeat(200)}{}${"}}".repeat(200)}`);

function tools({ random, pick }) {
  const schema = () =>
    pick([
      { type: "object" },
      { type: "object", properties: { x: { type: "number" } }, required: ["x"] },
      { type: "object", properties: { x: { type: "string", pattern: "(a+)+$" } } },
      { type: "object", properties: { x: { $ref: "#/properties/x" } } },
      { type: "object", properties: { x: { $ref: "http://127.0.0.1:9/x" } } },
      { type: "object", properties: { __proto__: null, constructor: { type: 5 } } },
      { type: "object", $id: "x", $defs: { a: { $ref: "#/$defs/a" } } },
      deep,
    ]);
  const names = ["a", "b", "x".repeat(64)];
  const name = () =>
    random() < 0.9 ? pick(names) : pick(["", "a b", "__proto__", "constructor", "x".repeat(65), "\ud800"]);
  const list = Array.from({ length: pick([0, 1, 1, 2, 3, 2000]) }, (_, i) => ({
    name: random() < 0.8 ? `t${i}` : name(),
    ...(random() < 0.5 && { description: pick(texts) }),
    inputSchema: random() < 0.7 ? { type: "object" } : schema(),
    ...(random() < 0.1 && { outputSchema: { type: "object", properties: { n: { type: "number" } } } }),
  }));
  return { tools: list, ...(random() < 0.1 && { nextCursor: "more" }) };
}

function result(pick) {
  return pick([
    () => ({ content: [{ type: "text", text: pick(texts) }] }),
    () => ({ content: [{ type: "text", text: pick(texts) }], isError: true }),
    () => ({ content: [] }),
    () => ({ content: [], structuredContent: { n: 1 } }),
    () => ({ content: [], structuredContent: { n: "x" } }),
    () => ({ content: [{ type: "image", data: "AAAA", mimeType: "image/png" }] }),
    () => ({ content: [{ type: "image", data: "?", mimeType: 5 }] }),
    () => ({ content: Array(1000).fill({ type: "text", text: "x" }) }),
    () => ({ content: [{ type: "resource", resource: { uri: "file:///etc/passwd" } }] }),
  ])();
}
