/** A server that records, and its clients. */

import OpenAI from "openai";
import { afterEach } from "vitest";
import { type ServeOptions, serve } from "../../lib/serve/server.ts";
import { CallingModel } from "./calling-model.ts";

export const open: { close(graceMs?: number): Promise<void> }[] = [];

afterEach(async () => {
  for (const server of open.splice(0)) await server.close(20);
});

export async function start(
  model: ServeOptions["learner"],
  record: string,
  options: Partial<ServeOptions> = {},
) {
  const server = await serve({ learner: model, name: "scripted", port: 0, record, ...options });
  open.push(server);
  const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
  const reward = async (id: string, body: object, headers: Record<string, string> = {}) => {
    const reply = await fetch(`${server.url}/v1/episodes/${id}/reward`, {
      method: "POST",
      headers: { "content-type": "application/json", ...headers },
      body: JSON.stringify(body),
    });
    return { status: reply.status, ...((await reply.json()) as object) };
  };
  return { server, client, reward };
}

export type Messages = OpenAI.ChatCompletionMessageParam[];

export const say = (content: string): Messages[number] => ({ role: "user", content });

/** One turn: what the model said, and the episode's name. */
export async function turn(client: OpenAI, messages: Messages, episode?: string, more: object = {}) {
  const { data, response } = await client.chat.completions
    .create(
      { model: "scripted", messages, ...more, stream: false },
      episode === undefined ? {} : { headers: { "x-episode-id": episode } },
    )
    .withResponse();
  return { said: data.choices[0]!.message, episode: response.headers.get("x-episode-id")! };
}

export const same = () => new CallingModel(() => "Same");
