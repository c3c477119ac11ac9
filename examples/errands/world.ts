/**
 * A world behind HTTP: errands in an office, which agents of any language run.
 *
 *   POST /errands      {"seed": 7}                 → 201 {"id", "messages"}
 *   POST /errands/ID   {"action": "passport"}      → {"observation", "reward", "done"}
 *
 *   npx tsx examples/errands/world.ts 8100
 */

import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { environments } from "nlac";

const office = environments.errands();

/** The form in which the shipped model was taught to answer. */
const form = [
  "Write every turn in exactly this form and add nothing after it:",
  "",
  "Thought:",
  "<One line of reasoning that leads to what you do next.>",
  "Action:",
  "<What you say or do, on one line.>",
].join("\n");

type Errand = Awaited<ReturnType<typeof office.start>>;

/** Opens the world on a port, 0 for a free one. */
export async function openWorld(port = 0): Promise<{ url: string; close(): Promise<void> }> {
  const tasks = await office.tasks("train");
  const open = new Map<string, { errand: Errand; moves: number }>();
  let started = 0;

  const start = async ({ seed }: { seed: number }) => {
    const errand = await office.start(tasks[seed % tasks.length]!, { seed });
    const [system, desk] = errand.observation.messages;
    const id = String(started++);
    open.set(id, { errand, moves: 0 });
    const messages = [{ role: "system", content: `${system!.content}\n\n${form}` }, desk!];
    return { id, messages };
  };
  const move = async (id: string, { action }: { action: string }) => {
    const { errand, moves } = open.get(id)!;
    const { observation, reward, terminated } = await errand.step({ text: action });
    const done = terminated || moves + 1 === office.maxTurns;
    if (done) open.delete(id);
    else open.set(id, { errand, moves: moves + 1 });
    return { observation: observation[0]!.content, reward, done };
  };

  const server = createServer(async (request, response) => {
    const id = /^\/errands\/(\d+)$/.exec(request.url ?? "")?.[1];
    const isKnown = request.method === "POST" && (request.url === "/errands" || open.has(id ?? ""));
    const body = await json(request);
    const answer = !isKnown ? {} : id === undefined ? await start(body) : await move(id, body);
    response.writeHead(!isKnown ? 404 : id === undefined ? 201 : 200, { "content-type": "application/json" });
    response.end(JSON.stringify(answer));
  });
  await new Promise<void>((resolve) => server.listen(port, "127.0.0.1", resolve));
  const close = () => new Promise<void>((resolve) => server.close(() => resolve()));
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, close };
}

async function json(request: IncomingMessage) {
  let text = "";
  for await (const chunk of request) text += chunk;
  return JSON.parse(text || "{}");
}

const [port] = process.argv.slice(2);
if (import.meta.filename === process.argv[1]) console.log((await openWorld(Number(port ?? 8100))).url);
