/**
 * Tokenizers and chat templates of published models, which packages of npm contain, beside the Python
 * libraries `tokenizers` and `transformers`. `scripts/peers.sh tokenizers` downloads them.
 */

import { spawnSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import type { Message } from "../../lib/contract/environment.ts";
import { Conversation } from "../../lib/tokens/conversation.ts";
import { ChatTemplate } from "../../lib/tokens/template.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { peersDirectory, peersPython } from "../support/peers.ts";
import { corpusDocument, documents } from "./corpus.ts";

const python = peersPython(["tokenizers", "transformers", "jinja2"], "published tokenizers");
const directory = join(peersDirectory, "tokenizers");
const names = python !== undefined && existsSync(directory) ? readdirSync(directory).sort() : [];
if (names.length === 0) console.warn("SKIPPED: published tokenizers (run scripts/peers.sh tokenizers)");

const texts = Array.from({ length: documents }, (_, i) => corpusDocument(i));

const said = [
  "What's the time in Zürich?",
  "12:30",
  "北京?\n\nNow",
  "```py\nx = 1\n```",
  "So 'be' \"it\"",
  "🙂",
];
/** Conversations that end with a question, some of them with instructions. */
const chats: Message[][] = [1, 2, 3].flatMap((questions) => {
  const turns = Array.from({ length: 2 * questions - 1 }, (_, i): Message => {
    return { role: i % 2 === 0 ? "user" : "assistant", content: said[i % said.length]! };
  });
  return [turns, [{ role: "system", content: "Answer in verse." }, ...turns]];
});

/** Ids of `texts`, and of `chats` where the template accepts them. */
interface Reference {
  texts: number[][];
  chats?: (number[] | null)[];
}

const program = `
import json, sys
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast
given = json.load(sys.stdin)
tokenizer = PreTrainedTokenizerFast.from_pretrained(given["directory"])
plain = lambda text: tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
def chat(messages):
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except TemplateError:
        return None
    return plain(text)
out = {"texts": [plain(text) for text in given["texts"]]}
if tokenizer.chat_template:
    out["chats"] = [chat(messages) for messages in given["chats"]]
json.dump(out, sys.stdout)
`;

function reference(of: string): Reference {
  const input = JSON.stringify({ directory: of, texts, chats });
  const { stdout, stderr, status } = spawnSync(python!, ["-c", program], {
    ...{ input, encoding: "utf8", maxBuffer: 1 << 28 },
    env: { ...process.env, HF_HUB_OFFLINE: "1" },
  });
  if (status !== 0) throw new Error(stderr);
  return JSON.parse(stdout) as Reference;
}

// A file without any test would fail.
const tested = names.length > 0 ? names : ["a published model"];
describe.skipIf(names.length === 0).each(tested)("the tokenizer of %s", (name) => {
  it("gives the ids of Python's libraries for texts and conversations", async () => {
    const of = join(directory, name);
    const tokenizer = await Tokenizer.fromDirectory(of);
    const expected = reference(of);
    // Text never becomes an added token here.
    const added = [...tokenizer.addedIds].map((id) => tokenizer.contentOf(id)!).filter((text) => text.trim());
    let compared = 0;
    texts.forEach((text, i) => {
      if (added.some((content) => text.includes(content))) return;
      expect(tokenizer.encode(text)).toEqual(expected.texts[i]);
      compared++;
    });
    expect(compared).toBeGreaterThan(documents / 2);

    if (expected.chats === undefined) return;
    const template = ChatTemplate.of(tokenizer);
    chats.forEach((messages, i) => {
      const ids = expected.chats![i];
      if (ids === null) {
        expect(() => template.encode(tokenizer, messages)).toThrow(/refuses/);
        return;
      }
      expect(template.encode(tokenizer, messages, { addGenerationPrompt: true })).toEqual(ids);
      const first = messages.findIndex(({ role }) => role === "user") + 1;
      const conversation = Conversation.start(tokenizer, template, messages.slice(0, first));
      // Mistral Nemo's instructions are in the last question, and stay in the first here.
      const moves = name === "mistral_nemo" && first === 2 && messages.length > first;
      expect(
        conversation
          .append(...messages.slice(first))
          .prompt()
          .join() === ids!.join(),
      ).toBe(!moves);
    });
  }, 300_000);
});
