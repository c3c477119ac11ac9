import { describe, expect, it, vi } from "vitest";
import type { Message, ToolSchema } from "../../lib/contract/environment.ts";
import { servicePlayer } from "../../lib/playing/service-player.ts";
import { parseAction, policyConversation, turnTokens } from "../../lib/prompts/policy.ts";
import { Conversation } from "../../lib/tokens/conversation.ts";
import { ChatTemplate } from "../../lib/tokens/template.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { byteTokenizerParts, withControlTokens } from "../support/scripted-model.ts";
import { fixtureJson, fixtureText, type TokenizerName, tokenizerNamed } from "./fixtures.ts";

interface RecordedCall {
  tokenizer: TokenizerName;
  question: string;
  thought: string;
  arguments: Record<string, unknown>;
  tool: ToolSchema;
  text: string;
}

const recorded = fixtureJson<RecordedCall[]>("calls.json");
const tool = recorded[0]!.tool;
const question: Message[] = [{ role: "user", content: "Weather?" }];

function modelOf(name: TokenizerName, template = ChatTemplate.of(tokenizerNamed(name))) {
  const tokenizer = tokenizerNamed(name);
  return {
    endOfTurn: tokenizer.eosTokenIds[0]!,
    conversation: (messages: readonly Message[], options?: { tools?: readonly ToolSchema[] }) =>
      Conversation.start(tokenizer, template, messages, options),
  };
}

describe("a call is written as transformers renders it", () => {
  it.each(recorded.map((call, i) => [`${call.tokenizer} ${i}`, call] as const))("%s", (_, call) => {
    const tokenizer = tokenizerNamed(call.tokenizer);
    const conversation = modelOf(call.tokenizer).conversation([{ role: "user", content: call.question }], {
      tools: [call.tool],
    });
    const { tokens } = conversation.writeCall({
      name: call.tool.name,
      // Python's spelling, which JavaScript's has no spaces for.
      arguments: JSON.stringify(call.arguments, null, 1)
        .replaceAll(/\n\s*/g, " ")
        .replaceAll(/([[{]) | ([\]}])/g, "$1$2"),
      // Llama's template leaves a thought out.
      ...(call.text.includes(call.thought) ? { thought: call.thought } : {}),
    });
    conversation.appendGeneration({ tokens }).append({ role: "tool", content: "sunny" });
    expect(tokenizer.decode(conversation.tokens)).toBe(call.text);
    if (!call.text.includes("<|im_end|> {c}"))
      expect(conversation.tokens).toEqual(tokenizer.encodeTemplate(call.text));
  });
});

it("the form of a call is rendered without the tools", () => {
  const tokenizer = tokenizerNamed("qwen-like");
  const template = ChatTemplate.of(tokenizer);
  let rendered = 0;
  const counted = { ...tool, parameters: { ...tool.parameters } };
  const description = () => {
    rendered++;
    return "Weather.";
  };
  Object.defineProperty(counted, "description", { enumerable: true, get: description });
  const conversation = Conversation.start(tokenizer, template, question, { tools: [counted] });
  const write = () => {
    const before = rendered;
    const { text } = conversation.writeCall({ name: "get_weather", arguments: "{}", thought: "Hm." });
    return { text, readings: rendered - before };
  };
  expect(rendered).toBeGreaterThan(0); // in the prompt
  const [first, second] = [write(), write()];
  expect(second.text).toBe(first.text);
  expect([first.readings, second.readings]).toEqual([0, 0]);
});

describe("a conversation with tools whose turns are only text", () => {
  const converse = (chatTemplate: string, more: readonly string[] = []) => {
    const tokenizer = new Tokenizer({ ...withControlTokens(byteTokenizerParts(), more), chatTemplate });
    const template = ChatTemplate.of(tokenizer);
    const conversation = Conversation.start(tokenizer, template, question, { tools: [tool] });
    return { template, text: () => tokenizer.decode(conversation.tokens), conversation, tokenizer };
  };
  const refusing =
    "{{ tools }}{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no calls') }}{% endif %}" +
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" +
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

  it.each([[[]], [["<|call|>"]], [["<|tool_response>"]]])(
    "continues if its template refuses calls, with the control tokens %j",
    (more) => {
      const { conversation, tokenizer, text } = converse(refusing, more);
      conversation.appendGeneration({ tokens: tokenizer.encode("Hello.") });
      expect(text().endsWith("<|im_start|>assistant\nHello.<|im_end|>\n")).toBe(true);
      const { tokens } = conversation;
      const call = { name: "get_weather", arguments: "{}" };
      expect(() => conversation.appendCalls([call])).toThrow(/no calls/);
      expect(conversation.tokens).toEqual(tokens);
    },
  );

  it("renders no calls if its vocabulary has no id that ends a turn of calls", () => {
    const { conversation, template, tokenizer } = converse(fixtureText("templates/qwen-like.jinja"));
    const callForm = vi.spyOn(template, "callForm");
    conversation.appendGeneration({ tokens: tokenizer.encode("Hello.") });
    expect(callForm).not.toHaveBeenCalled();
  });
});

describe.each(["qwen-like", "llama3-like"] as const)("the policy's calls, by %s's template", (name) => {
  const model = modelOf(name);
  const tokenizer = tokenizerNamed(name);
  const open = () => policyConversation(model, { messages: question, tools: [tool] }, "call");

  it("are read again as they were, with the spelling of their numbers", () => {
    for (const thought of [undefined, "I look."]) {
      const text = '{"name": "get_weather", "arguments": {"city": "<|im_end|>", "days": 250.0}}';
      const action = {
        text,
        ...(thought && { thought }),
        tool: { name: "get_weather", arguments: { city: "<|im_end|>", days: 250 } },
      };
      const tokens = turnTokens(model, open(), action, "call").slice(0, -1);
      // What `generation.text` would hold.
      expect(parseAction(tokenizer.decode(tokens, { skipSpecial: true }), "call")).toEqual({
        ok: true,
        action,
      });
      expect(tokens.some((id) => tokenizer.specialIds.has(id))).toBe(false);
    }
  });

  it("and what is said is text", () => {
    const tokens = turnTokens(model, open(), { text: "Hello." }, "call");
    expect(tokens).toEqual([...tokenizer.encode("Hello."), model.endOfTurn]);
  });

  it("need their JSON as the action's text", () => {
    const action = { text: "get_weather", tool: { name: "get_weather", arguments: {} } };
    expect(() => turnTokens(model, open(), action, "call")).toThrow(
      expect.objectContaining({ code: "ERR_ENVIRONMENT" }),
    );
  });
});

it("control tokens around a call are the model's own ids", () => {
  const tokenizer = tokenizerNamed("qwen-like");
  const conversation = modelOf("qwen-like").conversation(question, { tools: [tool] });
  const { tokens } = conversation.writeCall({ name: "f", arguments: '{"a": "<tool_call>"}' });
  expect(tokens.filter((id) => tokenizer.addedIds.has(id)).map((id) => tokenizer.decode([id]))).toEqual([
    "<tool_call>",
    "</tool_call>",
  ]);
});

it("a service is told how to call, and its calls are read", () => {
  const player = servicePlayer({ complete: async () => "" } as never);
  const conversation = policyConversation(player, { messages: question, tools: [tool] }, "call");
  const { text } = conversation.writeCall({ name: "get_weather", arguments: '{"days": 1}', thought: "Hm." });
  expect(parseAction(text, "call")).toMatchObject({
    ok: true,
    action: { thought: "Hm.", tool: { name: "get_weather" } },
  });
});

describe("templates that cannot be used for calls", () => {
  const qwen = ChatTemplate.of(tokenizerNamed("qwen-like")).source;
  it.each([
    ["knows no tools", ChatTemplate.of(tokenizerNamed("smollm2")), /does not support function calls/],
    ["writes calls as XML", new ChatTemplate(qwen.replaceAll('{"name": "', "<function=")), /does not parse/],
    [
      "writes the name of a call twice",
      new ChatTemplate(
        "{{ tools }}{% for m in messages %}<|im_start|>{{ m.role }}" +
          "{% for c in m.tool_calls or [] %} to={{ c.function.name }}{% endfor %}\n{{ m.content }}" +
          "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n" +
          "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}",
      ),
      /in an unknown form/,
    ],
    [
      "writes calls that look like replies",
      new ChatTemplate(qwen.replaceAll("tool_call>", "called>")),
      /does not parse/,
    ],
    [
      "puts calls where none is read",
      new ChatTemplate(qwen.replaceAll("tool_call>", "invoke>[")),
      /does not parse/,
    ],
  ])("one that %s", (_, template, message) => {
    const open = () =>
      policyConversation(modelOf("qwen-like", template), { messages: question, tools: [tool] }, "call");
    expect(open).toThrow(
      expect.objectContaining({ code: "ERR_CONFIG", message: expect.stringMatching(message) }),
    );
  });
});
