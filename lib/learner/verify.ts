/** Checks the files of a model or a saved learner without loading its weights. */

import { closeSync, existsSync, readdirSync, readSync, statSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { checksumFaults, hasChecksums } from "../files/checksums.ts";
import { onDisk, openRegular, whyNot } from "../files/disk.ts";
import { indexLimit, readModelJson, tokenizerLimit } from "../files/read-file.ts";
import { callNative } from "../native/call-native.ts";
import { loadAddon } from "../native/load.ts";
import { Tokenizer } from "../tokens/tokenizer.ts";

/**
 * One line per fault of a model directory or a .gguf file: against its checksums.json, if it has
 * one, and the structure of configurations, tokenizer and safetensors.
 */
export async function* modelFaults(path: string): AsyncGenerator<string> {
  if (path.endsWith(".gguf")) {
    yield* faultOf(() => callNative(() => loadAddon({ device: "cpu" }).ggufMetadata(path)));
    return;
  }
  const names = onDisk(path, () => readdirSync(path));
  const isSaved = names.includes("learner.json") || names.includes("sampling.json");
  if (isSaved || hasChecksums(path)) yield* checksumFaults(path);
  if (!names.some((name) => /^(model|adapter_model|adapter).*\.safetensors$/.test(name)))
    yield `${path} has no weights (*.safetensors).`;
  if (!["config.json", "adapter_config.json", "learner.json"].some((name) => names.includes(name)))
    yield `${path} has no config.json.`;
  const index = join(path, "model.safetensors.index.json");
  if (existsSync(index))
    yield* faultOf(async () => {
      const { data, error } = indexSchema.safeParse(await readModelJson(index, indexLimit));
      if (error !== undefined)
        throw new NlacError("ERR_MODEL_FORMAT", `${index} cannot be read: ${whyNot(error)}`, {
          cause: error,
        });
      const absent = Object.values(data.weight_map).find((name) => !names.includes(name));
      if (absent !== undefined)
        throw new NlacError("ERR_MODEL_FORMAT", `${join(path, absent)} is missing; ${index} names it.`);
    });
  for (const name of names) {
    const file = join(path, name);
    if (name.endsWith(".safetensors")) yield* faultOf(() => requireSafetensors(file));
    else if (name.endsWith(".json")) yield* faultOf(() => readModelJson(file, jsonLimit));
  }
  if (existsSync(join(path, "tokenizer.json"))) yield* faultOf(() => Tokenizer.fromDirectory(path));
}

async function* faultOf(check: () => unknown): AsyncGenerator<string> {
  try {
    await check();
  } catch (error) {
    yield (error as Error).message;
  }
}

/** The larger ones of the limits with which these files are loaded. */
const jsonLimit = { bytes: indexLimit.bytes, values: tokenizerLimit.values };
/** Maximum bytes of a safetensors header, the format's own limit. */
const maxHeader = 100_000_000;

const indexSchema = z.object({ weight_map: z.record(z.string(), z.string()) });

const tensorsSchema = z.record(
  z.string(),
  z.object({ data_offsets: z.tuple([z.int().min(0), z.int().min(0)]) }),
);

/** Throws ERR_MODEL_FORMAT unless the tensors of a safetensors file fill it exactly; ERR_IO. */
function requireSafetensors(path: string): void {
  const size = onDisk(path, () => statSync(path).size);
  const header = Number(readStart(path, 8, 0).readBigUInt64LE());
  const wrong = (why: string) => new NlacError("ERR_MODEL_FORMAT", `${path} is damaged: ${why}.`);
  if (header > size - 8) throw wrong("its header does not fit into the file");
  if (header > maxHeader) throw wrong(`its header has ${header} bytes; at most ${maxHeader} are read`);
  let tensors: z.infer<typeof tensorsSchema>;
  try {
    const { __metadata__: _, ...entries } = JSON.parse(readStart(path, header, 8).toString("utf8"));
    tensors = tensorsSchema.parse(entries);
  } catch {
    throw wrong("its header is not a list of tensors");
  }
  let end = 0;
  for (const {
    data_offsets: [from, to],
  } of Object.values(tensors).sort(
    (a, b) => a.data_offsets[0] - b.data_offsets[0] || a.data_offsets[1] - b.data_offsets[1],
  )) {
    if (from !== end || to < from) throw wrong("its tensors overlap or have gaps");
    end = to;
  }
  if (8 + header + end !== size)
    throw wrong(`it has ${size} bytes, but its header names ${8 + header + end}`);
}

/** `length` bytes from `at`. Throws ERR_MODEL_FORMAT for a shorter file, ERR_IO. */
function readStart(path: string, length: number, at: number): Buffer {
  return onDisk(path, () => {
    const buffer = Buffer.alloc(length);
    const fd = openRegular(path);
    try {
      if (readSync(fd, buffer, 0, length, at) === length) return buffer;
    } finally {
      closeSync(fd);
    }
    throw new NlacError("ERR_MODEL_FORMAT", `${path} is damaged: it ends too early.`);
  });
}
