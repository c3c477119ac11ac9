import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { Learner } from "../../lib/learner/learner.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { testDevice } from "../support/device.ts";
import { codeOf, ids } from "../support/learner-checks.ts";
import { inDirectory, tinyLearner } from "../support/tiny.ts";

let learner: Learner;

beforeAll(async () => {
  learner = await tinyLearner({ seed: 7 });
});

afterAll(() => learner.dispose());

describe("save, resume and export", () => {
  const text = { prompt: ids("ab"), response: ids("cdef") };
  const train = async (model: Learner, rounds: number) => {
    await model.updateTarget(0); // θ̄ begins before the first step
    for (let i = 0; i < rounds; i++) {
      await model.tokenNll([text]);
      await model.step({ learningRate: 0.01, weightDecay: 0.1 });
      await model.tokenKl([{ student: text.prompt, teacher: ids("xy"), response: text.response }]);
      await model.step({ learningRate: 0.01, moments: "kl" });
      await model.updateTarget(0.1);
    }
  };
  const observe = async (model: Learner) => {
    const request = { tokens: ids("ab"), maxNewTokens: 12 };
    const generations = await model.generate([request, { ...request, weights: "target" }]);
    return {
      tokens: generations.map(({ tokens }) => tokens),
      logits: [
        ...(await model.logits([ids("abcd")])),
        ...(await model.logits([ids("abcd")], { weights: "target" })),
      ],
      distance: await model.targetDistance(),
      norm: (await model.step({ learningRate: 0 })).gradNorm,
    };
  };

  for (const dtype of ["float32", "bfloat16"] as const) {
    it(`continues bit for bit in ${dtype}`, async () => {
      await inDirectory(async (directory) => {
        await using model = await tinyLearner({ dtype, seed: 3 });
        await train(model, 2);
        await model.generate([{ tokens: ids("ab"), maxNewTokens: 3 }]);
        await model.tokenNll([text]); // left pending
        const path = join(directory, "deep", "er");
        await model.save(path);
        await using resumed = await Learner.resume(path, { device: testDevice });
        expect([resumed.seed, resumed.dtype]).toEqual([3, dtype]);
        expect(resumed.encode("a")).toEqual([97]);
        await train(model, 2);
        await train(resumed, 2);
        expect(await observe(resumed)).toEqual(await observe(model));
      });
    });
  }

  it("computes in another type than before only if it is given", async () => {
    await inDirectory(async (directory) => {
      await using model = await tinyLearner({ dtype: "float32" });
      await model.save(directory);
      await using other = await Learner.resume(directory, { dtype: "bfloat16" });
      expect(other.dtype).toBe("bfloat16");
    });
  });

  it("saves the effects of earlier calls, not of later ones", async () => {
    await inDirectory(async (directory) => {
      await using model = await tinyLearner();
      const [before] = await model.logits([ids("abc")]);
      const saving = model.save(directory);
      const training = train(model, 1);
      await Promise.all([saving, training]);
      await using resumed = await Learner.resume(directory, { dtype: "float32", device: testDevice });
      expect(await resumed.logits([ids("abc")])).toEqual([before]);
    });
  });

  it("refuses a directory that is not a checkpoint, or a damaged one", async () => {
    await inDirectory(async (directory) => {
      expect(await codeOf(Learner.resume(join(directory, "nowhere")))).toBe("ERR_CHECKPOINT");
      expect(await codeOf(Learner.resume(directory))).toBe("ERR_CHECKPOINT");
      await using model = await tinyLearner();
      await model.save(directory);
      for (const file of ["sampling.json", "tokenizer.json", "learner.json", "model.safetensors"]) {
        const path = join(directory, file);
        const content = readFileSync(path);
        for (const damaged of [content.subarray(0, content.length / 2), undefined]) {
          if (damaged) writeFileSync(path, damaged);
          else rmSync(path);
          expect([file, await codeOf(Learner.resume(directory))]).toEqual([file, "ERR_CHECKPOINT"]);
        }
        writeFileSync(path, content);
      }
      await using whole = await Learner.resume(directory);
      expect(whole.info.parameters).toBe(model.info.parameters);
    });
  });

  it("exports a directory that loads again, with its tokenizer", async () => {
    await inDirectory(async (directory) => {
      await using model = await tinyLearner();
      await train(model, 1);
      await model.exportHuggingFace(directory);
      const config = JSON.parse(readFileSync(join(directory, "tokenizer_config.json"), "utf8"));
      expect(config.chat_template).toContain("<|im_start|>");
      expect((await Tokenizer.fromDirectory(directory)).encode("abc")).toEqual(ids("abc"));
      await using loaded = await Learner.load(directory, { dtype: "float32", device: testDevice });
      expect(await loaded.logits([ids("abcdef")])).toEqual(await model.logits([ids("abcdef")]));
      const messages = [{ role: "user" as const, content: "hello" }];
      expect(loaded.render(messages)).toEqual(model.render(messages));
    });
  });

  it("throws ERR_IO if a directory cannot be written", async () => {
    await inDirectory(async (directory) => {
      writeFileSync(join(directory, "file"), "");
      expect(await codeOf(learner.save(join(directory, "file")))).toBe("ERR_IO");
      expect(await codeOf(learner.exportHuggingFace(join(directory, "file", "below")))).toBe("ERR_IO");
    });
  });
});
