import { spawnSync } from "node:child_process";
import fc from "fast-check";
import { describe, expect, it, vi } from "vitest";
import type { Message, ToolSchema } from "../../lib/contract/environment.ts";
import { ChatTemplate } from "../../lib/tokens/template.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { peersPython } from "../support/peers.ts";
import { fixtureJson, type TokenizerName, tokenizerNamed, tokenizerNames } from "./fixtures.ts";

interface Chat {
  tokenizer: TokenizerName;
  messages: Message[];
  tools?: ToolSchema[];
  addGenerationPrompt?: boolean;
  variables?: Record<string, unknown>;
  text: string;
  ids: number[];
}

describe("against transformers", () => {
  const chats = fixtureJson<Chat[]>("chats.json").map((chat, i) => [`${chat.tokenizer} ${i}`, chat] as const);

  it.each(chats)("%s renders to the same text and ids", (_, chat) => {
    const tokenizer = tokenizerNamed(chat.tokenizer);
    const template = ChatTemplate.of(tokenizer, { variables: chat.variables });
    const options = { tools: chat.tools, addGenerationPrompt: chat.addGenerationPrompt ?? true };
    const text = template.render(chat.messages, options);
    expect(text).toBe(chat.text);
    expect(tokenizer.encodeTemplate(text)).toEqual(chat.ids);
    const contents = JSON.stringify([chat.messages, chat.tools]);
    const spells = [...tokenizer.addedIds].some((id) => contents.includes(tokenizer.decode([id])));
    if (!spells) expect(template.encode(tokenizer, chat.messages, options)).toEqual(chat.ids);
  });

  it("compares ids of chats without control spellings for every tokenizer", () => {
    for (const name of tokenizerNames)
      expect(chats.filter(([, chat]) => chat.tokenizer === name)).toHaveLength(6);
  });
});

it.each([
  ["strip('\\n')", " a\n "],
  ["lstrip('\\n')", " a\n \n"],
  ["rstrip('\\n')", "\n a\n "],
  ["strip('\\n ')", "a"],
  ["strip('')", "\n a\n \n"],
  ["strip('\\na ')", ""],
  ["strip(none)", "a"],
  ["strip()", "a"],
])("a template's %s removes the characters that Python's does", (call, expected) => {
  const template = new ChatTemplate(`{{ messages[0].content.${call} }}`);
  expect(template.render([{ role: "user", content: "\n a\n \n" }])).toBe(expected);
});

// What Jinja prints in Python, run with jinja2 3.1.
it.each([
  ["{{ none }}", "None"],
  ["{{ true }} {{ [false] }}", "True [False]"],
  ["{{ missing }}", ""],
  ["{{ none | string }}", "None"],
  ["{% set x = none %}{% macro f() %}{% endmacro %}[{{ f() }}]", "[]"],
  ["{{ ['STRING', 'null'] | string }}", "['STRING', 'null']"],
  ["{{ ['string', 'null'] | upper }}", "['STRING', 'NULL']"],
  ["{{ [\"it's\", 'a\"b', 'c\\n\\t\\\\'] }}", `["it's", 'a"b', 'c\\n\\t\\\\']`],
  ["{{ {'a': [1, none, 2.5], 'é\u200b': {}} }}", "{'a': [1, None, 2.5], 'é\\u200b': {}}"],
  ["{{ (1, 'a') }}", "(1, 'a')"],
  ["{{ 0.0000001 }} {{ 0.0001 }} {{ 2.0 }} {{ 1.5 | string }}", "1e-07 0.0001 2.0 1.5"],
  ["{{ 2.0 ~ true ~ none ~ missing ~ [0.0000001] }}", "2.0TrueNone[1e-07]"],
  ["{{ [2.0, 0.0000001, 4 / 2, (1, 'a')] | tojson }}", '[2.0, 1e-07, 2.0, [1, "a"]]'],
  ["{{ (1.0 * 10 ** 200 * 10 ** 200) | tojson }}", "Infinity"],
  [
    "{{ {'b': 1, 'a': [], '\ud83d\ude00': 2, '\uff5e': {'é\x7f': none}} | tojson(indent=1, sort_keys=true, ensure_ascii=true) }}",
    '{\n "a": [],\n "b": 1,\n "\\uff5e": {\n  "\\u00e9\\u007f": null\n },\n "\\ud83d\\ude00": 2\n}',
  ],
  ["{{ [1, {'a': 2}] | tojson(separators=(',', ':')) }}", '[1,{"a":2}]'],
  ["{{ [1] | tojson(indent=0) }}", "[\n1\n]"],
  ["{% for x in [1, 2, 3] %}a{% if x == 2 %}{{ x }}{% continue %}{% endif %}b{% endfor %}", "aba2ab"],
  ["{% for x in [1, 2] %}a{% break %}{% else %}none{% endfor %}", "anone"],
  ["{% for x in [1, 2] %}a{% continue %}{% else %}none{% endfor %}", "aanone"],
  ["{% for x in [1, 2] %}a{% if x == 2 %}{% break %}{% endif %}{% else %}none{% endfor %}", "aa"],
  [
    "{% for x in [1, 2] %}{% for y in [3, 4] %}{{ y }}{% if y == 3 %}{% continue %}{% endif %}-{% endfor %}" +
      "{{ x }}{% break %}{% endfor %}.",
    "34-1.",
  ],
  [
    "{% for c in 'a😀' %}[{{ c }}]{% endfor %}|{% for x in unknown %}x{% else %}empty{% endfor %}",
    "[a][😀]|empty",
  ],
  ["{{ 'abc' | selectattr('type', 'equalto', 'image') | list | length }}", "0"],
  ["{{ 'ab' | rejectattr('type', 'equalto', 'image') | list }}", "['a', 'b']"],
  [
    "{{ 'a' in unknown }} {{ 'a' not in unknown }} {{ unknown in ['a'] }} {{ unknown not in {'a': 1} }}",
    "False True False True",
  ],
  ["{{ unknown == none }} {{ unknown != none }} {{ messages[0].unknown == none }}", "False True False"],
  ["{{ none == none }} {{ unknown == unknown }} {{ none == '' }} {{ '1' == 1 }}", "True True False False"],
  [
    "{{ [] == [] }} {{ [1, 'a'] != [1.0, 'a'] }} {{ [1] == [1, 2] }} {{ (1,2) == [1,2] }}",
    "True False False False",
  ],
  ["{{ {'a': [none], 'b': 1} == {'b': true, 'a': [none]} }} {{ {'a': 1} == {'b': 1} }}", "True False"],
  ["{{ messages == [{'role': 'user', 'content': '?'}] }}", "True"],
  ["{{ -7 % 3 }} {{ -6 % 3 }} {{ 7 % -3 }} {{ 7.5 % -2 }} {{ 7 % 3 }}", "2 0 -2 -0.5 1"],
  ["{{ 'aBC dEF' | capitalize }} {{ 'éA É'.capitalize() }}[{{ '' | capitalize }}]", "Abc def Éa é[]"],
  [
    '{{ "it\'s (a) [b] <c> {d} é-a1b éA" | title }} {{ "it\'s é-a1b éA".title() }}',
    "It's (A) [B] <C> {D} É-A1b Éa It'S É-A1B Éa",
  ],
  ["{{ [1, none, true, 2.5, [1]] | join('-') }}{{ [1, 2] | join }}", "1-None-True-2.5-[1]12"],
  ["{{ messages | join(',', attribute='role') }} {{ ['a', 'b'] | join(d=';') }}", "user a;b"],
  ["{{ unknown | length }}{{ unknown | list }}{{ unknown | join }}", "0[]"],
  ["{{ messages[0].unknown | selectattr('a') | list | length }}", "0"],
  ["a\r\n{% if true %}\r\nb\r\n{% endif %}\r\n{{ '\\r' }}c", "a\nb\n\rc"],
  ["{{ 'a' + 'b' + ('c' + 'd') }}{{ [1] + [2] + [3] }}{{ 1 + 2 + 3 }}", "abcd[1, 2, 3]6"],
  [
    "{% set d = {'items': 1, 'get': 2} %}{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{{ d.get('get') }}{{ d['items'] }}",
    "items=1;get=2;21",
  ],
  [
    "{{ {'a': 1}.keys is defined }} {{ {'a': 1}[none] is defined }} {{ {'a': 1}[unknown] is defined }} {{ [1][unknown] is defined }}",
    "True False False False",
  ],
  [
    "{{ [3, 1.5, 2] | min }} {{ ['b', 'A', 'c'] | max }} {{ ['b', 'A', 'a'] | min }} {{ [] | min is defined }} {{ 'bca' | max }}",
    "1.5 c A False c",
  ],
  [
    "[{{ unknown | trim }}] {{ 12 | trim }} {{ '-a-' | trim('-') }} {{ '-a-' | trim(chars='-') }}",
    "[] 12 a a",
  ],
  [
    "{{ [] | first is defined }} {{ 'é😀' | last }} {{ unknown | first is defined }} {{ messages | selectattr('role', 'eq', 'x') | map(attribute='content') | first | default('none') }}",
    "False 😀 False none",
  ],
  [
    "{% for a, b in [('x', 1), ('y', 2)] %}{{ a }}{{ b }}{% endfor %} {% for a, b in {'z': 3}.items() %}{{ a }}{{ b }}{% endfor %}",
    "x1y2 z3",
  ],
  [
    "{{ none | selectattr('a') | list }} {{ none | map(attribute='a') | list }} {{ '' | reject('equalto', 'a') | list }}",
    "[] [] []",
  ],
  [
    "{{ ['a', 'b', 'a'] | reject('equalto', 'a') | list }} {{ [1, 'a', none] | select('string') | list }} {{ [0, 1, ''] | select | list }}",
    "['b'] ['a'] [1]",
  ],
  [
    "{{ {} is iterable }} {{ {} is sequence }} {{ 'a' is iterable }} {{ 'a' is sequence }} {{ 1 is iterable }} {{ none is not iterable }} {{ true is number }} {{ unknown is iterable }}",
    "True True True True False True True True",
  ],
  [
    "{{ '%s and %r: %d, %.2f%%' | format('a', 'b', 3.7, 2) }} {{ '%(x)s' | format(x=[1]) }}",
    "a and 'b': 3, 2.00% [1]",
  ],
  ["{{ 'a{}b{}{{}}'.format('x', 1) }} {{ '{1}{0}{n}'.format('x', 'y', n=none) }}", "axb1{} yxNone"],
  [
    "{{ ('<a>' + '<b>' | safe) + '\"&' }} {{ '<a>' | safe ~ '<b>' }} {{ (' <a> ' | safe | trim) + \"'\" }}",
    "&lt;a&gt;<b>&#34;&amp; <a><b> <a>&#39;",
  ],
  [
    "{% set first = true %}{% for x in [1, 2, 3] %}{% if not first %}, {% endif %}{{ x }}{% set first = false %}{% endfor %}{{ first }}",
    "123True",
  ],
  ["{% for x in [1, 2] %}{{ seen is defined }}{% set seen = x %}{% endfor %}", "FalseFalse"],
  [
    "{% set x = 0 %}{% macro show() %}{{ x }}{{ y is defined }}{% endmacro %}{% for x in [1, 2] %}{% set y = x %}{{ show() }}{% endfor %}{% set x = 5 %}{{ show() }}",
    "0False0False5False",
  ],
  [
    "{% macro box() %}<{{ caller() }}>{% endmacro %}{% for x in [1, 2] %}{% call box() %}{{ x }}{% endcall %}{% endfor %}",
    "<1><2>",
  ],
  ["a\n  {% raw %}{{ b }}\n{% endraw %}\nc{%- raw -%} {% if %} {%- endraw -%} d", "a\n{{ b }}\nc{% if %}d"],
  [
    "{{ 'ab' * 2 }}{{ 2 * 'c' }}[{{ 'a' * -1 }}] {{ 0 * -1 }} {{ -1.5 | int }} {{ '1_0' | int }} {{ '12a' | int }} {{ '2.7' | int }} {{ 'a' | int(7) }} {{ true | int }}",
    "ababcc[] 0 -1 10 0 2 7 1",
  ],
  [
    "{{ 'a😀b' | length }} {{ 'a😀b'[1] }} {{ 'a😀b'[1:] }} {{ 'a😀b'[-2:] }} {{ 'ab'[5] is defined }} {{ 'a😀'[:1] }}",
    "3 😀 😀b 😀b False a",
  ],
  [
    "{{ 1 in [true] }} {{ [1] in [[1.0]] }} {{ none in [unknown] }} {{ none in {'a': 1} }} {{ 'b' not in 'abc' }}",
    "True True False False False",
  ],
  [
    "{{ none | string }} {{ [1] | lower }} {{ 'ß' | upper }} {{ {'B': 1, 'a': 2} | dictsort }}",
    "None [1] SS [('a', 2), ('B', 1)]",
  ],
  [
    "{{ 5 | default('x') }} {{ '' | default('x', true) }} {{ unknown | default }}[{{ 7 | d('y') }}]",
    "5 x [7]",
  ],
])("prints %j as Python does", (source, printed) => {
  expect(new ChatTemplate(source).render([{ role: "user", content: "?" }])).toBe(printed);
});

it.each([
  ...["{{ 'a' + {'b': 1} }}", "{{ 'a' + 1 }}", "{{ unknown + 'a' }}", "{{ 1 % 0 }}"],
  ...["{{ '%d' | format('a') }}", "{{ '%s' | format }}", "{{ '%s' | format(1, 2) }}", "{{ '{}'.format() }}"],
  ...["{{ '{'.format(1) }}", "{{ [1, 'a'] | min }}", "{% raw %}", "{{ 'a'.strip(1) }}"],
])("refuses %j as Python does, and prints no [object Map]", (source) => {
  expect(() => new ChatTemplate(source).render([{ role: "user", content: "?" }])).toThrow(
    expect.objectContaining({ code: expect.stringMatching(/^ERR_/) }),
  );
});

/** Numbers that are no integers, by their bits; and large and small integers. */
function someNumbers(): number[] {
  const bits = new DataView(new ArrayBuffer(8));
  const floats = fc.sample(fc.tuple(fc.nat(0xffffffff), fc.nat(0xffffffff)), { numRuns: 4000, seed: 1 });
  const random = floats.map(([high, low]) => {
    bits.setUint32(0, high);
    bits.setUint32(4, low);
    return bits.getFloat64(0);
  });
  const powers = Array.from({ length: 633 }, (_, i) => 1.25 * 10 ** (i - 324));
  const edges = [
    5e-324,
    2.2250738585072014e-308,
    Number.MAX_VALUE,
    1e21,
    1e22,
    1e300,
    0.1,
    1 / 3,
    1e-5,
    1e-4,
  ];
  const all = [...random.filter(Number.isFinite), ...powers, ...edges, 123456789.125, 0.00012345, 1e-7];
  return [...all, ...all.map((number) => -number), 0, 1, -1, 2 ** 53, 1e15].filter(
    // Without a fraction, JavaScript cannot tell floats from integers.
    (number) => !Number.isInteger(number) || Math.abs(number) <= 2 ** 53 || Math.abs(number) >= 1e21,
  );
}

const python = peersPython(["json"], "floats in JSON beside Python's");

it.skipIf(python === undefined)("writes numbers in JSON as Python does", () => {
  const numbers = someNumbers();
  const program = "import json, sys; print('\\n'.join(json.dumps(x) for x in json.load(sys.stdin)))";
  const input = `[${numbers.map((number) => (Object.is(number, -0) ? "-0.0" : String(number))).join()}]`;
  const { stdout } = spawnSync(python!, ["-c", program], { input, encoding: "utf8" });
  const expected = stdout.trimEnd().split("\n");
  expect(expected).toHaveLength(numbers.length);
  const template = new ChatTemplate("{{ tools[0].function.parameters.enum | tojson }}");
  const tools = [{ name: "any", description: "", parameters: { enum: numbers } }];
  const text = template.render([{ role: "user", content: "?" }], { tools });
  expect(text.slice(1, -1).split(", ")).toEqual(expected);
});

it.each(["content | trim", "content.strip()", "content.lstrip().rstrip()"])(
  "%s removes Python's white space",
  (call) => {
    const template = new ChatTemplate(`{{ messages[0].${call} }}`);
    const content = "\x1c\u0085 \ufeffa\ufeff\u3000\x1f";
    expect(template.render([{ role: "user", content }])).toBe("\ufeffa\ufeff");
  },
);

it("prints dates in English in every locale, as Python does", () => {
  const Format = Intl.DateTimeFormat;
  class GermanByDefault extends Format {
    constructor(locale: string = "de-DE", options?: Intl.DateTimeFormatOptions) {
      super(locale, options);
    }
  }
  vi.useFakeTimers({ now: new Date(2026, 9, 5, 7, 8, 9) });
  Intl.DateTimeFormat = GermanByDefault as typeof Format;
  try {
    const template = new ChatTemplate("{{ strftime_now('%a %A %d %b %B %Y-%m %H:%M:%S %% %Q') }}");
    expect(template.render([])).toBe("Mon Monday 05 Oct October 2026-10 07:08:09 % %Q");
  } finally {
    Intl.DateTimeFormat = Format;
    vi.useRealTimers();
  }
});

it("prints booleans as Python does, and in JSON as JSON", () => {
  const source =
    "{{ add_generation_prompt }} {{ tools[0].function.parameters.strict | string }} {{ 'true' | string }} {{ not true }} {{ [true] | tojson }}";
  const tools = [{ name: "find", description: "", parameters: { strict: false } }];
  const messages = [{ role: "user" as const, content: "" }];
  const text = new ChatTemplate(source).render(messages, { tools, addGenerationPrompt: true });
  expect(text).toBe("True False true False [true]");
});

const roles = ["system", "user", "assistant", "tool"] as const;

describe.each(tokenizerNames)("messages that spell control tokens, in %s", (name) => {
  const tokenizer = tokenizerNamed(name);
  const template = ChatTemplate.of(tokenizer);
  const spellings = [...tokenizer.addedIds].map((id) => tokenizer.decode([id]));
  const added = (ids: readonly number[]) => ids.filter((id) => tokenizer.addedIds.has(id));
  const piece = fc.oneof(
    fc.constantFrom(...spellings),
    fc.constantFrom(...spellings).chain((s) => fc.nat(s.length).map((n) => s.slice(0, n))),
    fc.string({ maxLength: 6 }),
    fc.constantFrom("\n", " ", "\ufdd0", "marked0"),
  );
  const hostile = fc.array(piece, { minLength: 1, maxLength: 8 }).map((parts) => parts.join(""));

  it("leave the control tokens of the template as they are", () => {
    fc.assert(
      fc.property(hostile, hostile, hostile, (a, b, c) => {
        const say = (x: string, y: string, z: string): Message[] => [
          { role: "system", content: x },
          { role: "user", content: y },
          { role: "assistant", content: "Well." },
          { role: "user", content: z },
        ];
        const options = { addGenerationPrompt: true };
        const ids = template.encode(tokenizer, say(a, b, c), options);
        expect(added(ids)).toEqual(added(template.encode(tokenizer, say("x", "y", "z"), options)));
        expect(tokenizer.decode(ids)).toBe(
          tokenizer.decode(tokenizer.encode(template.render(say(a, b, c), options))),
        );
      }),
      { numRuns: 200 },
    );
  });

  it("do so in what tools are called, too", () => {
    fc.assert(
      fc.property(hostile, hostile, (a, b) => {
        const tool = (x: string, y: string): ToolSchema => ({
          name: x,
          description: y,
          parameters: { type: "object", properties: { [`p${x}`]: { enum: [y] } } },
        });
        const messages: Message[] = [{ role: "user", content: "q" }];
        const ids = template.encode(tokenizer, messages, { tools: [tool(a, b)] });
        expect(added(ids)).toEqual(added(template.encode(tokenizer, messages, { tools: [tool("x", "y")] })));
      }),
      { numRuns: 100 },
    );
  });

  it("do so in what a continuation appends", () => {
    fc.assert(
      fc.property(
        hostile,
        fc.constantFrom("user", "tool"),
        fc.constantFrom(...roles),
        (text, role, after) => {
          const context = { after, system: false };
          const grow = (content: string) =>
            template.encodeContinuation(tokenizer, context, [{ role: role as Message["role"], content }]);
          expect(added(grow(text))).toEqual(added(grow("x")));
        },
      ),
      { numRuns: 200 },
    );
  });
});

it("finds out whether a template describes tools", () => {
  expect(ChatTemplate.of(tokenizerNamed("smollm2")).readsTools).toBe(false);
  expect(ChatTemplate.of(tokenizerNamed("qwen-like")).readsTools).toBe(true);
  expect(ChatTemplate.of(tokenizerNamed("llama3-like")).readsTools).toBe(true);
});

describe("faults", () => {
  const tokenizer = tokenizerNamed("qwen-like");
  const thrown = (code: string, message: RegExp) =>
    expect.objectContaining({ code, message: expect.stringMatching(message) });

  it("a base model has no template", () => {
    const base = new Tokenizer({ json: fixtureJson("qwen-like.json.gz"), config: {} });
    expect(() => ChatTemplate.of(base)).toThrow(thrown("ERR_TOKENIZER", /no chat template/));
  });

  it("a template that is not Jinja", () => {
    expect(() => new ChatTemplate("{% for %}")).toThrow(thrown("ERR_TOKENIZER", /cannot be read/));
  });

  it("messages that the template refuses", () => {
    const strict = new ChatTemplate("{{ raise_exception('Roles must alternate') }}");
    expect(() => strict.render([{ role: "user", content: "a" }])).toThrow(
      thrown("ERR_TOKENIZER", /Roles must alternate/),
    );
  });

  it("a member of an undefined value, which is an error in Python too", () => {
    const messages = [{ role: "user" as const, content: "a" }];
    for (const source of [
      "{{ nothing.name }}",
      "{{ nothing['name'] }}",
      "{{ messages[0].nothing.name }}",
      "{{ messages[7].content }}",
      "{% if nothing.name is defined %}{% endif %}",
      "{% for one in nothing.list %}{% endfor %}",
    ])
      expect(() => new ChatTemplate(source).render(messages), source).toThrow(
        thrown("ERR_TOKENIZER", /undefined/),
      );
    for (const source of ["{{ nothing }}", "{{ messages[0].nothing }}", "{{ none.name }}", "{{ 'a'.name }}"])
      expect(new ChatTemplate(source).render(messages), source).toBe("");
  });

  it("an unknown role", () => {
    const message = { role: "<|im_end|>", content: "a" } as unknown as Message;
    expect(() => ChatTemplate.of(tokenizer).render([message])).toThrow(thrown("ERR_VALUE", /<\|im_end\|>/));
  });

  it("a template that puts new messages before old ones", () => {
    const backwards = new ChatTemplate(
      "{% for m in messages | reverse %}[{{ m.content }}]{% endfor %}!{{ messages | length }}",
    );
    const grow = () =>
      backwards.encodeContinuation(tokenizer, { after: "user", system: false }, [
        { role: "user", content: "b" },
      ]);
    expect(grow).toThrow(thrown("ERR_TOKENIZER", /by appending/));
  });

  it("a template that leaves a message out", () => {
    const silent = new ChatTemplate("{% for m in messages %}[]{% endfor %}");
    const grow = () => silent.encodeContinuation(tokenizer, { after: "user", system: false }, []);
    expect(grow).toThrow(thrown("ERR_TOKENIZER", /omits the content/));
  });
});

it("a template reads tools if it needs them, and not if it refuses them", () => {
  const reads = (source: string) => new ChatTemplate(source).readsTools;
  expect(reads("{% for tool in tools %}{{ tool | tojson }}{% endfor %}")).toBe(true);
  expect(reads("{% if tools %}{{ raise_exception('no tools') }}{% endif %}?")).toBe(false);
  expect(reads("{{ raise_exception('nothing') }}")).toBe(false);
});
