import { describe, expect, it } from "vitest";
import { parseConfig, trainNlac } from "../../../lib/algorithms/nlac.ts";
import { derivedSeed, uniform } from "../../../lib/base/random.ts";
import { checkEnvironment } from "../../../lib/environments/check.ts";
import {
  type ErrandsOptions,
  errands,
  errandsModel,
  errandsSuccessRate,
} from "../../../lib/environments/errands/index.ts";
import { deskText, futureText, kinds, things } from "../../../lib/environments/errands/words.ts";
import { type Errand, makeErrands, successRate } from "../../../lib/environments/errands/world.ts";
import { parseCritique } from "../../../lib/prompts/critic.ts";
import { parseAction } from "../../../lib/prompts/policy.ts";
import { requireWords } from "../../../lib/roles/role-writer.ts";
import { memoryRun } from "../../../lib/run/training-run.ts";
import { Conversation } from "../../../lib/tokens/conversation.ts";
import { ChatTemplate } from "../../../lib/tokens/template.ts";
import { Tokenizer } from "../../../lib/tokens/tokenizer.ts";
import { diagnose } from "../../../lib/training/diagnose.ts";
import { demonstratedTexts } from "../../../lib/training/warmup.ts";
import { ScriptedModel } from "../../support/scripted-model.ts";

const shape = { kinds: 8, chain: 4, deadEnds: 0 };

/** What a player can read in the desk's answer, independent of the world's own code. */
function read(text: string) {
  const status = /\. \[(\w+); moves left: (\d); brought: ([\w, ]+)\]$/.exec(text);
  return {
    took: /^The desk took the (\w+)/.exec(text)?.[1],
    wants: /^The desk first wants the (\w+)/.exec(text)?.[1],
    refused: text.startsWith("The desk shakes its head"),
    status: status && { kind: status[1], movesLeft: Number(status[2]), brought: status[3] },
    ending: /\. The (errand is done|office closes|errand is lost over the \w+)\.$/.exec(text)?.[1],
  };
}

async function play(options: ErrandsOptions, kind: string, bring: readonly string[], seed = 0) {
  const episode = await errands(options).start({ kind, split: "train" }, { seed });
  const said = [];
  for (const thing of bring) {
    const { observation, reward, terminated } = await episode.step({ text: thing });
    said.push({ ...read(observation[0]!.content), reward, terminated });
    if (terminated) break;
  }
  return said;
}

describe("errands", () => {
  it("satisfies the contract", async () => {
    const policy = ({ history }: { history: readonly unknown[] }) => ({ text: things[history.length]! });
    for (const options of [
      {},
      { explained: 0.5, deadEnds: 3 },
      { composed: true },
      { kinds: 1, chain: 2, moves: 2 },
    ]) {
      expect(await checkEnvironment(errands(options), policy)).toEqual([]);
    }
  });

  it("has a hidden order per kind, determined by the seed", async () => {
    const [first, again, other] = [1, 1, 2].map((seed) => makeErrands(seed, shape));
    expect(again).toEqual(first);
    expect(other).not.toEqual(first);
    expect(new Set(first!.map(({ kind }) => kind)).size).toBe(8);
    for (const { chain } of first!) expect(new Set(chain).size).toBe(4);
    expect((await errands({ seed: 1 }).tasks("train")).map(({ kind }) => kind)).toEqual(
      first!.map(({ kind }) => kind),
    );
  });

  it("takes the right things in order, and gives the reward for the last", async () => {
    for (const { kind, chain } of makeErrands(5, shape)) {
      const said = await play({ seed: 5 }, kind, chain);
      expect(said.map(({ took }) => took)).toEqual(chain);
      expect(said.map(({ reward }) => reward)).toEqual([0, 0, 0, 1]);
      expect(said.map(({ terminated }) => terminated)).toEqual([false, false, false, true]);
      expect(said[2]!.status).toEqual({ kind, movesLeft: 3, brought: chain.slice(0, 3).join(", ") });
      expect(said[3]!.ending).toBe("errand is done");
    }
  });

  it("changes nothing for a wrong thing and says what it wants first; the last move closes the office", async () => {
    const [{ kind, chain }] = makeErrands(0, shape) as [Errand];
    const wrong = things.find((thing) => !chain.includes(thing))!;
    const said = await play({}, kind, [wrong, chain[0]!, "a banana", chain[2]!, wrong, wrong]);
    expect(said.map(({ wants }) => wants)).toEqual([
      chain[0],
      undefined,
      chain[1],
      chain[1],
      chain[1],
      chain[1],
    ]);
    expect(said.map(({ status }) => status?.brought)).toEqual([
      "nothing",
      ...Array(4).fill(chain[0]),
      undefined,
    ]);
    expect(said.at(-1)).toMatchObject({ reward: 0, terminated: true, ending: "office closes" });
  });

  it("explains the configured share of refusals", async () => {
    const counts = { wants: 0, refused: 0 };
    for (let seed = 0; seed < 400; seed++) {
      const [{ kind, chain }] = makeErrands(0, shape) as [Errand];
      const wrong = things.find((thing) => !chain.includes(thing))!;
      for (const { wants, refused } of await play({ explained: 0.25 }, kind, Array(6).fill(wrong), seed)) {
        if (wants !== undefined) counts.wants++;
        if (refused) counts.refused++;
      }
    }
    expect(counts.wants + counts.refused).toBe(2400);
    expect(counts.wants / 2400).toBeGreaterThan(0.21); // four standard deviations
    expect(counts.wants / 2400).toBeLessThan(0.29);
  });

  it("takes a dead end like a right thing, and reveals it only at the last thing", async () => {
    const options = { deadEnds: 2, seed: 3 };
    for (const { kind, chain, deadEnds } of makeErrands(3, { ...shape, deadEnds: 2 })) {
      expect(deadEnds.size).toBe(2);
      for (const [thing, step] of deadEnds) {
        expect(chain).not.toContain(thing);
        expect(step).toBeLessThan(chain.length - 1);
        const brought = chain.map((right, i) => (i === step ? thing : right));
        const said = await play(options, kind, brought);
        expect(said.map(({ took }) => took)).toEqual(brought);
        expect(said.slice(0, -1).every(({ ending }) => ending === undefined)).toBe(true);
        expect(said.at(-1)).toMatchObject({
          reward: 0,
          terminated: true,
          ending: `errand is lost over the ${thing}`,
        });
        // In another place it is a wrong thing like any other.
        const elsewhere = await play(options, kind, [...chain.slice(0, step + 1), thing]);
        expect(elsewhere.at(-1)!.wants).toBe(chain[step + 1]);
      }
    }
  });

  it("composed kinds: the held-out orders follow from the parts of those to train on", async () => {
    const environment = errands({ composed: true, moves: 5, seed: 6 });
    const [train, test] = [await environment.tasks("train"), await environment.tasks("test")];
    expect([train.length, test.length]).toEqual([60, 30]);
    expect(new Set([...train, ...test].map(({ kind }) => kind)).size).toBe(90);
    const bringAll = async (kind: string, bring: readonly string[]) => {
      const episode = await environment.start({ kind, split: "train" }, { seed: 0 });
      const told: (string | undefined)[] = [];
      let reward = 0;
      for (const thing of bring) {
        const result = await episode.step({ text: thing });
        told.push(read(result.observation[0]!.content).wants);
        reward += result.reward;
        if (result.terminated) break;
      }
      return { told, reward };
    };
    // What each part decides, found on the training kinds: a wrong thing, then what the desk wants,
    // step by step.
    const decided = new Map<string, string>();
    const partsOf = (kind: string) => /^(\w+)'s (\w+) for (\w+)$/.exec(kind)!.slice(1);
    for (const { kind } of train) {
      const [applicant, document, place] = partsOf(kind);
      const bring: string[] = [];
      for (const part of [document!, applicant!, place!]) {
        const { told } = await bringAll(kind, [...bring, "nothing"]);
        expect(decided.get(part) ?? told.at(-1)).toBe(told.at(-1));
        decided.set(part, told.at(-1)!);
        bring.push(told.at(-1)!);
      }
    }
    expect(new Set(decided.values()).size).toBe(14);
    for (const { kind } of test) {
      const [applicant, document, place] = partsOf(kind).map((part) => decided.get(part)!);
      expect((await bringAll(kind, [document!, applicant!, place!])).reward).toBe(1);
    }
    for (const options of [{ chain: 4 }, { kinds: 8 }, { deadEnds: 1 }])
      expect(() => errands({ composed: true, ...options })).toThrow(/composed/);
  });

  it("does not name the dead end that lost an errand, on request", async () => {
    const [{ kind, chain, deadEnds }] = makeErrands(3, { ...shape, deadEnds: 2 }) as [Errand];
    const [[thing, step]] = [...deadEnds] as [[string, number]];
    const brought = chain.map((right, i) => (i === step ? thing : right));
    const named = await play({ deadEnds: 2, seed: 3 }, kind, brought);
    const said = await play({ deadEnds: 2, seed: 3, namesDeadEnd: false }, kind, brought);
    expect(said.slice(0, -1)).toEqual(named.slice(0, -1));
    expect(said.at(-1)).toEqual({
      ...{ took: undefined, wants: undefined, refused: true, status: null },
      ...{ ending: "office closes", reward: 0, terminated: true },
    });
  });

  it.each([
    [{ chain: 5, moves: 4 }, /more things than it has moves/],
    [{ deadEnds: 13 }, /too few/],
    [{ explained: 2 }, /explained/],
    [{ turns: 3 }, /turns/],
  ])("rejects impossible options: %j", (options, complaint) => {
    expect(() => errands(options as ErrandsOptions)).toThrow(
      expect.objectContaining({ code: "ERR_CONFIG", message: expect.stringMatching(complaint) }),
    );
  });
});

describe("the end that a future predicts", () => {
  const { foretold } = errands();
  const took = { kind: "took", thing: "form" } as const;

  it("is read from every future that can be generated", () => {
    expect(foretold!(futureText(took, { kind: "done", moves: 3 }))).toBe(1);
    expect(foretold!(futureText(took, { kind: "late" }))).toBe(0);
    expect(foretold!(futureText(took, { kind: "lost", over: "pen" }))).toBe(0);
  });

  it("agrees with an answer if the desk does what it predicts", () => {
    const { agreement } = errands();
    const status = { kind: "visa", movesLeft: 2, brought: ["form"] };
    const answers = (event: Parameters<typeof deskText>[0]) => [
      { role: "user" as const, content: deskText(event, status) },
    ];
    const late = { kind: "late" } as const;
    const wants = { kind: "wants", thing: "form" } as const;
    expect(agreement!(futureText(took, late), answers(took))).toBe(1);
    expect(agreement!(futureText(took, late), answers({ kind: "took", thing: "fee" }))).toBe(0);
    expect(agreement!(futureText(took, late), answers(wants))).toBe(0);
    expect(agreement!(futureText({ kind: "refused" }, late), answers({ kind: "refused" }))).toBe(1);
    expect(agreement!("Who knows.", answers(took))).toBeUndefined();
    expect(agreement!(futureText(took, late), answers(undefined))).toBeUndefined();
  });

  it("is unknown if the text says nothing of the end, or contradicts itself", () => {
    expect(foretold!("The desk took the form.")).toBeUndefined();
    expect(foretold!("The desk took the form. Done in 3. Too late.")).toBeUndefined();
  });
});

describe("successRate", () => {
  const uniformly = ({ deadEnds }: { deadEnds: number }) => ({ right: 1 / 16, deadEnd: deadEnds / 16 });
  const choose = (n: number, k: number): number => (k === 0 ? 1 : (choose(n - 1, k - 1) * n) / k);

  it("is 1 for a policy that knows the order, and the binomial tail for a random one", () => {
    for (const [chain, moves] of [
      [4, 6],
      [2, 9],
      [5, 5],
    ] as const) {
      let tail = 0;
      for (let right = chain; right <= moves; right++)
        tail += choose(moves, right) * (1 / 16) ** right * (15 / 16) ** (moves - right);
      for (const errand of makeErrands(1, { kinds: 3, chain, deadEnds: 0 })) {
        expect(successRate(errand, moves, 0.5, () => ({ right: 1 }))).toBe(1);
        expect(successRate(errand, moves, 0.5, uniformly)).toBeCloseTo(tail, 14);
      }
    }
  });

  it("agrees with played episodes", async () => {
    // Brings what the desk has just asked for three times in four, else anything.
    const options = { deadEnds: 3, explained: 0.6, chain: 3, moves: 6, kinds: 2 };
    const policy = ({ told, deadEnds }: { told: boolean; deadEnds: number }) => {
      const anything = told ? 1 / 4 : 1;
      return { right: (told ? 3 / 4 : 0) + anything / 16, deadEnd: (anything * deadEnds) / 16 };
    };
    const episodes = 6000;
    for (const errand of makeErrands(0, options)) {
      const environment = errands(options);
      let done = 0;
      for (let i = 0; i < episodes; i++) {
        const episode = await environment.start({ kind: errand.kind, split: "test" }, { seed: i });
        let told: string | undefined;
        for (let turn = 0; ; turn++) {
          const random = (n: number) => uniform(derivedSeed(7, 1, i), 2, 2 * turn + n);
          const thing =
            told !== undefined && random(0) < 3 / 4 ? told : things[Math.floor(random(1) * things.length)]!;
          const result = await episode.step({ text: thing });
          told = read(result.observation[0]!.content).wants;
          done += result.reward;
          if (result.terminated) break;
        }
      }
      const exact = successRate(errand, options.moves, options.explained, policy);
      expect(exact).toBeGreaterThan(0.05);
      // Four standard deviations.
      expect(Math.abs(done / episodes - exact)).toBeLessThan(4 * Math.sqrt((exact * (1 - exact)) / episodes));
    }
  });
});

describe("errandsSuccessRate", () => {
  it("is the mean over the environment's errands", async () => {
    const options = { kinds: 3, chain: 3, moves: 4, seed: 2 };
    const [known] = await errands(options).tasks("train");
    const policy = ({ errand }: { errand: Errand }) => ({ right: errand.kind === known!.kind ? 1 : 0.5 });
    // Three right moves in four, at even odds: 4 / 16 for exactly three, 1 / 16 for four.
    expect(errandsSuccessRate(options, policy)).toBeCloseTo((1 + 2 * (5 / 16)) / 3, 12);
    expect(() => errandsSuccessRate({ kinds: 0 }, policy)).toThrow(/kinds/);
  });
});

it("in hindsight the desk's answer names the thing that it took or wants, including a dead end", () => {
  const { hindsight } = errands();
  const action = { text: "pen", thought: "The visa, after nothing." };
  const said = (content: string) => [{ role: "user" as const, content }];
  const after = (answer: string) => hindsight!(action, said(answer), []);
  const status = { kind: "visa", movesLeft: 3, brought: ["pen"] };
  expect(after(deskText({ kind: "took", thing: "pen" }, status))).toEqual(action);
  expect(after(deskText({ kind: "took", thing: "pen" }, status, { kind: "lost", over: "pen" }))).toEqual(
    action,
  );
  expect(after(deskText({ kind: "wants", thing: "seal" }, status))).toEqual({ ...action, text: "seal" });
  expect(after(deskText({ kind: "refused" }, status))).toBeUndefined();
  // The end of the episode may name the dead end.
  const took = said(deskText({ kind: "took", thing: "pen" }, status));
  const end = (over: string) => [
    took,
    said(deskText({ kind: "took", thing: "map" }, status, { kind: "lost", over })),
  ];
  expect(hindsight!(action, took, end("pen"))).toBeUndefined();
  expect(hindsight!(action, took, end("seal"))).toEqual(action);
});

describe("demonstrations", () => {
  const model = new ScriptedModel(() => "");
  const texts = async (seed: number, options: ErrandsOptions = {}) => {
    const environment = errands(options);
    const [task] = await environment.tasks("train");
    return demonstratedTexts(model, environment, await environment.demonstrate!(task!, { seed }));
  };

  it("have every role's reply in the form that its parser reads, and know what the desk wants", async () => {
    const counts = { attempt: 0, critique: 0, refinement: 0, future: 0, target: 0 };
    let followed = 0;
    let told = 0;
    const yes = { critique: 0, target: 0 };
    for (let seed = 0; seed < 120; seed++) {
      for (const { role, prompt, response } of await texts(seed, { deadEnds: seed % 3 })) {
        const text = model.decode(response.slice(0, -1));
        const before = model.decode(prompt);
        const last = before.split("<|im_start|>user\n").at(-1)!;
        counts[role]++;
        if (role === "attempt" || role === "refinement") {
          const parsed = parseAction(text, "text");
          if (!parsed.ok) throw new Error(parsed.reason);
          expect(things).toContain(parsed.action.text);
          if (role === "refinement") {
            const critique = before.split("<|im_start|>assistant\n").at(-2)!;
            const first = /No\. First the (\w+)\./.exec(critique)?.[1];
            const not = /No\. Not the (\w+)\./.exec(critique)?.[1];
            const attempted = before.split("Action:\n").at(-2)!.split("<")[0];
            if (first !== undefined) expect(parsed.action.text).toBe(first);
            else if (not !== undefined) expect(parsed.action.text).not.toBe(not);
            else expect(parsed.action.text).toBe(attempted);
          } else {
            const hint = read(last.split("<|im_end|>")[0]!).wants;
            if (hint !== undefined) {
              told++;
              if (parsed.action.text === hint) followed++;
            }
          }
        } else if (role === "future") {
          expect(text).toMatch(
            /^The desk (took|first wants|shakes).*\. (Done in \d|Too late|Lost over the \w+)\.$/,
          );
        } else {
          const parsed = parseCritique(text, false);
          if (!parsed.ok) throw new Error(parsed.reason);
          if (parsed.yes) yes[role]++;
          // A target says what the desk did, whatever the future beside it says.
          if (role === "target") {
            const answer = before.slice(before.lastIndexOf("Your latest action"));
            expect(parsed.future!.split(". ")[0]).toBe(/^The desk [\w ]+/m.exec(answer)![0]);
          }
        }
      }
    }
    expect(Math.min(...Object.values(counts))).toBeGreaterThan(200);
    expect(followed / told).toBeGreaterThan(0.73);
    expect(followed / told).toBeLessThan(0.9); // 0.8, plus chance
    // A critic learns how rarely a guess is right; a backup sees both.
    expect(yes.critique / counts.critique).toBeLessThan(yes.target / counts.target);
    expect(yes.target / counts.target).toBeGreaterThan(0.4);
    expect(yes.target / counts.target).toBeLessThan(0.75);
  });

  it("know nothing of dead ends if none is named", async () => {
    const said = async (namesDeadEnd: boolean) => {
      const all = [];
      for (let seed = 0; seed < 40; seed++) all.push(...(await texts(seed, { deadEnds: 9, namesDeadEnd })));
      return all.map(({ prompt, response }) => model.decode([...prompt, ...response])).join("\n");
    };
    expect(await said(true)).toMatch(/Lost over the .*Not the /s);
    expect(await said(false)).not.toMatch(/[Ll]ost over|Not the /);
  });

  it("reveal nothing of the environment's own errands", async () => {
    expect(await texts(4, { seed: 1 })).toEqual(await texts(4, { seed: 2 }));
  });
});

describe("errandsModel", () => {
  const { config, tokenizer: parts } = errandsModel();
  const tokenizer = new Tokenizer(parts);

  it("has a token for each word", () => {
    expect(config.vocab_size).toBe(tokenizer.vocabSize);
    for (const word of [...kinds, ...things]) {
      expect(tokenizer.encode(word)).toHaveLength(1);
    }
  });

  it("has no vocabulary for the evaluator, and is rejected if one is needed", async () => {
    const model = Object.assign(new ScriptedModel(() => ""), {
      encode: (text: string) => tokenizer.encode(text),
      decode: (ids: readonly number[]) => tokenizer.decode(ids),
    });
    const asked = trainNlac({ model, environment: errands(), config: { futures: 2 } });
    await expect(asked).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message: expect.stringMatching(/^futures: 2 needs .+ Set futures to 1/),
    });
    const diagnosed = diagnose({
      ...{ model, environment: errands(), tasks: [], trajectories: [], number: 0 },
      ...{ config: parseConfig({ futures: 2 }), run: memoryRun() },
    });
    await expect(diagnosed).rejects.toMatchObject({ code: "ERR_CONFIG" });
    expect(model.calls).toEqual([]);
    expect(() => requireWords(model, { futures: 1 })).not.toThrow();
    expect(() => requireWords(new ScriptedModel(() => ""), { futures: 2 })).not.toThrow();
  });

  it("encodes whole conversations and decodes them unchanged", async () => {
    const template = ChatTemplate.of(tokenizer);
    const model = Object.assign(new ScriptedModel(() => ""), {
      encode: (text: string) => tokenizer.encode(text),
      decode: (ids: readonly number[]) => tokenizer.decode(ids),
      conversation: (
        ...args: Parameters<typeof Conversation.start> extends [unknown, unknown, ...infer Rest]
          ? Rest
          : never
      ) => Conversation.start(tokenizer, template, ...args),
      endOfTurn: tokenizer.eosTokenIds[0]!,
    });
    const plain = new ScriptedModel(() => "");
    const environment = errands({ deadEnds: 2 });
    const [task] = await environment.tasks("train");
    let longest = 0;
    for (let seed = 0; seed < 40; seed++) {
      const demonstration = await environment.demonstrate!(task!, { seed });
      const shown = { observedTargets: true };
      const expected = demonstratedTexts(plain, environment, demonstration, shown);
      for (const [i, { prompt, response }] of demonstratedTexts(
        model,
        environment,
        demonstration,
        shown,
      ).entries()) {
        longest = Math.max(longest, prompt.length + response.length);
        // No token of a text is outside of the vocabulary.
        const inWords = plain.decode([...expected[i]!.prompt, ...expected[i]!.response]);
        expect(tokenizer.decode([...prompt, ...response])).toBe(
          inWords.replaceAll(/<\|im_start\|>(\w+)\n/g, "<|$1|>").replaceAll(/<\|im_end\|>\n?/g, "<|end|>"),
        );
      }
    }
    expect(longest).toBeLessThan(Number(config.max_position_embeddings) - 20);
  });
});
