import { EventEmitter, once } from "node:events";
import { connect } from "node:net";
import { expect, it } from "vitest";
import type { Generation } from "../../lib/model/language-model.ts";
import { serve } from "../../lib/serve/server.ts";
import { UnsentAnswers } from "../../lib/serve/unsent-answers.ts";
import { byteTokenizer } from "../support/scripted-model.ts";

class Connection extends EventEmitter {
  destroyed = false;
  destroy(): void {
    this.destroyed = true;
    this.emit("close");
  }
}

it("too many answers disconnect the clients that have been reading for longest", () => {
  const answers = new UnsentAnswers(100);
  const held = Array.from({ length: 4 }, () => new Connection());
  const destroyed = () => held.map((one) => one.destroyed);
  answers.hold(held[0]!, 40);
  answers.hold(held[1]!, 40);
  held[0]!.emit("close"); // it is sent
  answers.hold(held[2]!, 60);
  expect(destroyed()).toEqual([false, false, false, false]);
  answers.hold(held[3]!, 500); // alone, an answer of any size is sent
  expect(destroyed()).toEqual([false, true, true, false]);
  answers.hold(new Connection(), 1);
  expect(destroyed()).toEqual([false, true, true, true]);
});

it("several answers to one client count together until it has them", () => {
  const answers = new UnsentAnswers(100);
  const [first, second] = [new Connection(), new Connection()];
  answers.hold(first, 40);
  answers.hold(first, 40);
  first.emit("close");
  answers.hold(second, 40);
  answers.hold(new Connection(), 50);
  expect(second.destroyed).toBe(false);
});

it("clients that read nothing cannot fill the server's memory", async () => {
  const length = 500_000;
  const tokens: number[] = Array(length).fill(65);
  const generation: Generation = {
    ...{ tokens, logProbs: new Float32Array(length), text: "A".repeat(length) },
    ...{ finishReason: "length", cachedTokens: 0 },
  };
  const learner = {
    ...{ tokenizer: byteTokenizer(), maxPositions: 1_000_000, decode: () => "" },
    generate: async (requests: readonly unknown[]) => requests.map(() => generation),
  };
  const server = await serve({ learner, name: "m", port: 0 });
  const { port } = new URL(server.url);
  const ask = async () => {
    const socket = connect(Number(port), "127.0.0.1").pause();
    const body = JSON.stringify({ model: "m", prompt: "x", n: 10 });
    socket
      .on("error", () => {})
      .write(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n" +
          `content-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
      );
    await new Promise((resolve) => setTimeout(resolve, 300));
    return async () => {
      let bytes = 0;
      socket.on("data", (chunk) => (bytes += chunk.length)).resume();
      await once(socket, "close");
      return bytes > 10 * length;
    };
  };
  try {
    // Each answer takes 70 MB.
    const rest: (() => Promise<boolean>)[] = [];
    for (let i = 0; i < 5; i++) rest.push(await ask());
    const isWhole = await Promise.all(rest.map((read) => read()));
    expect(isWhole).toEqual([false, false, true, true, true]);
  } finally {
    await server.close(20);
  }
});
