import {
  appendFileSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import type { Message } from "../../lib/contract/environment.ts";
import { environments } from "../../lib/environments/index.ts";
import { twentyQuestions } from "../../lib/environments/twenty-questions/index.ts";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { servicePlayer } from "../../lib/playing/service-player.ts";
import { type ChatService, chatService } from "../../lib/services/chat-service.ts";
import { type LocalModel, localService } from "../../lib/services/local.ts";
import { openService } from "../../lib/services/open-service.ts";
import { playRecording, recordService } from "../../lib/services/recording.ts";
import { chatServer } from "../support/chat-server.ts";

const says = (content: string): Message[] => [{ role: "user", content }];

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "nlac-services-"));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));
const file = (name = "recording.jsonl") => join(directory, name);

/** A script whose replies are all different, so that a repeated reply is noticed. */
function counting(): ChatService {
  let replies = 0;
  return openService((messages) => `${messages.at(-1)!.content} ${replies++}`);
}

describe("openService", () => {
  it("accepts a script, and a service as it is", async () => {
    const script = openService(async (messages, options) => `${messages.length} ${options?.maxTokens}`);
    expect(await script.complete(says("a"), { maxTokens: 7 })).toBe("1 7");
    expect(script.usage()).toEqual({ requests: 1, promptTokens: 0, completionTokens: 0, cost: 0 });
    expect(openService(script)).toBe(script);
  });

  it.each([
    [{}, /model/],
    [null, /needs a model/],
    ["gpt-4.1", /needs a model/],
    [{ model: "m", baseURL: "http://localhost", baseUrl: "x" }, /baseUrl/],
    [{ model: "m", baseURL: "http://localhost", price: { prompt: 1 } }, /completion/],
    [{ model: "m", baseURL: "http://localhost", price: { prompt: -1, completion: 0 } }, /price/],
    [{ local: "SmolLM2-135M-Instruct", model: "m" }, /model/],
    [{ local: "" }, /local/],
    [{ recording: "/nowhere/at-all.jsonl" }, /There is no recording/],
    [{ recording: "x.jsonl", temperature: 1 }, /"temperature"/],
  ])("rejects %j", (source, message) => {
    const open = () => openService(source as never);
    expect(open).toThrow(message);
    expect(open).toThrowError(expect.objectContaining({ code: "ERR_CONFIG" }));
  });
});

it("errors of a service's options name the environment and its option", () => {
  const wrong = { model: "m", baseUrl: "http://localhost" } as never;
  const price = { model: "m", baseURL: "http://localhost", budget: { cost: 1 } };
  for (const [make, message] of [
    [() => environments.twentyQuestions({ oracle: wrong }), /^twentyQuestions\.oracle: .*"baseUrl"/],
    [() => environments.guessMyCity({ oracle: wrong }), /^guessMyCity\.oracle: .*"baseUrl"/],
    [
      () => environments.carDealer({ buyer: price }),
      /^carDealer\.buyer: A budget in US dollars needs the price/,
    ],
    [
      () => environments.carDealer({ buyer: { recording: "/nowhere" } }),
      /^carDealer\.buyer: There is no rec/,
    ],
    [() => environments.tauBench({ user: { service: wrong } }), /^tauBench\.user: service: .*"baseUrl"/],
    [() => environments.tauBench({ user: "human" as never }), /^tauBench\.user: It must be "scripted"/],
  ] as const) {
    expect(make).toThrow(expect.objectContaining({ code: "ERR_CONFIG" }));
    expect(make).toThrow(message);
  }
});

describe("usage of a service", () => {
  it("multiplies token counts by the prices", async () => {
    const server = await chatServer(() => ({
      text: "yes",
      usage: { prompt_tokens: 1500, completion_tokens: 40 },
    }));
    const service = openService({
      model: "m",
      baseURL: server.baseURL,
      price: { prompt: 2, completion: 8 },
    });
    await service.complete(says("a"));
    await service.complete(says("b"));
    await server.close();
    // 3,000 tokens at $2 a million and 80 at $8 a million
    expect(service.usage()).toEqual({
      requests: 2,
      promptTokens: 3000,
      completionTokens: 80,
      cost: expect.closeTo(0.00664, 12),
    });
  });

  it("counts failed attempts, and tokens of replies without text", async () => {
    const server = await chatServer((_, call) =>
      call === 0 ? { status: 503 } : { text: "", usage: { prompt_tokens: 10, completion_tokens: 3 } },
    );
    const service = chatService({ model: "m", baseURL: server.baseURL });
    await expect(service.complete(says("a"))).rejects.toThrow(/empty reply/);
    await server.close();
    expect(service.usage()).toEqual({ requests: 2, promptTokens: 10, completionTokens: 3, cost: 0 });
  });

  it("sends a seed only if it has an effect", async () => {
    const seeds: unknown[] = [];
    const server = await chatServer(({ seed }) => {
      seeds.push(seed);
      return { text: "yes" };
    });
    const service = chatService({ model: "m", baseURL: server.baseURL });
    await service.complete(says("a"), { seed: 5 });
    await service.complete(says("a"), { seed: 5, temperature: 1 });
    await service.complete(says("a"), { seed: 2 ** 52 + 5, temperature: 1 });
    await server.close();
    expect(seeds).toEqual([undefined, 5, 5]);
  });
});

describe("a recording", () => {
  it("reproduces the same episodes offline, thirty-two at once", async () => {
    // Neither the player nor the oracle is deterministic; only recordings make episodes repeat.
    let asked = 0;
    const player = (): ChatService =>
      openService(async () => {
        await new Promise((resolve) => setTimeout(resolve, (asked * 7) % 5));
        return `Thought: hm.\nAction: Is it number ${asked++ % 7}?`;
      });
    let answered = 0;
    const oracle = (): ChatService =>
      openService(async () => {
        await new Promise((resolve) => setTimeout(resolve, (answered * 3) % 5));
        return ["yes", "no", "unknown"][answered++ % 3]!;
      });
    const play = async (players: ChatService, oracles: ChatService) => {
      const environment = twentyQuestions({ turns: 4, oracle: oracles });
      const tasks = await environment.tasks("train");
      const trajectories = await collectTrajectories({
        model: servicePlayer(players),
        environment,
        episodes: Array.from({ length: 32 }, (_, id) => ({ id, task: tasks[id % 2]! })),
        seed: 0,
        maxActionTokens: 50,
        maxPromptTokens: 100_000,
        temperature: 1,
      });
      return trajectories.map(({ task, reward, outcome, turns }) => ({
        task,
        reward,
        outcome,
        turns: turns.map(({ text, observation, info }) => ({ text, observation, info })),
      }));
    };
    const recorded = await play(
      recordService(player(), file("player")),
      recordService(oracle(), file("oracle")),
    );
    expect(recorded.every(({ outcome }) => outcome === "done")).toBe(true);
    // Each request has one reply, but each episode has its own seed.
    const openings = recorded
      .filter(({ task }) => task === recorded[0]!.task)
      .map(({ turns }) => turns[0]!.text);
    expect(new Set(openings).size).toBeGreaterThan(1);
    const replayed = await play(playRecording(file("player")), playRecording(file("oracle")));
    expect(replayed).toEqual(recorded);
    // Without recordings they differ.
    expect(await play(player(), oracle())).not.toEqual(recorded);
  });

  it("has one reply per request, also if two are concurrent", async () => {
    const service = recordService(counting(), file());
    const together = await Promise.all([service.complete(says("a")), service.complete(says("a"))]);
    expect(together).toEqual(["a 0", "a 0"]);
    expect(await service.complete(says("a"))).toBe("a 0");
    expect(service.usage().requests).toBe(2);
    await service.close!();
    expect(await playRecording(file()).complete(says("a"))).toBe("a 0");
  });

  it("distinguishes requests by messages, settings and, if it has an effect, the seed", async () => {
    const service = recordService(counting(), file());
    const all = [
      {},
      { maxTokens: 5 },
      { temperature: 1 },
      { temperature: 1, seed: 1 },
      { temperature: 1, seed: 2 },
      { temperature: 0 },
    ];
    const replies = [];
    for (const options of all) replies.push(await service.complete(says("a"), options));
    expect(new Set(replies).size).toBe(all.length);
    expect(await service.complete(says("a"), { temperature: 0, seed: 9 })).toBe(replies[5]);
    const played = playRecording(file());
    for (const [i, options] of all.entries()) {
      expect(await played.complete(says("a"), options)).toBe(replies[i]);
    }
    expect(played.usage()).toEqual({ requests: 6, promptTokens: 0, completionTokens: 0, cost: 0 });
  });

  it("includes the default settings of its service", async () => {
    const server = await chatServer(() => ({ text: "yes" }));
    const options = { model: "m", baseURL: server.baseURL, maxTokens: 9, record: file() };
    const service = openService(options);
    await service.complete(says("a"));
    await server.close();
    const played = openService({ recording: file() });
    expect(played).toMatchObject({ model: "m", defaults: { maxTokens: 9, temperature: 0 } });
    expect(await played.complete(says("a"), { maxTokens: 9, temperature: 0 })).toBe("yes");
    await service.close!();
    expect(() => openService({ ...options, maxTokens: 10 })).toThrow(/another file/);
  });

  it("never contains a key", async () => {
    const server = await chatServer(() => ({ text: "yes" }));
    const options = { model: "m", baseURL: server.baseURL, apiKey: "secret-key", record: file() };
    await openService(options).complete(says("a"));
    await server.close();
    expect(readFileSync(file(), "utf8")).not.toContain("secret-key");
  });

  it("continues a file, and repeats no request", async () => {
    const first = recordService(counting(), file());
    await first.complete(says("a"));
    await first.close!();
    await expect(first.complete(says("a"))).rejects.toMatchObject({ code: "ERR_DISPOSED" });
    const second = recordService(counting(), file());
    expect(await second.complete(says("a"))).toBe("a 0");
    expect(second.usage().requests).toBe(0);
    await second.complete(says("b"));
    await second.close!();
    expect(await playRecording(file()).complete(says("b"))).toBe("b 0");
  });

  it("is shared by services that record to the same file", async () => {
    const [a, b] = [recordService(counting(), file()), recordService(counting(), file())];
    expect(await a.complete(says("x"))).toBe("x 0");
    expect(await b.complete(says("x"))).toBe("x 0");
    await a.close!();
    await a.close!();
    expect(await b.complete(says("y"))).toBe("y 0");
    await b.close!();
    expect(await playRecording(file()).complete(says("y"))).toBe("y 0");
  });

  it("drops a last line that a crash left unfinished, and continues after it", async () => {
    const service = recordService(counting(), file());
    for (const text of ["a", "b"]) await service.complete(says(text));
    await service.close!();
    truncateSync(file(), readFileSync(file()).length - 5);
    const played = playRecording(file());
    expect(await played.complete(says("a"))).toBe("a 0");
    await expect(played.complete(says("b"))).rejects.toMatchObject({ code: "ERR_SERVICE" });
    const again = recordService(counting(), file());
    expect(await again.complete(says("b"))).toBe("b 0");
    await again.close!();
    expect(await playRecording(file()).complete(says("b"))).toBe("b 0");
  });

  it("continues after a last line that lacks sectors, as a crash of the machine leaves it", async () => {
    const service = recordService(counting(), file());
    for (const text of ["a", "b".repeat(3000)]) await service.complete(says(text));
    await service.close!();
    const torn = readFileSync(file());
    const end = Math.floor((torn.length - 1000) / 512) * 512;
    torn.fill(0, end - 1024, end);
    writeFileSync(file(), torn);
    const again = recordService(counting(), file());
    expect(await again.complete(says("c"))).toBe("c 0");
    await again.close!();
    const played = playRecording(file());
    expect([await played.complete(says("a")), await played.complete(says("c"))]).toEqual(["a 0", "c 0"]);
  });

  it("of another service is left unlocked", async () => {
    const service = recordService(counting(), file());
    await service.complete(says("a"));
    await service.close!();
    const other: ChatService = { ...counting(), model: "other" };
    expect(() => recordService(other, file())).toThrow(/record to another file/);
    const again = recordService(counting(), file());
    expect(await again.complete(says("a"))).toBe("a 0");
    await again.close!();
  });

  it("does not record failures", async () => {
    let broken = true;
    const service = recordService(
      openService(() => {
        if (broken) throw new Error("out of order");
        return "fine";
      }),
      file(),
    );
    await expect(service.complete(says("a"))).rejects.toThrow("out of order");
    broken = false;
    expect(await service.complete(says("a"))).toBe("fine");
  });

  it("rejects damage, other files and requests that were not recorded", async () => {
    const service = recordService(counting(), file());
    await service.complete(
      [{ role: "system", content: "You sell cars." }, ...says("How much is the red one?")],
      {
        temperature: 0.5,
      },
    );
    await service.close!();
    const played = playRecording(file());
    const missing = (messages: Message[], options = {}) =>
      played.complete(messages, options).then(
        () => "found",
        (error) => `${error.code}: ${error.message}`,
      );
    const system: Message = { role: "system", content: "You sell cars." };
    expect(await missing([system, ...says("How much is the blue one?")])).toMatch(
      /^ERR_SERVICE: .*agrees in 1 of its 2 messages.*red one.*blue one/,
    );
    expect(await missing([system, ...says("How much is the red one?")], { temperature: 0.7 })).toMatch(
      /0\.5.*0\.7/,
    );
    expect(await missing([system])).toMatch(/agrees in 1 of its 1 messages.*where this request has nothing/);

    const text = readFileSync(file(), "utf8");
    writeFileSync(file("damaged"), text.replace("red one", "new one"));
    expect(() => playRecording(file("damaged"))).toThrowError(expect.objectContaining({ code: "ERR_IO" }));
    writeFileSync(file("other"), text.split("\n").slice(1).join("\n"));
    expect(() => playRecording(file("other"))).toThrow(/not the recording of a service/);
    writeFileSync(file("empty"), "");
    expect(() => playRecording(file("empty"))).toThrow(/There is no recording/);
    writeFileSync(file("notes"), '{"dear": "config"}');
    expect(() => recordService(counting(), file("notes"))).toThrow(/line 1 is not a record/);
    expect(readFileSync(file("notes"), "utf8")).toBe('{"dear": "config"}');
    appendFileSync(file(), '{"not": "a record"}\n');
    expect(() => recordService(counting(), file())).toThrowError(expect.objectContaining({ code: "ERR_IO" }));
  });
});

describe("a model in this process", () => {
  /** Ids are characters; it replies with its prompt reversed, once `release` was called. */
  function scripted(hold = false) {
    const seeds = new Map<string, unknown[]>();
    let underWay = 0;
    let release = () => {};
    const held = hold ? new Promise<void>((resolve) => (release = resolve)) : Promise.resolve();
    const model: LocalModel = {
      maxPositions: 40,
      render: (messages) => [...messages.at(-1)!.content].map((letter) => letter.codePointAt(0)!),
      async generate(requests, options) {
        const prompts = requests.map(({ tokens }) => String.fromCodePoint(...tokens!));
        for (const [i, prompt] of prompts.entries())
          seeds.set(prompt, [...(seeds.get(prompt) ?? []), requests[i]!.seed]);
        underWay++;
        await Promise.race([
          held,
          new Promise((_, reject) =>
            options?.signal?.addEventListener("abort", () => reject(new NlacError("ERR_ABORTED", "stopped"))),
          ),
        ]).finally(() => underWay--);
        if (prompts.includes("explode")) throw new Error("no memory");
        return prompts.map((prompt) => ({
          tokens: [...prompt].map(() => 1),
          logProbs: new Float32Array(),
          text: [...prompt].reverse().join(""),
          finishReason: "stop" as const,
          cachedTokens: 0,
        }));
      },
    };
    return { model, seeds, underWay: () => underWay, release: () => release() };
  }

  it("passes concurrent requests to the model together, and returns each its own reply", async () => {
    const { model, underWay, release } = scripted(true);
    const service = localService({ local: model });
    const replies = ["ab", "cd", "ef", "gh"].map((text) => service.complete(says(text)));
    await expect.poll(underWay).toBe(4);
    release();
    expect(await Promise.all(replies)).toEqual(["ba", "dc", "fe", "hg"]);
    expect(service.usage()).toEqual({ requests: 4, promptTokens: 8, completionTokens: 8, cost: 0 });
  });

  it("seeds a request by its content and seed only", async () => {
    const { model, seeds } = scripted();
    const service = localService({ local: model });
    const ask = (text: string, seed?: number) =>
      service.complete(says(text), seed === undefined ? {} : { seed });
    await Promise.all([ask("a"), ask("b"), ask("a", 1)]);
    await ask("b");
    await ask("a", 1);
    const [plain, seeded, again] = seeds.get("a")!;
    expect(again).toBe(seeded);
    expect(seeds.get("b")![1]).toBe(seeds.get("b")![0]);
    expect(new Set([plain, seeded, seeds.get("b")![0]]).size).toBe(3);
  });

  it("aborts only the aborted request", async () => {
    const { model, underWay, release } = scripted(true);
    const service = localService({ local: model });
    const a = new AbortController();
    const first = service.complete(says("ab"), { signal: a.signal });
    const second = service.complete(says("cd"));
    await expect.poll(underWay).toBe(2);
    a.abort();
    await expect(first).rejects.toMatchObject({ code: "ERR_ABORTED" });
    await expect(service.complete(says("ef"), { signal: a.signal })).rejects.toMatchObject({
      code: "ERR_ABORTED",
    });
    expect(underWay()).toBe(1);
    release();
    expect(await second).toBe("dc");
  });

  it("reports faults, long prompts and empty replies as ERR_SERVICE, and continues", async () => {
    const { model } = scripted();
    const service = localService({ local: model });
    const beside = service.complete(says("cd"));
    await expect(service.complete(says("explode"))).rejects.toMatchObject({
      code: "ERR_SERVICE",
      message: expect.stringContaining("no memory"),
    });
    expect(await beside).toBe("dc");
    await expect(service.complete(says("x".repeat(40)))).rejects.toThrow(/40 tokens/);
    await expect(service.complete(says(" "))).rejects.toThrow(/empty reply/);
    expect(await service.complete(says("ab"))).toBe("ba");
  });

  it("is loaded once for all its services, and disposed of with the last", async () => {
    const local = join(import.meta.dirname, "../../models/errands-base");
    const services = [localService({ local }), localService({ local, temperature: 1, maxTokens: 8 })];
    const ask = (service: ChatService) =>
      service.complete(says("Where is the key?"), { maxTokens: 8, temperature: 1 });
    const alone = await ask(services[0]!);
    const together = await Promise.all([
      ask(services[1]!),
      ...["a", "b", "c"].map((text) => services[0]!.complete(says(text), { temperature: 1, maxTokens: 8 })),
      ask(services[0]!),
    ]);
    expect([together[0], together[4]]).toEqual([alone, alone]);
    await services[0]!.close!();
    await expect(ask(services[0]!)).rejects.toMatchObject({ code: "ERR_DISPOSED" });
    expect(await ask(services[1]!)).toBe(alone);
    await services[1]!.close!();
    await services[1]!.close!();
    const again = localService({ local });
    expect(await ask(again)).toBe(alone);
    await again.close!();
  });

  it("is loaded at a later request if an earlier one could not load it", async () => {
    const place = join(directory, "model");
    const service = localService({ local: place });
    await expect(service.complete(says("a"))).rejects.toMatchObject({ code: "ERR_MODEL_NOT_FOUND" });
    symlinkSync(join(import.meta.dirname, "../../models/errands-base"), place);
    expect(await service.complete(says("what do you bring ?"), { maxTokens: 4 })).toEqual(expect.any(String));
    await service.close!();
  });

  it("reports why a model cannot be loaded", async () => {
    const service = localService({ local: "no-such-model" });
    await expect(service.complete(says("a"))).rejects.toMatchObject({ code: "ERR_MODEL_NOT_FOUND" });
    await service.close!();
    const rounded = localService({ local: "no-such-model", device: "cuda", int8Generation: true });
    await expect(rounded.complete(says("a"))).rejects.toThrow("int8Generation needs device");
    await rounded.close!();
  });
});
