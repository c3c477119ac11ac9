import { join } from "node:path";
import { expect, test } from "vitest";
import { floatsToBase64 } from "../../lib/base/float32-base64.ts";
import { readEpisodes } from "../../lib/episodes/records.ts";
import { type Redactable, redactEpisode, redactIds } from "../../lib/serve/redact.ts";
import { same, say, start, turn } from "../support/recording-server.ts";
import { byteTokenizer } from "../support/scripted-model.ts";
import { inDirectory } from "../support/tiny.ts";

const tokenizer = byteTokenizer();
const [control] = tokenizer.specialIds;
const ids = (text: string) => tokenizer.encode(text);
const redact = (text: string) => text.replaceAll("Ann", "[name]");
const scores = (count: number) => floatsToBase64(new Float32Array(count).fill(-1));
const unknown = (count: number) => floatsToBase64(new Float32Array(count).fill(Number.NaN));

test("each run of ordinary ids is redacted; control tokens stay", () => {
  const given = [...ids("I am Ann"), control!, ...ids("Ann"), control!];
  const expected = [...ids("I am [name]"), control!, ...ids("[name]"), control!];
  expect(redactIds(given, redact, tokenizer)).toEqual(expected);
  // A name that a control token divides is no name.
  const divided = [...ids("An"), control!, ...ids("n")];
  expect(redactIds(divided, redact, tokenizer)).toEqual(divided);
});

test("an episode's texts and ids change together; changed ids lose their log probabilities", () => {
  const [opening, answer, reply] = ["I am Ann", "Hello Ann", "Bye"].map(ids) as [
    number[],
    number[],
    number[],
  ];
  const [first, second] = [opening.length, opening.length + answer.length];
  const end = { reward: 0, terminated: false, truncated: false, info: {} };
  const record: Redactable = {
    opening: [{ role: "user", content: "I am Ann" }],
    turns: [
      {
        ...{ ...end, state: first, text: "Hello Ann", observation: [{ role: "user", content: "Ann?" }] },
        action: { text: "Hello Ann", tool: { name: "greet", arguments: { to: ["Ann"] } } },
        sampled: { tokens: ids("Ann!"), logProbs: scores(4) },
      },
      {
        ...end,
        state: second,
        text: "Bye",
        malformed: 'there is no function "Ann"',
        observation: [],
        sampled: { tokens: reply, logProbs: scores(3) },
      },
    ],
    conversation: {
      version: 1,
      tokens: [...opening, ...answer, ...reply],
      segments: [
        { source: "environment", start: 0, end: first },
        { source: "model", start: first, end: second, logProbs: scores(answer.length) },
        { source: "model", start: second, end: second + 3, logProbs: scores(3) },
      ],
      turns: [
        { end: first, role: "user" },
        { end: second, role: "assistant" },
      ],
      system: false,
      tools: [{ name: "greet", description: "Greets Ann", parameters: { type: "object" } }],
    },
  };
  const stored = redactEpisode(record, redact, tokenizer);
  expect(JSON.stringify(stored)).not.toContain("Ann");
  expect(stored.opening).toEqual([{ role: "user", content: "I am [name]" }]);
  const moved = ids("I am [name]").length;
  const later = moved + ids("Hello [name]").length;
  expect(stored.conversation.tokens).toEqual(ids("I am [name]Hello [name]Bye"));
  expect(stored.turns.map(({ state }) => state)).toEqual([moved, later]);
  expect(stored.conversation.turns.map((turn) => turn.end)).toEqual([moved, later]);
  expect(stored.conversation.segments.map(({ logProbs }) => logProbs)).toEqual([
    ...[undefined, unknown(later - moved), scores(3)],
  ]);
  expect(stored.turns[0]).toMatchObject({
    action: { tool: { arguments: { to: ["[name]"] } } },
    sampled: { tokens: ids("[name]!"), logProbs: unknown(7) },
    observation: [{ content: "[name]?" }],
  });
  expect(stored.turns[1]!.sampled).toEqual(record.turns[1]!.sampled);
  expect(record.conversation.tokens).toEqual([...opening, ...answer, ...reply]); // the given one stays
});

test("an episode whose texts are redacted to nothing is continued after a restart, and can be read", () =>
  inDirectory(async (directory) => {
    const [record, openLog] = [join(directory, "episodes.jsonl"), join(directory, "open.jsonl")];
    const model = same();
    const first = await start(model, record, { openLog, redact: () => "" });
    // The answer is cut, so that it has no control token.
    await turn(first.client, [say("Hi")], "a", { max_tokens: 2 });
    await first.server.close(20);
    const next = await start(model, record, { openLog, redact: () => "" });
    expect(await next.reward("a", { reward: 1 })).toMatchObject({ status: 200, turns: 1 });
    const [episode] = [...readEpisodes(record, model as never)];
    expect(episode!.turns[0]!.tokens.length).toBeGreaterThan(0);
    expect(model.decode(episode!.conversation.tokens)).not.toMatch(/Hi|Sa/);
  }));
