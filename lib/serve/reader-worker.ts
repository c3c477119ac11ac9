/**
 * The thread that reader.ts starts: reads one request at a time, and may be ended at any moment.
 */

import { parentPort, workerData } from "node:worker_threads";
import { NlacError } from "../base/errors.ts";
import { Tokenizer, type TokenizerParts } from "../tokens/tokenizer.ts";
import type { ReaderData, ReadJob, ReadReply } from "./reader.ts";
import { RequestReader } from "./reading.ts";
import { asRequestError } from "./request-error.ts";

const { tokenizer, limits } = workerData as ReaderData;
const parts = JSON.parse(Buffer.from(tokenizer).toString()) as TokenizerParts;
const reader = new RequestReader(new Tokenizer(parts), limits);

parentPort!.on("message", (job: ReadJob) => parentPort!.postMessage(reply(job)));
parentPort!.postMessage("ready");

function reply(job: ReadJob): ReadReply {
  try {
    return { result: read(job) };
  } catch (error) {
    if (error instanceof NlacError) return { failed: [error.code, error.message] };
    const { status, message, code, parameter } = asRequestError(error);
    return { refused: [status, message, code, parameter] };
  }
}

function read(job: ReadJob) {
  if (job.kind === "chat") return reader.chat(job.body);
  return job.kind === "completion" ? reader.completion(job.body) : reader.render(job.rendering);
}
