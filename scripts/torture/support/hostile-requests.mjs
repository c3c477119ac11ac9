// Hostile requests to a server of OpenAI's API, by kind. A kind makes a request from a random
// source: { path, headers, body, raw, method, leave }. The source says whether the request is one of the
// few large ones, and its `size`. `body` is a string or bytes; `raw` is sent
// as it stands; `leave` says after how many milliseconds the client disconnects.

const hello = { model: "m", messages: [{ role: "user", content: "Hello" }], max_tokens: 4 };
const chat = (more) => ({ path: "/v1/chat/completions", body: json({ ...hello, ...more }) });
const chatText = (content) => chat({ messages: [{ role: "user", content }] });
const completion = (more) => ({
  path: "/v1/completions",
  body: json({ model: "m", prompt: "Once", max_tokens: 4, ...more }),
});
const json = (value) => JSON.stringify(value);
const list = (item, count) => `[${`${item},`.repeat(count - 1)}${item}]`;
/** A chat request with one more key, whose value is given as JSON text. */
const chatWith = (key, text) => ({
  path: "/v1/chat/completions",
  body: `${json(hello).slice(0, -1)},${json(key)}:${text}}`,
});
const schemaOf = (schema, name = "a") =>
  chat({ response_format: { type: "json_schema", json_schema: { name, schema } } });
const toolOf = (parameters, name = "f") => ({ type: "function", function: { name, parameters } });
/** Schemas that nest `levels` times, each made from the one inside. */
const nested = (levels, around, inner = { type: "string" }) => {
  let schema = inner;
  for (let i = 0; i < levels; i++) schema = around(schema);
  return schema;
};

/** An object of `count` texts. */
const wide = (count) => ({
  type: "object",
  properties: Object.fromEntries(Array.from({ length: count }, (_, i) => [`p${i}`, { type: "string" }])),
});

/** `size` runs from 0 to 1, the largest bodies. */
const bytes = (size, unit = 1) => Math.max(1, Math.floor((size * 15 * 2 ** 20) / unit));

export const kinds = {
  prompts: ({ size }) => ({
    path: "/v1/completions",
    body: `{"model":"m","n":128,"prompt":${list('"x"', bytes(size, 4))}}`,
  }),
  ids: ({ size, pick }) => completion({ prompt: new Array(bytes(size, 4)).fill(pick([7, 123, 99999])) }),
  "lists of ids": ({ size }) => ({
    path: "/v1/completions",
    body: `{"model":"m","prompt":${list("[1]", bytes(size, 4))}}`,
  }),
  "prompts of ids": ({ size, pick, whole }) => {
    const prompts = pick([4, 64, 256]);
    const length = Math.max(1, Math.floor((size * 990_000) / prompts));
    // Equal ones are read by the model once.
    const prompt = new Array(Math.min(length, 60_000)).fill(whole(1000));
    return completion({ prompt: new Array(prompts).fill(prompt), max_tokens: 1 });
  },
  "long prompts": ({ size, whole }) =>
    completion({
      prompt: Array.from({ length: Math.max(1, Math.floor(size * 60_000)) }, () => whole(1000)),
      max_tokens: 1,
    }),
  "a long word": ({ size, pick }) =>
    completion({ prompt: pick(["a", "ab", "語", "é"]).repeat(bytes(size, 4)) }),
  "a long text": ({ size, pick }) =>
    pick([chatText, (prompt) => completion({ prompt })])(
      pick(["a ", " ", "<", "<|im_end|>", "\n ", "12 a", "e\u0301", "\ud83d\ude00"]).repeat(bytes(size, 8)),
    ),
  "a middling text": ({ size, pick }) =>
    chatText(pick(["ab ", "<|", "a", " "]).repeat(Math.max(1, Math.floor(size * 60_000)))),
  "empty lists": ({ size }) => chatWith("metadata", list("[]", bytes(size, 3))),
  "empty objects": ({ size }) => chatWith("messages", list("{}", bytes(size, 3))),
  keys: ({ size }) =>
    chatWith("metadata", `{${Array.from({ length: bytes(size, 14) }, (_, i) => `"k${i}":0`).join(",")}}`),
  depth: ({ size, pick }) => {
    const levels = bytes(size, 2);
    const deep = "[".repeat(levels) + "]".repeat(levels);
    const call = { id: "c", type: "function", function: { name: "f", arguments: deep } };
    const messages = [hello.messages[0], { role: "assistant", content: null, tool_calls: [call] }];
    return pick([
      () => chatWith("metadata", deep),
      () => chat({ messages: [...messages, { role: "tool", tool_call_id: "c", content: "x" }] }),
      () => schemaOf(nested(Math.min(levels, 60), (items) => ({ type: "array", items }))),
      () => schemaOf(nested(Math.min(levels, 2000), (a) => ({ type: "object", properties: { a } }))),
    ])();
  },
  messages: ({ size, pick }) => {
    const content = pick(["", "x", [{ type: "text", text: "x" }]]);
    return chat({ messages: new Array(bytes(size, 40)).fill({ role: pick(["user", "system"]), content }) });
  },
  turns: ({ size }) =>
    chat({
      messages: Array.from({ length: Math.max(1, Math.floor(size * 4000)) }, (_, i) => ({
        role: i % 2 === 0 ? "user" : "assistant",
        content: `${i}`,
      })),
    }),
  parts: ({ size }) => chatText(new Array(bytes(size, 30)).fill({ type: "text", text: "" })),
  tools: ({ size, pick }) =>
    pick([
      () =>
        chat({
          tools: Array.from({ length: bytes(size, 60) }, (_, i) => toolOf({ type: "object" }, `f${i}`)),
        }),
      () => chat({ tools: [toolOf({ description: "x".repeat(bytes(size)) })] }),
      () =>
        chat({
          tool_choice: "required",
          tools: Array.from({ length: 100 }, (_, i) => toolOf(wide(Math.floor(size * 50)), `f${i}`)),
        }),
      () => chat({ tools: [toolOf({}), toolOf({})] }),
    ])(),
  stop: ({ size, pick }) =>
    pick([
      () => chat({ stop: "x".repeat(bytes(size)) }),
      () => chat({ stop: new Array(bytes(size, 5)).fill("xy") }),
      () => chat({ stop: ["a".repeat(1000), "b".repeat(1000), "", "\ud800"], stream: true }),
    ])(),
  biases: ({ size }) =>
    chatWith("logit_bias", `{${Array.from({ length: bytes(size, 10) }, (_, i) => `"${i}":1`).join(",")}}`),
  schemas: ({ size, pick, whole, isLarge }) => {
    const large = pick([1e3, 1e6, 2 ** 31, 1e15]);
    // From 8 the pattern is compiled for seconds, or refused after them.
    const most = isLarge ? 100 : 5;
    const salt = `s${whole(1e9)}`;
    return pick([
      () => schemaOf({ type: "array", items: { type: "integer" }, minItems: large, title: salt }),
      () => schemaOf({ type: "string", maxLength: large, title: salt }),
      () => schemaOf({ type: "string", minLength: large, title: salt }),
      () => schemaOf({ type: "string", pattern: `^(${"a?".repeat(30)}${"a".repeat(30)})*${salt}$` }),
      () => schemaOf({ type: "string", pattern: `^[a-z]{${Math.floor(size * 5000)}}${salt}$` }),
      () => schemaOf({ type: "string", pattern: `^((a{1,${most}}){1,${most}}){1,${whole(most)}}${salt}$` }),
      () => schemaOf({ type: "string", pattern: "(".repeat(5000) }),
      () =>
        schemaOf({
          enum: Array.from({ length: Math.max(1, Math.floor(size * 5000)) }, (_, i) => `${salt}${i}`),
        }),
      () => schemaOf({ ...wide(Math.max(1, Math.floor(size * 1500))), title: salt }),
      () => schemaOf(nested(12, (a) => ({ anyOf: [a, { type: "array", items: a }] }), { const: salt })),
      () =>
        schemaOf({
          $ref: "#/$defs/a",
          $defs: { a: { anyOf: [{ $ref: "#/$defs/a" }, { type: "array", items: { $ref: "#/$defs/a" } }] } },
        }),
      () => schemaOf({ type: "integer", minimum: -whole(1e15), maximum: whole(1e15), title: salt }),
      () => schemaOf({ type: "object", additionalProperties: { type: "string" }, minProperties: large }),
    ])();
  },
  numbers: ({ pick, whole }) => {
    const keys = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "n", "best_of"];
    const more = ["top_logprobs", "presence_penalty", "frequency_penalty", "max_completion_tokens"];
    const values = ["1e999", "-1e999", "-1", "0", "-0", "0.5", "5e-324", "1e308", "2147483648"];
    const rest = ["9007199254740993", "1e20", '"1"', "null", "[]", "{}", "true", "1e-320", `${whole(1e6)}`];
    return chatWith(pick([...keys, ...more]), pick([...values, ...rest]));
  },
  keyNames: ({ pick }) => {
    const key = pick(["__proto__", "constructor", "toString", "hasOwnProperty", "foo", "", "\ud800", "a.b"]);
    const value = pick(["{}", '{"n":128}', "1", "null"]);
    const message = `{"role":"user","content":"x",${json(key)}:${value}}`;
    return pick([
      () => chatWith(key, value),
      () => chatWith("messages", `[${message}]`),
      () => chatWith("stream_options", `{${json(key)}:${value}}`),
      () =>
        chatWith(
          "tools",
          `[{"type":"function","function":{"name":"f","parameters":{${json(key)}:${value}}}}]`,
        ),
      () =>
        chatWith(
          "response_format",
          `{"type":"json_schema","json_schema":{"schema":{"type":"object","properties":{${json(key)}:{"type":"null"}}}}}`,
        ),
    ])();
  },
  text: ({ pick, whole }) =>
    pick([
      () => ({ path: "/v1/completions", body: Buffer.from([0x7b, 0x22, 0xff, 0xfe, 0x22, 0x7d]) }),
      () => ({
        path: "/v1/chat/completions",
        body: Buffer.from(json(hello).replace("Hello", "\xff\xc0\x80"), "latin1"),
      }),
      () => chatText("\ud800\udfff\udc00\u0000\ufdd0\uffff\u202e"),
      () => chatText(String.fromCharCode(...Array.from({ length: 500 }, () => whole(65536)))),
      () => schemaOf({ const: "\ud800" }),
      () => schemaOf({ type: "string", pattern: "\ud800\u0000" }),
      () => chatText(Array.from({ length: 32 }, (_, i) => String.fromCharCode(0xfdd0 + i)).join("")),
      () => ({
        path: "/v1/completions",
        body: pick(["", "null", "[]", '"x"', "1", "{", "\ufeff{}", "{}{}"]),
      }),
      () => chatWith("user", `"${"\\u0000".repeat(100_000)}"`),
    ])(),
  answers: ({ pick, isLarge }) =>
    chat({
      max_tokens: pick(isLarge ? [1, 1000, 2 ** 40] : [1, 10, 0, -1]),
      n: pick(isLarge ? [1, 128] : [1, 3, 129]),
      ...pick([{}, { logprobs: true, top_logprobs: 20 }]),
      stream: pick([true, false]),
      temperature: pick([0, 1e-30, 5e-324, 2]),
      messages: [{ role: "user", content: "x" }],
    }),
  headers: ({ pick, whole }) => {
    const { path, body } = chat({});
    const url = pick([
      "/v1/models/%zz",
      "/v1/models/%00",
      "/v1/../health",
      `/v1/${"a".repeat(9000)}`,
      "/v1/models",
    ]);
    return pick([
      () => ({ path, body, headers: { host: pick(["evil.example", "127.0.0.1.evil.example", "", "a b"]) } }),
      () => ({ path, body, headers: { origin: pick(["https://evil.example", "null", "x"]) } }),
      () => ({ path, body, headers: { "content-type": pick(["text/plain", "application/jsonx", ""]) } }),
      () => ({
        path,
        body,
        headers: Object.fromEntries(Array.from({ length: whole(1500) }, (_, i) => [`h${i}`, "x"])),
      }),
      () => ({ path, body, headers: { "x-episode-id": "\xff".repeat(pick([1, 300, 8000])) } }),
      () => ({ path, body, headers: { authorization: `Bearer ${"x".repeat(8000)}` } }),
      () => ({ path: url, method: pick(["GET", "DELETE", "OPTIONS", "HEAD", "PATCH"]) }),
    ])();
  },
  raw: ({ pick, whole }) => {
    const start = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    const noise = Array.from({ length: 300 }, () => String.fromCharCode(whole(256))).join("");
    return {
      raw: pick([
        noise,
        `${start}content-length: 100\r\n\r\n{"model"`,
        `${start}content-length: 99999999999999\r\n\r\n{}`,
        `${start}content-length: -1\r\n\r\n{}`,
        `${start}transfer-encoding: chunked\r\n\r\nffffffff\r\n{}`,
        `${start}transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n2\r\n{}\r\n0\r\n\r\n`,
        `${start}expect: 100-continue\r\ncontent-length: 2\r\n\r\n{}`,
        "GET / HTTP/9.9\r\n\r\n",
        "GET http://evil.example/v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET /v1/models HTTP/1.1\r\n\r\n",
        "GET /v1/models HTTP/1.0\r\n\r\n",
        `GET /v1/models HTTP/1.1\r\nhost: localhost\r\n${"x: y\r\n".repeat(20_000)}\r\n`,
      ]),
      leave: 300,
    };
  },
  aborts: (random) => {
    const { pick, whole } = random;
    const kind = pick(["a middling text", "a long text", "answers", "ids", "turns"]);
    return { ...kinds[kind](random), leave: whole(60) };
  },
  rewards: ({ pick }) => ({
    path: `/v1/episodes/${pick(["none", "%00", "..", "x".repeat(5000), "__proto__"])}/reward`,
    body: `{"reward":${pick(["1", "1e999", "1e308", "null", '"1"', "NaN", "[1]"])}${pick(["", ',"x":1', ',"terminated":1'])}}`,
  }),
};
