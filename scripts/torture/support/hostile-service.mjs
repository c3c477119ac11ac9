// A language service on this machine that answers two requests in five badly: 429, 500, garbage, a
// broken connection, or never. A good answer repeats the last message.
import { createServer } from "node:http";

const garbage = [
  "",
  "null",
  "5",
  "[]",
  "{}",
  '{"choices":null}',
  '{"choices":[]}',
  '{"choices":[null]}',
  '{"choices":[{}]}',
  '{"choices":[{"message":null,"finish_reason":"stop"}]}',
  '{"choices":[{"message":{"content":5},"finish_reason":"stop"}]}',
  '{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}',
  '{"choices":{"length":1}}',
  "<html>",
  "\u0000\uffff",
  '{"choices":[{"message":{"content":"half',
  `[${"[".repeat(10_000)}`,
  '{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":"many"}}',
];

/** Resolves to { baseURL, close }. `randomOf(request text, attempt)` gives { random, pick }. */
export async function hostileService(randomOf) {
  const attempts = new Map();
  const server = createServer(async (request, response) => {
    response.on("error", () => {});
    let text = "";
    try {
      for await (const chunk of request) text += chunk;
    } catch {
      return; // given up by the client
    }
    if (!request.complete || text === "") return response.destroy();
    const attempt = attempts.get(text) ?? 0;
    attempts.set(text, attempt + 1);
    const { random, pick } = randomOf(text, attempt);
    const heard = JSON.parse(text).messages.at(-1).content;
    const answer = (status, body, headers = {}) => {
      response.writeHead(status, { "content-type": "application/json", ...headers });
      response.end(body);
    };
    if (random() < 0.6) {
      const message = { role: "assistant", content: `heard ${heard}` };
      return answer(200, JSON.stringify({ choices: [{ message, finish_reason: "stop" }] }));
    }
    return pick([
      () =>
        answer(429, '{"error":{"message":"slow down"}}', {
          "retry-after": pick(["0", "0.01", "soon", "-1", "NaN"]),
        }),
      () => answer(500, pick(['{"error":{"message":"broken"}}', "<html>", ""])),
      () => answer(pick([400, 401, 404, 409, 418, 599]), pick(garbage)),
      () => answer(200, pick(garbage)),
      () =>
        answer(200, pick(garbage), {
          "content-type": pick(["text/html", "", 'application/json; charset="', "a/b"]),
        }),
      () => answer(302, "", { location: "/v1/elsewhere" }),
      () => answer(200, pick(garbage), { "content-length": "1000000" }),
      () => request.socket.destroy(),
      () => request.socket.end("HTTP/1.1 abc\r\n\r\n"),
      () => response.writeHead(200, { "content-type": "application/json" }).write('{"choices":'),
      () => undefined, // never
    ])();
  });
  server.on("clientError", (_, socket) => socket.destroy());
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    baseURL: `http://127.0.0.1:${server.address().port}/v1`,
    close: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
