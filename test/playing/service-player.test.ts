/**
 * A chat service as a player: its replies come back unchanged, with the reason why they stopped.
 */

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, it } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import type { Message } from "../../lib/contract/environment.ts";
import { servicePlayer } from "../../lib/playing/service-player.ts";
import { chatService } from "../../lib/services/chat-service.ts";
import { playRecording, recordService } from "../../lib/services/recording.ts";
import { type ChatServer, chatServer } from "../support/chat-server.ts";

let server: ChatServer;
let heard: Message[][];
let directory: string;
beforeEach(async () => {
  heard = [];
  directory = mkdtempSync(join(tmpdir(), "nlac-player-"));
  server = await chatServer(({ messages }) => {
    heard.push(messages as Message[]);
    const cut = messages.at(-1)!.content === "Say all.";
    return cut ? { text: "All that is", finish: "length" } : { text: "Done." };
  });
});
afterEach(async () => {
  await server.close();
  rmSync(directory, { recursive: true, force: true });
});

it("reports a truncated reply, also from a recording, and continues after it", async () => {
  const file = join(directory, "replies.jsonl");
  const service = chatService({ model: "m", baseURL: server.baseURL });
  const sources = [() => service, () => recordService(service, file), () => playRecording(file)];
  for (const open of sources) {
    const player = servicePlayer(open());
    const conversation = player.conversation([{ role: "user", content: "Say all." }]);
    const write = async () => {
      const [written] = await player.generate([{ tokens: conversation.prompt(), temperature: 0 }]);
      if (written === undefined || written instanceof NlacError) throw written;
      conversation.appendGeneration(written);
      return { text: written.text, finishReason: written.finishReason, bytes: written.tokens.length };
    };
    expect(await write()).toEqual({ text: "All that is", finishReason: "length", bytes: 11 });
    conversation.append({ role: "user", content: "Go on." });
    // Including the id that ends a message.
    expect(await write()).toEqual({ text: "Done.", finishReason: "stop", bytes: 6 });
  }
  expect(heard).toHaveLength(4);
  for (const messages of [heard[1], heard[3]]) {
    expect(messages).toEqual([
      { role: "user", content: "Say all." },
      { role: "assistant", content: "All that is" },
      { role: "user", content: "Go on." },
    ]);
  }
});
