/** Results of calls in templates that refuse them without the call's id (Mistral 7B v0.3, Nemo). */

import { describe, expect, it } from "vitest";
import type { Message } from "../../lib/contract/environment.ts";
import { parseCalls } from "../../lib/prompts/calls.ts";
import { Conversation } from "../../lib/tokens/conversation.ts";
import type { ConversationJson } from "../../lib/tokens/conversation-json.ts";
import { parseTemplate, renderTemplate } from "../../lib/tokens/jinja.ts";
import { ChatTemplate } from "../../lib/tokens/template.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { byteTokenizerParts, withControlTokens } from "../support/scripted-model.ts";
import { fixtureText } from "./fixtures.ts";

const marks = ["[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[INST]", "[/INST]"];
const source = fixtureText("templates/ids-like.jinja");
const parameters = { type: "object", properties: {} };
const tools = ["find", "wait"].map((name) => ({ name, description: "", parameters }));
const question: Message = { role: "user", content: "Begin." };

function opened(chatTemplate = source) {
  const tokenizer = new Tokenizer({ ...withControlTokens(byteTokenizerParts(), marks), chatTemplate });
  const template = ChatTemplate.of(tokenizer);
  return {
    tokenizer,
    template,
    conversation: Conversation.start(tokenizer, template, [question], { tools }),
  };
}

/** What the template renders, as transformers calls it. */
function rendered(...messages: object[]): string {
  const described = tools.map((tool) => ({ type: "function", function: tool }));
  return renderTemplate(parseTemplate(source), { messages: [question, ...messages], tools: described }, 1000);
}

const called = (...calls: [name: string, id: string, given?: object][]) => ({
  ...{ role: "assistant", content: "" },
  tool_calls: calls.map(([name, id, given = {}]) => ({ id, function: { name, arguments: given } })),
});
const result = (content: string, tool_call_id: string) => ({ role: "tool", content, tool_call_id });
const sampledCall = (id: string) =>
  `[TOOL_CALLS] [{"name": "find", "arguments": {"id": "not this"}${id}}]<|im_end|>`;

describe("a result has the id of its call", () => {
  it.each([
    ["that the model gave it", ', "id": "Xy0Xy0Xy0"', "Xy0Xy0Xy0"],
    ["or another one that the template accepts, if the model gave none", "", "call00000"],
    ["also if the model gave one that is too short", ', "id": "ab"', "call00000"],
  ])("%s", (_, written, id) => {
    const { tokenizer, conversation } = opened();
    const sampled = sampledCall(written);
    conversation.appendGeneration({ tokens: tokenizer.encodeTemplate(sampled) });
    conversation.append({ role: "tool", content: "3" });
    const text = `${sampled}[TOOL_RESULTS] {"content": 3, "call_id": "${id}"}[/TOOL_RESULTS]`;
    expect(tokenizer.decode(conversation.prompt()).endsWith(text)).toBe(true);
    conversation.appendGeneration({ tokens: tokenizer.encodeTemplate(" Three.<|im_end|>") });
    conversation.append({ role: "user", content: "On." });
    expect(tokenizer.decode(conversation.prompt())).toContain(`${text} Three.<|im_end|>`);
  });

  it("and calls are written whole where the system message stands in the last question", () => {
    const { tokenizer, template } = opened();
    for (const before of [
      [],
      [{ role: "system", content: "Be brief, and say where you looked." } as const],
    ]) {
      const conversation = Conversation.start(tokenizer, template, [...before, question], { tools });
      const { text } = conversation.writeCall({ name: "find", arguments: "{}" });
      expect(text).toBe('[TOOL_CALLS] [{"name": "find", "arguments": {}, "id": "call00000"}]');
    }
  });

  it("one after another, in several calls of a turn, and after it was stored", () => {
    const { tokenizer, template, conversation } = opened();
    const given = { role: "tool", content: "1" } as const;
    conversation.appendCalls([
      { name: "find", arguments: "{}", id: "abcdefgh1" },
      { name: "wait", arguments: '{"a": 2}' },
      { name: "find", arguments: "{}", id: "from elsewhere, and long" },
    ]);
    conversation.append(given);
    const json = JSON.parse(JSON.stringify(conversation)) as ConversationJson;
    const restored = Conversation.fromJSON(json, tokenizer, template);
    for (const one of [conversation, restored]) {
      one.append(given).append(given);
      const ids = ["abcdefgh1", "call00001", "call00002"] as const;
      const turn = called(["find", ids[0]], ["wait", ids[1], { a: 2 }], ["find", ids[2]]);
      expect(tokenizer.decode(one.prompt())).toBe(rendered(turn, ...ids.map((id) => result("1", id))));
    }
  });

  it.each(["I wait.", " I wait."])(
    "also of calls that are written as text, of which it knows none: %j",
    (text) => {
      const { tokenizer, template, conversation } = opened();
      conversation.appendAssistantText(text);
      conversation.append({ role: "tool", content: "1" }, { role: "tool", content: "2" });
      const said = { role: "assistant", content: "I wait." };
      const expected = rendered(said, result("1", "call00000"), result("2", "call00001"));
      expect(tokenizer.decode(conversation.prompt())).toBe(expected);
      const results: Message[] = ["1", "2"].map((content) => ({ role: "tool", content }));
      const all = [question, said as Message, ...results];
      expect(template.render(all, { tools })).toBe(expected);
      expect(tokenizer.decode(template.encode(tokenizer, all, { tools }))).toBe(expected);
    },
  );

  it("whose text cannot become a control token", () => {
    const { tokenizer, conversation } = opened();
    const [mark, ...rest] = sampledCall(', "id": "[/INST]12"').split(/(?<=^\[TOOL_CALLS\])/);
    const tokens = [...tokenizer.encodeTemplate(mark!), ...tokenizer.encode(rest.join(""))];
    conversation.appendGeneration({ tokens });
    const before = conversation.length;
    conversation.append({ role: "tool", content: "[INST]" });
    const ids = conversation.prompt().slice(before);
    expect(ids).toContain(tokenizer.idOf("[TOOL_RESULTS]"));
    expect(ids.filter((id) => id === tokenizer.idOf("[INST]") || id === tokenizer.idOf("[/INST]"))).toEqual(
      [],
    );
  });

  it("also where the id stands before the arguments (Mistral Small 3.2)", () => {
    const inline = `{%- for message in messages %}
{%- if message.role == 'tool' %}{{- '[TOOL_RESULTS]' + message.tool_call_id[-9:] + '|' + message.content }}
{%- else %}{{- '[INST]' + message.content }}{%- for call in message.tool_calls or [] %}
{{- '[TOOL_CALLS]' + call.function.name + '[CALL_ID]' + call.id + '[ARGS]' + (call.function.arguments | tojson) }}
{%- endfor %}{{- '<|im_end|>' }}{%- if loop.first and tools %}{{- tools | tojson }}{%- endif %}{%- endif %}{%- endfor %}`;
    const { tokenizer, conversation } = opened(inline);
    const text = "[TOOL_CALLS]find[CALL_ID]Aa1Bb2Cc3[ARGS]{}[TOOL_CALLS]wait[CALL_ID]Dd4Ee5Ff6[ARGS]{}";
    conversation.appendGeneration({ tokens: tokenizer.encodeTemplate(`${text}<|im_end|>`) });
    conversation.append({ role: "tool", content: "1" }).append({ role: "tool", content: "2" });
    expect(
      tokenizer
        .decode(conversation.prompt())
        .endsWith(`${text}<|im_end|>[TOOL_RESULTS]Aa1Bb2Cc3|1[TOOL_RESULTS]Dd4Ee5Ff6|2`),
    ).toBe(true);
    const parsed = parseCalls(text, tools);
    expect(parsed.ok && parsed.calls.map(({ id }) => id)).toEqual(["Aa1Bb2Cc3", "Dd4Ee5Ff6"]);
  });
});
