import { expect, test } from "vitest";
import { correctThoughts } from "../../lib/roles/correct-thoughts.ts";
import { dropMetrics } from "../../lib/roles/drops.ts";
import { refine } from "../../lib/roles/refinements.ts";
import { writeTargets } from "../../lib/roles/targets.ts";
import { errandEnvironment } from "../support/errand.ts";
import { act, callsOf, roleWriter, scriptedRoles, target, transitionsFrom } from "../support/roles.ts";

const thought = `<think>It said so.</think>${target}`;
const corrected = "<corrected_think>I believe so.</corrected_think>";

/** Corrects one completion, `text`; `room` is what its context has left for the correction. */
async function correct(text: string, correction = corrected, room = 10_000) {
  const model = scriptedRoles({ policy: text, correction });
  const writer = roleWriter(model, { reasoning: true, maxCriticTokens: 10_000 });
  const chain = model.conversation([{ role: "user", content: "?" }]);
  const texts = await writer.write("target", "target", [chain]);
  Object.assign(model, { maxPositions: chain.tokens.length + room });
  const request = "Write <corrected_think>.";
  const [result, none] = await correctThoughts(
    writer,
    "target",
    [chain, undefined],
    [...texts, undefined],
    request,
  );
  expect(none).toBeUndefined();
  const said = result?.tokens && model.decode(result.tokens);
  return { said, dropped: result?.dropped, asked: callsOf(model, "correction") };
}

test("a rewritten thought replaces the original; the answer keeps its ids", async () => {
  const { said, asked } = await correct(thought);
  expect(said).toBe(`<think>I believe so.</think>${target}<|im_end|>`);
  expect(asked.map(({ weights }) => weights)).toEqual(["target"]);
  expect(asked[0]!.prompt).toContain("It said so.");
});

test.each([
  ["as Qwen3 writes it", "<think>\nIt said so.\nSo be it.\n</think>\n\n", "<think>\n…\n</think>\n\n"],
  // The generation prompt ends with the opening tag and a line break.
  ["as QwQ writes it", "It said so.\n</think>\n\n", "…\n</think>\n\n"],
  ["of one letter", "<think> \n? </think>", "<think> \n… </think>"],
  ["that is blank", "<think>\n\n</think>\n\n", "<think>\n…\n</think>\n\n"],
])("the white space around a thought stays: %s", async (_, before, after) => {
  const { said } = await correct(before + target);
  expect(said).toBe(`${after.replace("…", "I believe so.")}${target}<|im_end|>`);
});

test("a completion without a thought stays as it is; one that ends in its thought is dropped", async () => {
  const { said, asked } = await correct(target);
  expect([said, asked]).toEqual([`${target}<|im_end|>`, []]);
  for (const text of ["<think>It said …", "It said …", "<think>It said that key is what it wants"])
    expect(await correct(text)).toEqual({ said: undefined, dropped: "cut_off", asked: [] });
});

test("reasoning that is a message of its own cannot be rewritten", async () => {
  const model = scriptedRoles({ policy: thought, correction: corrected });
  const writer = roleWriter(model, { reasoning: true, maxCriticTokens: 10_000 });
  const chain = model.conversation([{ role: "user", content: "?" }]);
  const texts = await writer.write("target", "target", [chain]);
  // As of gpt-oss: the text has the tags, the ids do not.
  const decode = model.decode.bind(model);
  Object.assign(model, { decode: (ids: number[]) => decode(ids).replaceAll(/<\/?think>/g, "·") });
  await expect(correctThoughts(writer, "target", [chain], texts, "<corrected_think>")).rejects.toMatchObject({
    ...{ code: "ERR_CONFIG", message: expect.stringContaining("between <think> tags") },
  });
});

test("without a usable correction the completion is dropped: its reader cannot know what it knows", async () => {
  expect((await correct(thought, "I will not.")).dropped).toBe("correction");
  expect((await correct(thought, "<corrected_think>I …")).dropped).toBe("cut_off");
  expect((await correct(thought, corrected, 1)).dropped).toBe("context");
});

test("a rewritten thought that does not fit its reader's context drops the completion", async () => {
  const environment = errandEnvironment({ turns: 1, singleStep: false });
  const learn = async (letters: number) => {
    const model = scriptedRoles({
      backup: thought,
      refiner: `<think>The critique says key.</think>${act("key")}`,
      correction: `<corrected_think>${"x".repeat(letters)}</corrected_think>`,
    });
    const transitions = await transitionsFrom(model, environment);
    const writer = roleWriter(model, { reasoning: true, maxCriticTokens: 100_000 }, environment);
    const [targets, refinements] = [
      await writeTargets(writer, transitions),
      await refine(writer, transitions),
    ];
    const drops = { ...dropMetrics("t", targets), ...dropMetrics("r", refinements) };
    return { text: targets[0]!.text, dropped: [drops["t/dropped_context"], drops["r/dropped_context"]] };
  };
  const { text } = await learn(1);
  const { student, teacher, response } = text!;
  expect(teacher.length).toBeGreaterThan(student.length);
  const most = scriptedRoles().maxPositions;
  const letters = most + 1 - response.length - teacher.length; // as many as fit
  expect((await learn(letters)).dropped).toEqual([undefined, undefined]);
  expect((await learn(letters + 1)).dropped).toEqual([1, undefined]);
  expect((await learn(most)).dropped).toEqual([1, 1]);
});
