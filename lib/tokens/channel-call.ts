/**
 * The header of a call that is a message of its own (gpt-oss), as its chat template or the model
 * writes it: the recipient stands before the channel or after it, and the content type may follow a
 * control token. `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}`
 */

export interface ChannelCall {
  /** Where the header starts, and where the message's content does. */
  start: number;
  content: number;
  recipient: string;
  /** Undefined if the header names none. */
  channel: string | undefined;
  /** The content type; undefined if the header names none. */
  type: string | undefined;
}

/** Function that is called by a recipient. */
export const functionRecipient = /^functions\.([\w.-]+)$/;

const end = "<|message|>";
/** Longest header, in UTF-16 units. */
const maxHeader = 512;
const header =
  /(?:(?:^|\s)\s*to=(?<early>[^\s<]+)\s*)?(?:<\|channel\|>(?<channel>[^\s<]*)(?:\s+to=(?<late>[^\s<]+))?)?\s*(?:<\|constrain\|>)?\s*(?<type>[^\s<]*)\s*<\|message\|>$/;

const marks = ["<|channel|>", "<|constrain|>", end];
const opened = /^ to=[^\s<]*\s*(?:<\|channel\|>[^\s<]*\s*)?(?:<\|constrain\|>\s*)?[^\s<]*\s*$/;

/**
 * Whether a text may be the start of a header: a recipient, a channel and a type. The marks between
 * them may be spelled with ids of text.
 */
export function mayBeHeader(text: string): boolean {
  if (" to=".startsWith(text)) return true;
  const at = text.lastIndexOf("<");
  const isCut = at >= 0 && marks.some((mark) => mark.startsWith(text.slice(at)));
  return text.length <= maxHeader && opened.test(isCut ? text.slice(0, at) : text);
}

/** The first message of a text, if it has a recipient; undefined without one. */
export function channelCall(text: string): ChannelCall | undefined {
  const at = text.indexOf(end);
  if (at < 0) return undefined;
  const content = at + end.length;
  const from = Math.max(0, at - maxHeader);
  const found = header.exec(text.slice(from, content));
  const { early, late, channel, type } = found?.groups ?? {};
  const recipient = early ?? late;
  if (found === null || recipient === undefined) return undefined;
  return { start: from + found.index, content, recipient, channel, type: type === "" ? undefined : type };
}
