import { once } from "node:events";
import { connect, createServer, type Socket } from "node:net";
import { expect, test } from "vitest";
import { Channel } from "../../lib/ranks/channel.ts";

async function pair(): Promise<[Socket, Socket]> {
  const server = createServer();
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const accepted = once(server, "connection") as Promise<[Socket]>;
  const near = connect((server.address() as { port: number }).port, "127.0.0.1");
  const [far] = await accepted;
  server.close();
  return [near, far];
}

test("messages of every size arrive whole, in order, with their types", async () => {
  const [near, far] = await pair();
  const received: unknown[] = [];
  let closed = "";
  let over: () => void = () => {};
  const done = new Promise<void>((resolve) => {
    over = resolve;
  });
  const sender = new Channel(near, { onMessage: () => {}, onClose: () => {} });
  new Channel(far, {
    onMessage: (message) => received.push(message),
    onClose: (reason) => {
      closed = reason;
      over();
    },
  });
  const messages = [
    { id: 0, seed: 2n ** 63n, list: Float32Array.of(1.5, Number.NaN) },
    { id: 1, ids: Int32Array.from({ length: 30_000 }, (_, i) => i) },
    ...Array.from({ length: 200 }, (_, id) => ({ id, text: "θ̄".repeat(id) })),
    undefined,
  ];
  for (const message of messages) sender.send(message);
  sender.end();
  await done;
  expect(received).toEqual(messages);
  expect(closed).not.toBe("");
});

test("messages that are cut into single bytes arrive", async () => {
  const [near, far] = await pair();
  const received: unknown[] = [];
  const first = new Promise<void>((resolve) => {
    new Channel(far, {
      onMessage: (message) => {
        received.push(message);
        if (received.length === 2) resolve();
      },
      onClose: () => {},
    });
  });
  const written: Buffer[] = [];
  const fake = Object.assign(Object.create(near), { write: (chunk: Buffer) => written.push(chunk) > 0 });
  const sender = new Channel(fake as Socket, { onMessage: () => {}, onClose: () => {} });
  sender.send({ a: [1, 2, 3] });
  sender.send("b");
  near.setNoDelay(true);
  for (const byte of Buffer.concat(written)) near.write(Buffer.of(byte));
  await first;
  expect(received).toEqual([{ a: [1, 2, 3] }, "b"]);
  near.destroy();
});
