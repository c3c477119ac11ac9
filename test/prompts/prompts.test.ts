import { describe, expect, test } from "vitest";
import type { Message } from "../../lib/contract/environment.ts";
import {
  followedTargetRequest,
  followedTurnText,
  futureRequest,
  observedTargetRequest,
  solutionTargetRequest,
  targetRequest,
  terminalTargetRequest,
} from "../../lib/prompts/backup.ts";
import {
  correctedRefinementThoughtRequest,
  correctedTargetThoughtRequest,
  parseCorrectedThought,
  splitThought,
} from "../../lib/prompts/corrected-thought.ts";
import { criticRequest, parseCritique } from "../../lib/prompts/critic.ts";
import { evaluatorRequest, parseEvaluation } from "../../lib/prompts/evaluator.ts";
import { parseAction, policyMessages, unreadableMessage } from "../../lib/prompts/policy.ts";
import { refinerRequest } from "../../lib/prompts/refiner.ts";
import { parseFuture, successorRequest } from "../../lib/prompts/successor.ts";

const observation: Message[] = [{ role: "user", content: "No." }];
const later = followedTurnText({ text: "Is it red?" }, observation, 0.25);
const tool = { name: "find", description: "Finds.", parameters: { type: "object", properties: {} } };

test("every prompt reads as it did when it was last reviewed", () => {
  const prompts = {
    policy: policyMessages({ messages: [{ role: "system", content: "Play." }, ...observation] }, "text"),
    policyTool: policyMessages({ messages: observation }, "tool"),
    policyToolDescribed: policyMessages({ messages: observation, tools: [tool] }, "tool"),
    policyCall: policyMessages({ messages: observation, tools: [tool] }, "call"),
    policySolution: policyMessages({ messages: observation }, "solution"),
    unreadable: unreadableMessage("the action is not valid JSON", "tool"),
    unreadableCall: unreadableMessage("the turn is empty", "call"),
    successor: successorRequest(),
    future: futureRequest(observation),
    futureSilent: futureRequest([]),
    target: targetRequest(true),
    targetFutureOnly: targetRequest(false),
    targetObserved: observedTargetRequest(observation, true),
    targetObservedFutureOnly: observedTargetRequest(observation, false),
    targetFollowed: followedTargetRequest(observation, [later, "", later], 0.5, true, 0.25),
    targetCutShort: followedTargetRequest(observation, [], undefined, false),
    terminal: terminalTargetRequest(observation, 1, true),
    solutionTarget: solutionTargetRequest(0),
    solutionTargetAnswered: solutionTargetRequest(0, observation, "tool"),
    critic: criticRequest(false),
    criticSingleStep: criticRequest(true),
    criticSingleStepTool: criticRequest(true, "tool"),
    evaluator: evaluatorRequest(["It goes\nwell.", "It goes badly."]),
    refinerText: refinerRequest("text"),
    refinerTool: refinerRequest("tool"),
    refinerCall: refinerRequest("call"),
    refinerSolution: refinerRequest("solution"),
    correctedTarget: correctedTargetThoughtRequest(),
    correctedRefinement: correctedRefinementThoughtRequest(),
  };
  expect(prompts).toMatchSnapshot();
});

test("the final reward is in the terminal target and nowhere in the others", () => {
  expect(terminalTargetRequest(observation, 0.5, true)).toContain("Final score: 0.5");
  expect(terminalTargetRequest(observation, -3, true, [-20, 0])).toContain(
    "Final score: -3 (0 is full success, -20 is failure).",
  );
  expect(futureRequest(observation, 0.25)).toContain("It was rewarded with 0.25.");
  expect(observedTargetRequest(observation, true, 0.25)).toContain("It was rewarded with 0.25.");
  expect(solutionTargetRequest(1)).toContain("Final score: 1");
  for (const text of [
    futureRequest(observation),
    targetRequest(true),
    observedTargetRequest(observation, true),
    criticRequest(false),
    criticRequest(true),
  ]) {
    expect(text).not.toContain("score");
  }
});

test("a solution's form is mentioned only if it has one", () => {
  for (const text of [criticRequest(true, "tool"), solutionTargetRequest(0, observation, "text")]) {
    expect(text).toContain("Correctness:");
    expect(text).not.toContain("boxed");
  }
});

describe("critiques", () => {
  const future = "Future:\nThe answer is no.\n";
  test.each([
    ["yes", `${future}Optimality:\nYes`, { yes: true, advice: "" }],
    ["yes with a full stop", `${future}Optimality: Yes.`, { yes: true, advice: "" }],
    ["quoted no", `${future}Optimality:\n"No". Ask about size.`, { yes: false, advice: "Ask about size." }],
    [
      "no on the tag's line",
      `${future}Optimality: No, ask about size.`,
      { yes: false, advice: "ask about size." },
    ],
  ])("%s", (_, text, verdict) => {
    expect(parseCritique(text, false)).toEqual({ ok: true, future: "The answer is no.", ...verdict });
  });

  test.each([
    ["empty", "", "Future"],
    ["no tags", "The action was fine.", "Future"],
    ["one tag", "Future:\nAll is well.", "Optimality"],
    ["wrong order", "Optimality:\nYes\nFuture:\nAll is well.", "before"],
    ["tag twice", `${future}${future}Optimality:\nYes`, "2 times"],
    ["no verdict", `${future}Optimality:\nMaybe.`, "Yes"],
    ["a word that begins like one", `${future}Optimality:\nNothing to add.`, "Yes"],
    ["no without a reason", `${future}Optimality:\nNo.`, "better"],
    ["empty section", "Future:\n\nOptimality:\nYes", "nothing stands"],
    ["text before", `Sure!\n${future}Optimality:\nYes`, "begin"],
  ])("malformed: %s", (_, text, reason) => {
    expect(parseCritique(text, false)).toEqual({ ok: false, reason: expect.stringContaining(reason) });
  });

  test("single-step: a Correctness section", () => {
    expect(parseCritique("Correctness:\nNo. 2 + 2 is 4.", true)).toEqual({
      ok: true,
      yes: false,
      advice: "2 + 2 is 4.",
    });
    expect(parseCritique(`${future}Optimality:\nYes`, true).ok).toBe(false);
  });

  test("the evaluator's is the verdict alone", () => {
    expect(parseEvaluation("Optimality:\nYes")).toEqual({ ok: true, yes: true, advice: "" });
    expect(parseEvaluation("Yes").ok).toBe(false);
  });
});

describe("actions", () => {
  test("text", () => {
    expect(parseAction("Thought:\nBig things first.\nAction:\nIs it bigger than a car?", "text")).toEqual({
      ok: true,
      action: { text: "Is it bigger than a car?", thought: "Big things first." },
    });
    expect(parseAction("Thought: a\nAction: b", "text")).toEqual({
      ok: true,
      action: { text: "b", thought: "a" },
    });
  });

  test("a tool call", () => {
    expect(
      parseAction('Thought:\nLook.\nAction:\n{"name": "find", "arguments": {"id": [1]}}', "tool"),
    ).toMatchObject({
      ok: true,
      action: { tool: { name: "find", arguments: { id: [1] } } },
    });
  });

  const deep = `{"name":"f","arguments":{"a":${"[".repeat(100)}${"]".repeat(100)}}}`;
  test.each([
    ["text", "Is it alive?", "Thought"],
    ["text", "Thought:\nx\nAction:\n", "nothing stands"],
    ["text", "Thought:\nx\nAction:\na\nb", "single line"],
    ["text", "Thought:\nx\nAction:\n<What you say or do, on one line.>", "the form's own words"],
    ["text", "Thought:\nx\nAction:\nWhat you say or do, on one line.", "the form's own words"],
    ["tool", "Thought:\nx\nAction:\nfind(1)", "JSON"],
    ["tool", "Thought:\nx\nAction:\n[1]", "object"],
    ["tool", 'Thought:\nx\nAction:\n{"name":"f"}', "exactly the keys"],
    ["tool", 'Thought:\nx\nAction:\n{"name":"","arguments":{}}', "name"],
    ["tool", 'Thought:\nx\nAction:\n{"name":"f","arguments":[]}', "arguments"],
    ["tool", `Thought:\nx\nAction:\n${deep}`, "deeper"],
    ["solution", "  \n ", "empty"],
  ] as const)("malformed %s: %j", (format, text, reason) => {
    expect(parseAction(text, format)).toEqual({ ok: false, reason: expect.stringContaining(reason) });
  });

  test("__proto__ in arguments reaches nothing", () => {
    const parsed = parseAction(
      'Thought:\nx\nAction:\n{"name":"f","arguments":{"__proto__":{"a":1},"b":2}}',
      "tool",
    );
    expect(parsed).toMatchObject({ ok: true, action: { tool: { arguments: { b: 2 } } } });
    expect(({} as Record<string, unknown>).a).toBeUndefined();
  });
});

describe("thoughts", () => {
  test("are split off, with and without the opening tag", () => {
    expect(splitThought("<think>\na\n</think>\nFuture:")).toEqual({ thought: "a", rest: "\nFuture:" });
    expect(splitThought("a</think>b")).toEqual({ thought: "a", rest: "b" });
    expect(splitThought("no thought")).toBeUndefined();
  });

  test("corrected ones are read strictly", () => {
    const block = (inner: string) => `<corrected_think>${inner}</corrected_think>`;
    expect(parseCorrectedThought(`Here: ${block(" I believe so. ")}\n`)).toEqual({
      ok: true,
      thought: "I believe so.",
    });
    for (const text of [
      "",
      block(""),
      block("a") + block("b"),
      block("<think>a"),
      `${block("a")} more`,
      "</corrected_think><corrected_think>",
    ]) {
      expect(parseCorrectedThought(text).ok).toBe(false);
    }
  });
});

test("a future is any text that is not empty", () => {
  expect(parseFuture(" it works \n")).toEqual({ ok: true, future: "it works" });
  expect(parseFuture(" \n").ok).toBe(false);
});
