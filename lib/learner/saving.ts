/** Prepares and completes the directories that a learner writes; the core writes its own files. */

import { fromNative, NlacError } from "../base/errors.ts";
import { shown } from "../base/validation.ts";
import { removeChecksums, writeChecksums } from "../files/checksums.ts";
import { makeDirectory } from "../files/disk.ts";
import type { ModelInfo } from "../native/addon.ts";
import type { Tokenizer } from "../tokens/tokenizer.ts";
import { ioError } from "./sources.ts";

/**
 * Creates the directory. An interrupted write leaves it without checksums. Throws ERR_IO, ERR_VALUE
 * for what is no path.
 */
export function prepare(directory: string): void {
  if (typeof directory !== "string" || directory === "")
    throw new NlacError("ERR_VALUE", `directory must be a path; it is ${shown(directory)}.`);
  makeDirectory(directory);
  removeChecksums(directory);
}

/**
 * Waits for the core's files and the others, then writes checksums. Both are waited for, so that
 * nothing is still being written when this rejects.
 */
export async function finish(
  directory: string,
  core: Promise<void>,
  others: Promise<void> | undefined,
): Promise<void> {
  const [native, rest] = await Promise.allSettled([core, others]);
  if (native.status === "rejected") throw fromNative(native.reason);
  if (rest.status === "rejected") throw ioError(directory, rest.reason);
  await writeChecksums(directory, ["base"]);
}

/**
 * The padding id of an exported reward model, or -1 if there is none. A sequence classifier of
 * transformers takes the score at the last token that is not padding. Many instruct models pad with
 * the id that ends a turn, which would hide a response's last token: an id that ends no turn is
 * chosen instead.
 */
export function paddingId(
  info: ModelInfo,
  tokenizer: Tokenizer | undefined,
  endOfTurnIds: readonly number[],
): number {
  const named = (name: string) => tokenizer?.idOf(tokenizer.namedTokens[name] ?? "") ?? -1;
  const candidates = [
    ...[info.padTokenId, named("pad_token"), info.bosTokenId, named("bos_token")],
    ...[...(tokenizer?.specialIds ?? [])].sort((a, b) => a - b),
  ];
  const limit = Math.min(info.vocabSize, tokenizer?.vocabSize ?? info.vocabSize);
  return candidates.find((id) => id >= 0 && id < limit && !endOfTurnIds.includes(id)) ?? -1;
}
