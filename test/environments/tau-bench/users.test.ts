import fc from "fast-check";
import { afterEach, describe, expect, test } from "vitest";
import type { Message } from "../../../lib/contract/environment.ts";
import { openUser } from "../../../lib/environments/tau-bench/open-user.ts";
import type { TauBenchTask } from "../../../lib/environments/tau-bench/tasks.ts";
import { stopWord } from "../../../lib/environments/tau-bench/user.ts";
import {
  inFirstPerson,
  maxAgentTurns,
  scriptedUser,
} from "../../../lib/environments/tau-bench/user-scripted.ts";
import {
  type SimulatedUserOptions,
  simulatedUser,
} from "../../../lib/environments/tau-bench/user-simulated.ts";
import type { ServiceSource } from "../../../lib/services/open-service.ts";
import { type ChatServer, chatServer } from "../../support/chat-server.ts";

const task: TauBenchTask = {
  id: "train-1",
  userId: "mia_lee_1234",
  instruction: "You are Mia Lee and live in 60601. Cancel order #W1 because you no longer need it.",
  actions: [],
  outputs: [],
};

/** A recorded request and its options. */
interface Asked {
  messages: Message[];
  temperature: number | undefined;
  seed: number | undefined;
}

/** A service that returns `replies` in order and fails when there are no more. */
function replying(...replies: string[]): { service: ServiceSource; asked: Asked[] } {
  const asked: Asked[] = [];
  return {
    asked,
    service: (messages, options) => {
      asked.push({
        messages: structuredClone([...messages]),
        temperature: options?.temperature,
        seed: options?.seed,
      });
      const reply = replies[asked.length - 1];
      if (reply === undefined) throw new Error("asked once too often");
      return reply;
    },
  };
}

async function talk(options: Omit<SimulatedUserOptions, "service">, replies: string[], said: string[] = []) {
  const { service, asked } = replying(...replies);
  const conversation = await simulatedUser({ service, ...options }).start(task, { seed: 5 });
  const heard = [conversation.opening];
  for (const text of said) heard.push(await conversation.respond(text));
  return { heard, asked };
}

const roles = ({ messages }: Asked) => messages.map(({ role }) => role).join(" ");
const last = ({ messages }: Asked) => messages.at(-1)!.content;

describe("plain", () => {
  test("the model sees its instruction, then the conversation with the agent as its user", async () => {
    const { heard, asked } = await talk(
      { temperature: 0.7 },
      ["Hi.", "Yes.", "###STOP###"],
      ["Sure?", "Done."],
    );
    expect(heard).toEqual(["Hi.", "Yes.", stopWord]);
    expect(asked.map(roles)).toEqual([
      "system user",
      "system user assistant user",
      "system user assistant user assistant user",
    ]);
    expect(asked[0]!.messages[0]!.content).toContain(`Instruction: ${task.instruction}\n`);
    expect(asked[2]!.messages.slice(2).map(({ content }) => content)).toEqual([
      "Hi.",
      "Sure?",
      "Yes.",
      "Done.",
    ]);
    expect(asked.map(({ temperature }) => temperature)).toEqual([0.7, 0.7, 0.7]);
  });

  test("requests have their own seeds, reproducible with the conversation's", async () => {
    const seeds = async (seed: number) => {
      const { service, asked } = replying("Hi.", "Yes.");
      await (await simulatedUser({ service }).start(task, { seed })).respond("Sure?");
      return asked.map((request) => request.seed);
    };
    const first = await seeds(1);
    expect(new Set(first).size).toBe(2);
    expect(await seeds(1)).toEqual(first);
    expect(await seeds(2)).not.toEqual(first);
  });

  test("conversations are independent", async () => {
    const heard: string[] = [];
    const service = (messages: readonly Message[]): string => {
      heard.push(messages.map(({ content }) => content).join("|"));
      return "ok";
    };
    const user = simulatedUser({ service });
    const [a, b] = [await user.start(task, { seed: 1 }), await user.start(task, { seed: 2 })];
    await a.respond("for a");
    await b.respond("for b");
    expect(heard[2]).toContain("for a");
    expect(heard[3]).toContain("for b");
    expect(heard[3]).not.toContain("for a");
  });

  test("an empty message of the agent is passed on as empty", async () => {
    const { asked } = await talk({}, ["Hi.", "Hello?"], [" \n"]);
    expect(last(asked[1]!)).toBe("(The agent says nothing.)");
  });

  test.each([
    ["###STOP###", stopWord],
    ['"###STOP###"', stopWord],
    ["**###STOP###**", stopWord],
    ["### STOP ###", stopWord],
    ["###stop###.", stopWord],
    ["Thank you! ###STOP###", `Thank you! ${stopWord}`],
    ["Thank you!\n\n###STOP###", `Thank you! ${stopWord}`],
    ["<think>Shall I say ###STOP###? Yes.</think>\n###STOP###", stopWord],
    ["<think>No ###STOP### yet.</think>Please wait.", "Please wait."],
    ["The total of 3 ### marks", "The total of 3 ### marks"],
    ["######STOP###STOP###", `###\nSTOP### ${stopWord}`],
    ["Hm.</think>Please wait.<think>Or not?", "Please wait."],
  ])("%j is read as %j", async (reply, expected) => {
    const { heard } = await talk({}, ["Hi.", reply], ["Done."]);
    expect(heard[1]).toBe(expected);
  });

  test.each([
    ["Do you mean that ###STOP### ends it?", /must stand by itself/],
    ["<think>Where was I", /it says nothing/],
    ["<think>Hm.</think>", /it says nothing/],
  ])("%j is unusable and requested again", async (reply, reason) => {
    const { heard, asked } = await talk({}, ["Hi.", reply, "Yes."], ["Sure?"]);
    expect(heard[1]).toBe("Yes.");
    expect(last(asked[2]!)).toMatch(reason);
    // Unusable replies are not part of the history.
    const { asked: later } = await talk({}, ["Hi.", reply, "Yes.", "Bye."], ["Sure?", "More?"]);
    expect(later[3]!.messages.slice(2).map(({ content }) => content)).toEqual([
      "Hi.",
      "Sure?",
      "Yes.",
      "More?",
    ]);
  });

  test("for any reply, the stop word is at the end or absent", async () => {
    const part = fc.constantFrom(
      "###STOP###",
      "### stop ###",
      "###",
      "STOP",
      "<think>",
      "</think>",
      " ",
      "\n",
      '"',
      "Hi",
      "?",
    );
    await fc.assert(
      fc.asyncProperty(fc.array(part, { maxLength: 8 }), async (parts) => {
        const { heard } = await talk({}, ["Hi.", parts.join(""), "Yes."], ["Sure?"]);
        expect(heard[1]!.replace(/(?: |^)###STOP###$/, "")).not.toMatch(/#{3} ?STOP ?#{3}|<\/?think>/i);
        expect(heard[1]!.trim()).not.toBe("");
      }),
    );
  });

  test("a conversation does not end before it began", async () => {
    const { heard, asked } = await talk({}, ["###STOP###", "Hi."]);
    expect(heard).toEqual(["Hi."]);
    expect(last(asked[1]!)).toMatch(/only begun/);
  });

  test("three unusable replies are a fault of the service", async () => {
    await expect(talk({}, ["###STOP###", "###STOP###", "###STOP###"])).rejects.toMatchObject({
      code: "ERR_SERVICE",
      message: expect.stringMatching(
        /script gave no usable reply in 3 attempts: the conversation has only begun/,
      ),
    });
  });
});

describe("react", () => {
  const turn = (thought: string, response: string) => `Thought:\n${thought}\n\nUser Response:\n${response}`;

  test("the agent sees only the response; the model remembers its thought", async () => {
    const { heard, asked } = await talk(
      { strategy: "react" },
      [
        turn("I ask for it.", "Cancel #W1."),
        turn("Not yet ###STOP###.", "Yes."),
        turn("All done.", "###STOP###"),
      ],
      ["Sure?", "Done."],
    );
    expect(heard).toEqual(["Cancel #W1.", "Yes.", stopWord]);
    expect(asked[0]!.messages[0]!.content).toMatch(/Thought:\n<.*>\n\nUser Response:\n<.*>$/);
    expect(asked[1]!.messages[2]!.content).toBe(turn("I ask for it.", "Cancel #W1."));
  });

  test.each([
    ["Cancel #W1.", /"Thought:" is missing/],
    ["Thought: I ask for it.", /"User Response:" is missing/],
    [turn("I ask.", "a\nUser Response: b"), /2 times/],
    [turn("I ask.", ""), /nothing stands after "User Response:"/],
  ])("%j is requested again", async (reply, reason) => {
    const { heard, asked } = await talk({ strategy: "react" }, [reply, turn("I ask.", "Hi.")]);
    expect(heard).toEqual(["Hi."]);
    expect(last(asked[1]!)).toMatch(reason);
  });
});

describe("verify", () => {
  test("each reply goes to the supervisor, with the conversation under the speakers' names", async () => {
    const { heard, asked } = await talk({ strategy: "verify" }, ["Hi.", "true", "Yes.", "True."], ["Sure?"]);
    expect(heard).toEqual(["Hi.", "Yes."]);
    expect(asked.map(roles)).toEqual(["system user", "user", "system user assistant user", "user"]);
    expect(last(asked[3]!)).toMatch(/Customer: Hi\.\nAgent: Sure\?\n\n# Response:\nYes\.\n/);
    expect(last(asked[3]!)).toContain(task.instruction);
  });

  test("a rejected reply is generated again, and the third is used as it is", async () => {
    const { heard, asked } = await talk({ strategy: "verify" }, [
      "a",
      "false",
      "b",
      "I cannot tell.",
      "c",
      "false",
    ]);
    expect(heard).toEqual(["c"]);
    expect(asked.map(roles)).toEqual(["system user", "user", "system user", "user", "system user", "user"]);
    expect(new Set(asked.map(({ seed }) => seed)).size).toBe(6);
  });

  test("only the accepted reply is remembered", async () => {
    const { asked } = await talk(
      { strategy: "verify", attempts: 2 },
      ["a", "false", "b", "false", "c", "true"],
      ["Sure?"],
    );
    expect(asked[4]!.messages.slice(2).map(({ content }) => content)).toEqual(["b", "Sure?"]);
  });
});

describe("reflection", () => {
  const proposal = "Reflection:\nToo short.\n\nResponse:\nPlease cancel #W1.";

  test("an accepted reply takes two requests", async () => {
    const { heard, asked } = await talk({ strategy: "reflection" }, ["a", "true"]);
    expect([heard, asked.length]).toEqual([["a"], 2]);
  });

  test("another reply is proposed, and the customer is prompted again with it", async () => {
    const { heard, asked } = await talk(
      { strategy: "reflection" },
      ["a", "false", proposal, "b", "true", "c", "true"],
      ["Sure?"],
    );
    expect(heard).toEqual(["b", "c"]);
    expect(asked.slice(0, 5).map(roles)).toEqual(["system user", "user", "user", "system user user", "user"]);
    expect(last(asked[2]!)).toMatch(/# Response:\na\n/);
    expect(last(asked[3]!)).toContain("Please cancel #W1.");
    // The proposal is not part of the conversation.
    expect(asked[5]!.messages.slice(2).map(({ content }) => content)).toEqual(["b", "Sure?"]);
  });

  test("if that is rejected too, the first reply is used", async () => {
    const { heard, asked } = await talk({ strategy: "reflection" }, ["a", "false", proposal, "b", "false"]);
    expect([heard, asked.length]).toEqual([["a"], 5]);
  });

  test("a supervisor without a proposal changes nothing", async () => {
    const { heard, asked } = await talk({ strategy: "reflection" }, ["a", "false", "No idea."]);
    expect([heard, asked.length]).toEqual([["a"], 3]);
  });

  test("more attempts reflect on the last reply", async () => {
    const replies = ["a", "false", proposal, "b", "false", proposal, "c", "true"];
    const { heard, asked } = await talk({ strategy: "reflection", attempts: 3 }, replies);
    expect(heard).toEqual(["c"]);
    expect(last(asked[5]!)).toMatch(/# Response:\nb\n/);
    expect(roles(asked[6]!)).toBe("system user user");
  });
});

describe("the prompts", () => {
  test.each(["plain", "react"] as const)("of %s", async (strategy) => {
    const reply = "Thought:\nI ask.\n\nUser Response:\nHi.";
    const { asked } = await talk({ strategy }, [reply]);
    expect(
      asked[0]!.messages.map(({ role, content }) => `${role}: ${content}`).join("\n\n"),
    ).toMatchSnapshot();
  });

  test("of the supervisor", async () => {
    const reflection = "Reflection:\nToo short.\n\nResponse:\nPlease cancel #W1.";
    const { asked } = await talk({ strategy: "reflection" }, ["a", "false", reflection, "b", "true"]);
    expect([last(asked[1]!), last(asked[2]!), last(asked[3]!)].join("\n\n=====\n\n")).toMatchSnapshot();
  });
});

describe("over a service", () => {
  let server: ChatServer | undefined;
  afterEach(() => server?.close());

  const start = async (signal?: AbortSignal) => {
    const user = openUser({
      service: { model: "person", baseURL: server!.baseURL, maxRetries: 0 },
      temperature: 0.5,
    });
    return { user, conversation: await user.start(task, { seed: 0, signal }) };
  };

  test("the service gets the temperature, and its usage is reported", async () => {
    const temperatures: number[] = [];
    server = await chatServer(({ temperature }) => {
      temperatures.push(temperature);
      return { text: "Hi." };
    });
    const { user, conversation } = await start();
    await conversation.respond("Hello.");
    expect(temperatures).toEqual([0.5, 0.5]);
    expect(user.usage?.()).toMatchObject({ requests: 2 });
    await user.close?.();
  });

  test("a service that fails is ERR_SERVICE", async () => {
    server = await chatServer((_, call) => (call === 0 ? { text: "Hi." } : { status: 500 }));
    const { conversation } = await start();
    await expect(conversation.respond("Hello.")).rejects.toMatchObject({ code: "ERR_SERVICE" });
  });

  test("an abort is ERR_ABORTED, while a request runs and before one", async () => {
    const controller = new AbortController();
    server = await chatServer((_, call) => (call === 0 ? { text: "Hi." } : { text: "late", delay: 2000 }));
    const { conversation } = await start(controller.signal);
    setTimeout(() => controller.abort(), 20);
    await expect(conversation.respond("Hello.")).rejects.toMatchObject({ code: "ERR_ABORTED" });
    await expect(conversation.respond("Hello.")).rejects.toMatchObject({ code: "ERR_ABORTED" });
    await expect(start(AbortSignal.abort())).rejects.toMatchObject({ code: "ERR_ABORTED" });
    await expect(scriptedUser.start(task, { seed: 0, signal: AbortSignal.abort() })).rejects.toMatchObject({
      code: "ERR_ABORTED",
    });
  });
});

describe("opening a user", () => {
  test("a bare service plays plainly, a user is used as it is", async () => {
    const service = (): string => "Hi.";
    for (const option of [service, { service }, { service, strategy: "plain" as const }]) {
      expect((await openUser(option).start(task, { seed: 0 })).opening).toBe("Hi.");
    }
    expect(openUser("scripted")).toBe(scriptedUser);
    expect(openUser(scriptedUser)).toBe(scriptedUser);
  });

  const silent = (): string => "";

  test.each([
    ["nobody", null],
    ["an unknown name", "human"],
    ["an unknown strategy", { service: silent, strategy: "kind" }],
    ["an unknown option", { service: silent, turns: 3 }],
    ["no attempts", { service: silent, attempts: 0 }],
    ["a service that is none", { service: {} }],
  ])("rejects %s", (_, option) => {
    expect(() => openUser(option as never)).toThrow(expect.objectContaining({ code: "ERR_CONFIG" }));
  });
});

describe("the scripted user", () => {
  const start = (instruction: string) => scriptedUser.start({ ...task, instruction }, { seed: 0 });

  test.each([
    [
      "You are Mia Lee. You are calm, shy. You want to return your lamp.",
      "I am Mia Lee. I want to return my lamp.",
    ],
    ["Your name is Mia Lee and your zip code is 60601.", "My name is Mia Lee and my zip code is 60601."],
    ["You name is Mia.", "My name is Mia."],
    ["You've moved; you'd like it sent to you.", "I've moved; I'd like it sent to me."],
    ["If the agent asks you, tell it that you are tired.", "If the agent asks me, tell it that I am tired."],
    ["Keep it to yourself: it is yours.", "Keep it to myself: it is mine."],
    ["Cancel order #W1. Your cat ordered it.", "Cancel order #W1. My cat ordered it."],
  ])("%j becomes %j", async (instruction, told) => {
    expect(inFirstPerson(instruction)).toBe(told);
    expect((await start(instruction)).opening).toBe(told);
  });

  test("says something even without information in the instruction", async () => {
    expect((await start("You are calm, shy.")).opening).toBe("Hello.");
  });

  test.each([
    [
      "Could you please provide your email address or your name and zip code?",
      /^My name is Mia Lee, my zip code is 60601\.$/,
    ],
    ["To confirm your identity, what is your user id?", /^My name is/],
    ["I will cancel order #W1. Do you confirm (yes/no)?", /^Yes/],
    ["The refund takes a week and you will get an email. Shall I proceed?", /^Yes/],
    ["Is there anything else to change before I go ahead? Please confirm.", /^Yes/],
    ["Would you like me to send it to the old address?", /^Yes/],
    ["Reply yes to confirm.", /^Yes/],
    ["Would you like to cancel anything else?", /^###STOP###$/],
    ["It has been confirmed. Please let me know if there is anything else.", /^###STOP###$/],
    ["I need your name and zip code.", /^My name is/],
    ["Your order has been cancelled. Is there anything else I can help you with?", /^###STOP###$/],
    ["Your order has been cancelled.", /^###STOP###$/],
    ["You are being transferred to a human agent.", /^###STOP###$/],
    ["Which order is it about?", /^I am Mia Lee .*Cancel order #W1/],
    ["Let me look.", /^Please go on\.$/],
    ["", /^Please go on\.$/],
  ])("it answers %j with %s", async (text, expected) => {
    expect(await (await start(task.instruction)).respond(text)).toMatch(expected);
  });

  test("reveals only what the instruction says of its identity", async () => {
    const question = "Please tell me your name.";
    const who = async (instruction: string) => (await start(instruction)).respond(question);
    expect(await who("You are mia_lee_1234 and pay with credit_card_12345 for #W7654321.")).toBe(
      "My user id is mia_lee_1234.",
    );
    expect(await who("Your name is Mia Lee and your email is mia.lee1@example.com.")).toBe(
      "My name is Mia Lee, my e-mail address is mia.lee1@example.com.",
    );
    expect(await who("Cancel your order.")).toBe("I do not remember that.");
  });

  test("a long, odd text is processed without delay", async () => {
    const conversation = await start(task.instruction);
    expect(await conversation.respond("need your ".repeat(20_000))).toBe("Please go on.");
  }, 2000);

  test("a conversation ends", async () => {
    const conversation = await start(task.instruction);
    const heard: string[] = [];
    while (heard.at(-1) !== stopWord) heard.push(await conversation.respond("Let me look."));
    expect(heard.length).toBe(maxAgentTurns);
  });
});
