/** A server of a scripted or a tiny model, and its clients. */

import OpenAI from "openai";
import { afterEach } from "vitest";
import { type ServeOptions, type Server, serve } from "../../lib/serve/server.ts";
import { CallingModel } from "./calling-model.ts";
import type { ScriptedModel } from "./scripted-model.ts";

export const open: { close(): Promise<void> }[] = [];

afterEach(async () => {
  for (const server of open.splice(0)) await server.close();
});

export async function start(
  reply: ConstructorParameters<typeof ScriptedModel>[0],
  options: Partial<ServeOptions> = {},
): Promise<{ server: Server; model: CallingModel; client: OpenAI }> {
  const model = new CallingModel(reply);
  const server = await serve({ learner: model, name: "scripted", port: 0, ...options });
  open.push({ close: () => server.close(100) });
  const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: options.token ?? "none", maxRetries: 0 });
  return { server, model, client };
}

export const hello = { model: "scripted", messages: [{ role: "user" as const, content: "Hello" }] };

export const weather = {
  name: "weather",
  description: "The weather of a city.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
