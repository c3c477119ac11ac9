import { expect, test } from "vitest";
import type { SurrogateResult, SurrogateText } from "../../lib/model/language-model.ts";
import type { EpisodeText } from "../../lib/training/episode-texts.ts";
import {
  perSample,
  restoreScores,
  type Scores,
  savedScores,
  saveScores,
  scoreEpisodes,
  surrogateMetrics,
  withRecordedPolicy,
} from "../../lib/training/surrogate.ts";
import { ScriptedPolicy } from "../support/scripted-policy.ts";

const text: EpisodeText = { prompt: [1], response: [3, 4, 5], weight: [1, 0, 1], turns: [] };
const signal = new AbortController().signal;

test("scores are those of the policy's tokens, 0 at others; reference and values on request", async () => {
  const model = new ScriptedPolicy(() => "");
  await model.keepReference();
  model.theta = 2;
  const expected = (theta: number) =>
    Float32Array.from([model.logProb(3, theta), 0, model.logProb(5, theta)]);
  const settings = { temperature: 1, signal };
  const [plain] = await scoreEpisodes(model, [text], { ...settings, reference: false, values: false });
  expect(plain).toEqual({ oldLogProbs: expected(2) });
  const [full] = await scoreEpisodes(model, [text], { ...settings, reference: true, values: true });
  expect(full).toEqual({
    oldLogProbs: expected(2),
    referenceLogProbs: expected(0),
    oldValues: (await model.values([text]))[0],
  });
  const stopped = { ...settings, reference: false, values: false, signal: AbortSignal.abort() };
  await expect(scoreEpisodes(model, [text], stopped)).rejects.toMatchObject({ code: "ERR_ABORTED" });
});

test("all scores are at the temperature at which the episodes were sampled", async () => {
  const model = new ScriptedPolicy(() => "");
  await model.keepReference();
  const asked: unknown[] = [];
  const logProbs = model.logProbs.bind(model);
  model.logProbs = (texts, options) => {
    asked.push(options);
    return logProbs(texts, options);
  };
  await scoreEpisodes(model, [text], { temperature: 0.7, reference: true, values: false, signal });
  expect(asked).toEqual([
    { weights: "online", temperature: 0.7 },
    { weights: "reference", temperature: 0.7 },
  ]);
});

test("saved scores come back bit for bit, through JSON", () => {
  const floats = Float32Array.from([0.1, -0, 1e-45, Number.NaN, Number.NEGATIVE_INFINITY]);
  const values = floats.subarray(1, 3); // a view that does not start at its buffer's beginning
  for (const scores of [{ oldLogProbs: floats }, { oldLogProbs: floats, oldValues: values }] as Scores[]) {
    const saved = savedScores.parse(JSON.parse(JSON.stringify(saveScores(scores))));
    expect(restoreScores(saved)).toEqual(scores);
  }
});

test("scores are grouped by sample", () => {
  const scores = [0, 1, 2].map((value) => ({ oldLogProbs: Float32Array.of(value) }));
  const samples = [{ texts: [text, text] }, { texts: [] }, { texts: [text] }];
  expect(perSample(samples, scores)).toEqual([scores.slice(0, 2), [], scores.slice(2)]);
});

test("recorded log probabilities replace the scores of their own tokens, turn by turn", () => {
  const sequence = (turns: [start: number, end: number][], length: number): EpisodeText => ({
    ...{ prompt: [1], response: new Array(length).fill(2), weight: new Array(length).fill(1) },
    turns: turns.map(([start, end]) => ({ start, end, reward: 0 })),
  });
  const texts = [
    sequence(
      [
        [0, 2],
        [3, 5],
      ],
      5,
    ),
    sequence([[1, 3]], 3),
  ];
  const scores: Scores[] = [
    { oldLogProbs: Float32Array.of(-1, -2, 0, -3, -4), referenceLogProbs: new Float32Array(5) },
    { oldLogProbs: Float32Array.of(0, -5, -6) },
  ];
  const recorded = [[-0.5, -0.25], [-0.125, Number.NaN], [-8]].map((logProbs) => ({
    logProbs: Float32Array.from(logProbs),
  }));
  expect(withRecordedPolicy(scores, texts, recorded as never)).toEqual([
    {
      oldLogProbs: Float32Array.of(-0.5, -0.25, 0, -0.125, -4), // the last one was redacted
      referenceLogProbs: new Float32Array(5),
    },
    { oldLogProbs: Float32Array.of(0, -8, -6) },
  ]);
  expect(scores[0]!.oldLogProbs[0]).toBe(-1);
});

test("metrics are means over the policy's tokens; the loss is weighted", () => {
  const surrogate = (weight: number[], more: Partial<SurrogateText> = {}): SurrogateText => ({
    ...{ prompt: [1], response: weight.map((_, t) => t), weight },
    ...{ oldLogProbs: new Float32Array(weight.length), advantages: new Float32Array(weight.length) },
    ...more,
  });
  const result = (...ratios: number[]): SurrogateResult => ({
    losses: Float32Array.from(ratios, () => 2),
    logProbs: Float32Array.from(ratios, () => -1),
    entropies: Float32Array.from(ratios, (_, t) => t),
    ratios: Float32Array.from(ratios),
    clipped: Int32Array.from(ratios, Math.sign),
  });
  const texts = [
    surrogate([0.5, 0, 0.25], { referenceLogProbs: Float32Array.of(-1, 0, -3) }),
    surrogate([0.25]),
  ];
  const metrics = surrogateMetrics(texts, [result(1, 9, Math.E), result(1)]);
  expect(metrics).toMatchObject({ "tokens/policy": 3, "tokens/gradient": 3 });
  expect(metrics["loss/policy"]).toBeCloseTo(2, 6);
  expect(metrics.entropy).toBeCloseTo(2 / 3, 6);
  expect(metrics["clip_ratio/high_mean"]).toBe(1);
  expect(metrics["clip_ratio/low_mean"]).toBe(0);
  expect(metrics.approx_kl).toBeCloseTo((Math.E - 2) / 3, 6);
  expect(metrics.kl).toBeCloseTo((Math.expm1(-2) + 2) / 3, 6);
  expect(surrogateMetrics([surrogate([1])], [result(1)])).not.toHaveProperty("kl");
});
