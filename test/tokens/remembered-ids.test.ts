import { expect, it, vi } from "vitest";
import type { Message, ToolSchema } from "../../lib/contract/environment.ts";
import type { ContinuationContext } from "../../lib/tokens/continuation.ts";
import { RememberedIds } from "../../lib/tokens/remembered-ids.ts";
import { ChatTemplate } from "../../lib/tokens/template.ts";
import { tokenizerNamed, tokenizerNames } from "./fixtures.ts";

it("makes the ids of a source once, and returns an array of its own each time", () => {
  const remembered = new RememberedIds();
  const make = vi.fn(() => [1, 2]);
  remembered.ids(["a"], make).push(3);
  expect(remembered.ids(["a"], make)).toEqual([1, 2]);
  expect(make).toHaveBeenCalledTimes(1);
  expect(remembered.ids(["b"], () => [4])).toEqual([4]);
});

it("remembers no failure", () => {
  const remembered = new RememberedIds();
  const fail = () => {
    throw new Error("refused");
  };
  expect(() => remembered.ids("a", fail)).toThrow("refused");
  expect(remembered.ids("a", () => [1])).toEqual([1]);
});

it("forgets all when it is full, and keeps nothing that is larger than all of it", () => {
  const remembered = new RememberedIds();
  const long = new Array<number>(600_000).fill(7);
  const make = vi.fn(() => long);
  remembered.ids("a", make);
  remembered.ids("b", make);
  remembered.ids("b", make);
  expect(make).toHaveBeenCalledTimes(2);
  remembered.ids("a", make);
  expect(make).toHaveBeenCalledTimes(3);
  const larger = vi.fn(() => [...long, ...long]);
  remembered.ids("c", larger);
  remembered.ids("c", larger);
  expect(larger).toHaveBeenCalledTimes(2);
});

const tool = (name: string): ToolSchema => ({ name, description: "", parameters: { type: "object" } });

/** Continuations that differ in one part each. */
const asked: [ContinuationContext, Message[], { addGenerationPrompt?: boolean }][] = [
  [{ after: "user", system: false }, [], { addGenerationPrompt: true }],
  [{ after: "assistant", system: false }, [{ role: "user", content: "a" }], {}],
  [{ after: "assistant", system: true }, [{ role: "user", content: "a" }], {}],
  [{ after: "assistant", system: false }, [{ role: "user", content: "b" }], {}],
  [{ after: "assistant", system: false }, [{ role: "user", content: "a" }], { addGenerationPrompt: true }],
  [{ after: "assistant", system: false, tools: [tool("x")] }, [{ role: "user", content: "a" }], {}],
  [{ after: "assistant", system: false, tools: [tool("y")] }, [{ role: "user", content: "a" }], {}],
];

it.each(tokenizerNames)("%s continues as a template that remembers nothing", (name) => {
  const tokenizer = tokenizerNamed(name);
  const template = ChatTemplate.of(tokenizer);
  const fresh = asked.map((what) => ChatTemplate.of(tokenizer).encodeContinuation(tokenizer, ...what));
  for (let time = 0; time < 2; time++)
    expect(asked.map((what) => template.encodeContinuation(tokenizer, ...what))).toEqual(fresh);
});

it("renders a continuation again on another day", () => {
  vi.useFakeTimers({ toFake: ["Date"] });
  try {
    const tokenizer = tokenizerNamed("smollm2");
    const template = new ChatTemplate(
      "{% for m in messages %}<{{ m.content }}{{ strftime_now('%d') }}>{% endfor %}",
    );
    const ids = () =>
      template.encodeContinuation(tokenizer, { after: "user", system: false }, [
        { role: "user", content: "a" },
      ]);
    vi.setSystemTime(new Date(2026, 1, 3));
    expect(tokenizer.decode(ids())).toBe("<a03>");
    vi.setSystemTime(new Date(2026, 1, 4));
    expect(tokenizer.decode(ids())).toBe("<a04>");
  } finally {
    vi.useRealTimers();
  }
});

it("renders a continuation each time if the template prints the time of day", () => {
  vi.useFakeTimers({ toFake: ["Date"] });
  try {
    const tokenizer = tokenizerNamed("smollm2");
    const template = new ChatTemplate(
      "{% for m in messages %}<{{ m.content }}{{ strftime_now('%H:%M') }}>{% endfor %}",
    );
    const ids = () =>
      template.encodeContinuation(tokenizer, { after: "user", system: false }, [
        { role: "user", content: "a" },
      ]);
    for (const minute of ["03", "04"]) {
      vi.setSystemTime(new Date(2026, 1, 3, 12, Number(minute)));
      expect(tokenizer.decode(ids())).toBe(`<a12:${minute}>`);
    }
  } finally {
    vi.useRealTimers();
  }
});
