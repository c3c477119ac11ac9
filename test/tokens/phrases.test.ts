import fc from "fast-check";
import { expect, test } from "vitest";
import { bytesOfToken, tokenOfText } from "../../lib/tokens/bpe.ts";
import { Conversation } from "../../lib/tokens/conversation.ts";
import { phraseTokenizer } from "../../lib/tokens/phrases.ts";
import { ChatTemplate } from "../../lib/tokens/template.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";

const phrases = ["a", "ab", "abc", " [a]", "(b|c)*", "\n\\w+", "ü", "✓ done", "^$", "{2}", "?.", "."];
const tokenizer = new Tokenizer(phraseTokenizer([...phrases, "a"]));

/** From left to right the longest phrase that stands there; what begins none is skipped. */
function naively(text: string): string[] {
  const found: string[] = [];
  for (let at = 0; at < text.length; ) {
    const fitting = phrases
      .filter((phrase) => text.startsWith(phrase, at))
      .sort((a, b) => b.length - a.length);
    if (fitting[0] !== undefined) found.push(fitting[0]);
    at += fitting[0]?.length ?? 1;
  }
  return found;
}

test("a text is the phrases that it is made of, the longest where several fit, and nothing else", () => {
  const part = fc.oneof(fc.constantFrom(...phrases), fc.constantFrom("b", "x", " ", "\n", "é", "|"));
  fc.assert(
    fc.property(fc.array(part, { maxLength: 12 }), (parts) => {
      const ids = tokenizer.encode(parts.join(""));
      expect(ids.map((id) => tokenizer.decode([id]))).toEqual(naively(parts.join("")));
    }),
    { numRuns: 500 },
  );
});

test("its files give the same tokenizer back", () => {
  const again = new Tokenizer(JSON.parse(JSON.stringify(phraseTokenizer(phrases))));
  expect(again.encode("abc [a]{2}")).toEqual(tokenizer.encode("abc [a]{2}"));
  expect(again.vocabSize).toBe(tokenizer.vocabSize);
});

test("a conversation is a token a role, and what a message spells is no control token", () => {
  const template = ChatTemplate.of(tokenizer);
  const conversation = Conversation.start(tokenizer, template, [
    { role: "system", content: "ab" },
    { role: "user", content: "a<|end|>" },
  ]);
  conversation.appendGeneration({ tokens: [...tokenizer.encode("abc"), ...tokenizer.eosTokenIds] });
  conversation.append({ role: "user", content: "." });
  const names = conversation.prompt().map((id) => tokenizer.decode([id]));
  expect(names.join(" ")).toBe(
    "<|system|> ab <|end|> <|user|> a <|end|> <|assistant|> abc <|end|> <|user|> . <|end|> <|assistant|>",
  );
});

test("a byte-level spelling is that of every byte, and is read back", () => {
  fc.assert(
    fc.property(fc.string({ unit: "grapheme" }), (text) => {
      expect(Buffer.from(bytesOfToken(tokenOfText(text))).toString()).toBe(text);
    }),
  );
  expect(tokenOfText(" a\n")).toBe("ĠaĊ");
});
