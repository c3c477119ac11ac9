/** POST /v1/completions. */

import type { Context } from "hono";
import type { Generation } from "../model/language-model.ts";
import { completionChoice, usage } from "./answers.ts";
import type { Admission } from "./conversation-cache.ts";
import { sendJson } from "./json-response.ts";
import type { RequestQueue } from "./queue.ts";
import type { ReadCompletion } from "./reading.ts";
import { type OnToken, streamTexts } from "./text-stream.ts";

export async function answerCompletion(
  queue: RequestQueue,
  c: Context,
  { request, prompts }: ReadCompletion,
): Promise<Response> {
  queue.checkModel(request.model);
  const admission = await queue.admit(c, request.model);
  try {
    return await writeCompletion(queue, c, { request, prompts }, admission);
  } catch (error) {
    admission.leave();
    throw error;
  }
}

async function writeCompletion(
  queue: RequestQueue,
  c: Context,
  { request, prompts }: ReadCompletion,
  admission: Admission,
): Promise<Response> {
  const { learner } = queue;
  const n = request.n ?? 1;
  // OpenAI's default of 16 tokens.
  const requests = prompts.flatMap((prompt, i) =>
    queue.requests(request, prompt, request.max_tokens ?? 16, request.logprobs, i * n),
  );
  const head = queue.head("cmpl", "text_completion", admission);
  const write = (onToken?: OnToken) => queue.generate(c, admission, requests, onToken);
  if (!request.stream) {
    const generations = await write();
    const choices = generations.map((generation, i) =>
      completionChoice(learner, request, i, generation.text, generation),
    );
    return sendJson(c, { ...head, choices, usage: usage(prompts, generations) });
  }
  const part = (index: number, text: string, generation?: Generation) => ({
    ...head,
    choices: [completionChoice(learner, request, index, text, generation)],
    ...(request.stream_options?.include_usage ? { usage: null } : {}),
  });
  return streamTexts(queue, c, request, requests.length, write, {
    begin: () => [],
    piece: part,
    *end(generations, sent) {
      for (const [i, generation] of generations.entries())
        yield part(i, generation.text.slice(sent[i]!.length), generation);
    },
    usage: (generations) => ({ ...head, choices: [], usage: usage(prompts, generations) }),
  });
}
