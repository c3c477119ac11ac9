/**
 * Chat templates of published models, which packages of PyPI contain, beside `transformers`: the text
 * of conversations with instructions, tools, calls and reasoning. `scripts/peers.sh templates`
 * downloads them.
 */

import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { describe, expect, it } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import type { Message, ToolSchema } from "../../lib/contract/environment.ts";
import { parseAction, policyConversation, turnTokens } from "../../lib/prompts/policy.ts";
import { completionText } from "../../lib/tokens/completion-text.ts";
import { Conversation } from "../../lib/tokens/conversation.ts";
import type { Turn } from "../../lib/tokens/messages.ts";
import { ChatTemplate } from "../../lib/tokens/template.ts";
import { TemplateRenderer } from "../../lib/tokens/template-renderer.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { peersDirectory, peersPython } from "../support/peers.ts";
import { byteTokenizerParts, withControlTokens } from "../support/scripted-model.ts";

const python = peersPython(["transformers", "jinja2"], "published chat templates");
const path = join(peersDirectory, "templates.json");
const templates: Record<string, string> =
  python !== undefined && existsSync(path) ? JSON.parse(readFileSync(path, "utf8")) : {};
const names = Object.keys(templates);
if (names.length === 0) console.warn("SKIPPED: published chat templates (run scripts/peers.sh templates)");

const parameters = (properties: object) => ({ type: "object", properties, required: [] });
const tools: ToolSchema[] = [
  {
    name: "look_up",
    description: "Tells the weather of a city.",
    parameters: parameters({ city: { type: "string", description: "A name" }, days: { type: "integer" } }),
  },
  {
    name: "note",
    description: "Keeps a list.",
    // A list of "items" must not hide a mapping's method of that name.
    parameters: parameters({
      items: { type: "array", items: { type: "string" } },
      options: { type: "object", properties: { loud: { type: "boolean" } } },
    }),
  },
];

const user = (content: string) => ({ role: "user" as const, content });
const system = (content: string): Turn => ({ role: "system", content });
const model = (content: string, ...calls: object[]): Turn => ({
  ...{ role: "assistant", content },
  ...(calls.length === 0 ? {} : { tool_calls: calls }),
});
const call = (id: string, name: string, args: object) => ({
  ...{ id, type: "function", function: { name, arguments: args } },
});
const look = call("call00000", "look_up", { city: 'Zürich "x"', days: 2 });
const plainCall = call("call00000", "look_up", { city: "Oslo", days: 2 });
const note = call("call00001", "note", { items: ["a", "b"], options: { loud: true } });
const answer = ({ id, function: { name } }: typeof look, content: string): Turn => ({
  ...{ role: "tool", content, tool_call_id: id, name },
});

const question = user("What's the time in Zürich?");
const other = user("北京? <b>&'\"");
const thought = "<think>\nI think.\n</think>\n\nYes";
const plain: Turn[][] = [
  [question],
  [system("Answer in verse."), question],
  [question, model("12:30\n\n  ok "), other],
  [system(" Be\nbrief. "), question, model("12:30"), other, model(thought), user("🙂")],
  [question, model(thought)],
];
const calling: Turn[][] = [
  [question],
  [system("Answer in verse."), question, model("12:30"), other],
  [question, model("", look)],
  [question, model("", look), answer(look, '{"t": 1}')],
  [system("Say."), question, model("I look.", look), answer(look, "rain"), model("It rains."), other],
  [
    ...[question, model("", look, note), answer(look, "rain"), answer(note, "done"), model("Fine."), other],
    ...[model("", note), answer(note, "ok")],
  ],
  [question, model("<think>\nHm.\n</think>\n\n", look), answer(look, "rain")],
];
const conversations = [true, false].flatMap((addGenerationPrompt) => [
  ...plain.map((turns) => ({ turns, addGenerationPrompt, tools: undefined })),
  ...calling.map((turns) => ({ turns, addGenerationPrompt, tools })),
]);

const variables = { bos_token: "<BOS>", eos_token: "<EOS>", pad_token: "<PAD>", unk_token: "<UNK>" };

// Freezes the time, which some templates print.
const program = `
import json, sys
from transformers.utils import chat_template_utils
given = json.load(sys.stdin)
def rendered(source):
    try:
        template = chat_template_utils._compile_jinja_template(source)
    except Exception:
        return None
    template.environment.globals["strftime_now"] = lambda format: "now"
    def text(chat):
        try:
            return template.render(
                messages=chat["turns"], tools=chat["tools"], documents=None,
                add_generation_prompt=chat["addGenerationPrompt"], **given["variables"])
        except Exception:
            return None
    return [text(chat) for chat in given["conversations"]]
json.dump({name: rendered(source) for name, source in given["templates"].items()}, sys.stdout)
`;

/** The text of each conversation by each template: null where it is refused, and for no template. */
function reference(): Record<string, (string | null)[] | null> {
  const given = conversations.map(({ tools, ...chat }) => ({
    ...chat,
    tools: tools?.map((tool) => ({ type: "function", function: tool })) ?? null,
  }));
  const { stdout, stderr, status } = spawnSync(python!, ["-c", program], {
    ...{ input: JSON.stringify({ templates, conversations: given, variables }), encoding: "utf8" },
    ...{ maxBuffer: 1 << 28, env: { ...process.env, HF_HUB_OFFLINE: "1" } },
  });
  if (status !== 0) throw new Error(stderr);
  return JSON.parse(stdout);
}

/** A tokenizer of bytes, with the control tokens that a template spells. */
function tokenizerOf(source: string): Tokenizer {
  const marks = Array.from(
    source.matchAll(/<[|｜/a-zA-Z][^<>\s{}'"\\]{0,40}>|\[\/?[A-Z_]{3,}\]/g),
    ([mark]) => mark,
  );
  const others = new Set(
    marks.filter((mark) => !/^<\/?(function|parameter|think|tools?|[|]im_(start|end)[|])/.test(mark)),
  );
  const parts = withControlTokens(byteTokenizerParts(), [...others, ...Object.values(variables)]);
  return new Tokenizer({ ...parts, config: variables });
}

/** What `read` returns, or undefined if the template cannot be read or refuses. */
function unlessRefused<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch (error) {
    expect(error).toMatchObject({ code: "ERR_TOKENIZER" });
    return undefined;
  }
}

/**
 * For how many templates `holds`, for which it does not, and how many refuse with an error of this
 * code. Templates for which it is undefined, or that cannot be read, do not count.
 */
function outcomes(
  code: string | RegExp,
  holds: (template: ChatTemplate, source: string) => boolean | undefined,
): { same: number; different: string[]; refused: number } {
  let [same, refused] = [0, 0];
  const different: string[] = [];
  for (const [name, source] of Object.entries(templates)) {
    const template = unlessRefused(() => new ChatTemplate(source, { variables }));
    if (template === undefined) continue;
    try {
      const held = holds(template, source);
      if (held === true) same++;
      else if (held === false) different.push(name);
    } catch (error) {
      if (!(error instanceof NlacError)) throw error;
      expect(error.code, name).toMatch(code);
      refused++;
    }
  }
  return { same, different, refused };
}

/** Templates that render other text for a short conversation than for a longer one. */
const changing = ["llama_cpp_python/CohereForAI-c4ai-command-r7b-12-2024-tool_use.jinja"];

/** Templates that write a call after text in a turn of its own. */
const otherCalls = ["llama_cpp_python/NVIDIA-Nemotron-Nano-v2.jinja"];

/** Templates that are refused: keys that are no texts. */
const refused: ReadonlySet<string> = new Set([
  "xinference/seed-oss",
  "llama_cpp_python/ByteDance-Seed-OSS.jinja",
]);

describe.skipIf(names.length === 0)("published chat templates", () => {
  it("give the text of transformers", () => {
    const wanted = reference();
    const wrong: string[] = [];
    let compared = 0;
    for (const [name, source] of Object.entries(templates)) {
      if (wanted[name] === null || refused.has(name)) continue;
      const renderer = new TemplateRenderer(source, { ...variables, strftime_now: () => "now" });
      for (const [i, { turns, ...options }] of conversations.entries()) {
        const expected = wanted[name]![i];
        if (expected === null) continue;
        compared++;
        let text: string;
        try {
          text = renderer.render(turns, options);
        } catch (error) {
          text = String(error);
        }
        if (text !== expected)
          wrong.push(`${name}, conversation ${i}:\n${text.slice(-300)}\n--- not\n${expected!.slice(-300)}`);
      }
    }
    expect(wrong.slice(0, 5)).toEqual([]);
    expect(compared).toBeGreaterThan(4000);
  }, 300_000);

  it("are those of a growing conversation", () => {
    const messages = [question, model("Fine"), other];
    const { same, different, refused } = outcomes("ERR_TOKENIZER", (template, source) => {
      const whole = unlessRefused(() => template.render(messages, { addGenerationPrompt: true }));
      if (whole === undefined) return undefined;
      const tokenizer = tokenizerOf(source);
      const grown = Conversation.start(tokenizer, template, [question])
        .appendAssistantText("Fine")
        .append(other);
      return tokenizer.decode(grown.prompt(), { continues: true }) === whole;
    });
    expect(different).toEqual(changing);
    expect(same).toBeGreaterThan(190);
    expect(refused).toBeLessThan(20);
  }, 300_000);

  const inText = '{"city": "Oslo", "days": 2}';

  it("are those of written calls", () => {
    const { same, different, refused } = outcomes("ERR_CONFIG", (template, source) => {
      const renderer = new TemplateRenderer(source, variables);
      const called = unlessRefused(() => renderer.render([question, model("", plainCall)], { tools })) ?? "";
      const shows =
        called.lastIndexOf("look_up") > called.lastIndexOf(question.content) && called.includes("Oslo");
      if (!template.readsTools || !shows) return undefined;
      const start = Conversation.start(tokenizerOf(source), template, [question], { tools });
      return called.includes(start.writeCall({ name: "look_up", arguments: inText }).text);
    });
    expect(different).toEqual(otherCalls);
    expect(same).toBeGreaterThan(100);
    expect(refused).toBeLessThan(15);
  }, 300_000);

  it("are read again as calls, or refused when an episode starts", () => {
    const tool = { name: "look_up", arguments: { city: "Oslo", days: 2 } };
    const action = { text: `{"name": "look_up", "arguments": ${inText}}`, tool };
    const { same, different } = outcomes(/ERR_CONFIG|ERR_TOKENIZER/, (template, source) => {
      const tokenizer = tokenizerOf(source);
      const policy = {
        endOfTurn: tokenizer.idOf(variables.eos_token)!,
        conversation: (messages: readonly Message[], options?: { tools?: readonly ToolSchema[] }) =>
          Conversation.start(tokenizer, template, messages, options),
      };
      const conversation = policyConversation(policy, { messages: [question], tools }, "call");
      const ids = turnTokens(policy, conversation, action, "call").slice(0, -1);
      const [text] = completionText(tokenizer, ids).split("</think>").slice(-1);
      const parsed = parseAction(text!.trimStart(), "call", tools);
      return parsed.ok && isDeepStrictEqual({ ...parsed.action.tool }, tool);
    });
    expect(different).toEqual([]);
    expect(same).toBeGreaterThan(60);
  }, 300_000);
});
