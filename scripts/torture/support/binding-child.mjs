// Calls the addon with hostile arguments, as its parent asks. Arguments start as valid ones, of which
// some parts are replaced. The last call is written to a file, which tells what ended the process.
import { openSync, readdirSync, rmSync, writeSync } from "node:fs";
import { basename } from "node:path";
import { inspect } from "node:util";
import { uniform } from "../../../dist/base/random.js";
import { loadAddon } from "../../../dist/native/load.js";
import { randomOf } from "./in-process.mjs";

const addon = loadAddon();
const trace = openSync(process.argv[2], "w");
const vocab = 24;

/** Thrown by a getter of ours: the addon must pass it on. */
const own = new Error("thrown by an argument");

// --- valid arguments -----------------------------------------------------------------------------
// A kind makes a value from the random source and the run's handles.

const constant = (value) => () => value;
const one =
  (...values) =>
  ({ pick }) =>
    pick(values);
const many = (kind, most) => (source) => Array.from({ length: source.below(most + 1) }, () => kind(source));
const record = (fields) => (source) =>
  Object.fromEntries(Object.entries(fields).map(([key, kind]) => [key, kind(source)]));
const id = ({ below }) => below(vocab);
const ids = (most) => (source) => Int32Array.from(many(id, most)(source));
const floats = (most) => (source) => Float32Array.from(many((s) => s.random() - 0.5, most)(source));
const number = ({ random }) => random();
const flag = one(true, false);
const seed = ({ below }) => BigInt(below(1000));
const device = constant("cpu");
const weightSet = one("online", "target", "reference");
const path = one("a", "b", "c/d", "none");
const handle = (name) => (source) => source.handles[name] ?? null;

const config = JSON.stringify({
  architectures: ["Qwen2ForCausalLM"],
  vocab_size: vocab,
  hidden_size: 16,
  intermediate_size: 16,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  max_position_embeddings: 32,
  eos_token_id: 1,
});
const adapter = record({
  rank: one(1, 2),
  alpha: number,
  targets: one(["q_proj"], ["up_proj", "o_proj"]),
  seed,
});
const learnerOptions = record({
  device,
  dtype: one("float32", "bfloat16"),
  int8Generation: flag,
  gradientCheckpointing: flag,
  expertBalance: one(undefined, -1, 0.1),
  microBatchTokens: one(1, 64),
  cacheBytes: one(0, 1 << 20),
  heads: one("none", "value", "q"),
  adapter: (source) => (source.below(3) === 0 ? adapter(source) : undefined),
  ranks: constant(undefined),
  sharding: constant(0),
  layerwiseGeneration: constant(false),
});
const place = record({
  rank: constant(0),
  ranks: constant(1),
  address: constant("127.0.0.1"),
  port: constant(0),
  serves: constant(true),
  prefix: one("", "p"),
  timeoutMs: constant(500),
});
const request = record({
  tokens: ids(6),
  maxNewTokens: one(0, 1, 5),
  temperature: one(0, 1),
  topP: one(1, 0.5),
  topK: one(0, 3),
  minP: one(0, 0.1),
  repetitionPenalty: one(1, 1.5),
  forbidden: ids(2),
  grammar: one(
    "",
    "",
    '{"regex": "[ab]{1,3}"}',
    '{"json": true}',
    '{"jsonSchema": "{\\"type\\": \\"object\\"}"}',
    '{"ebnf": "root ::= root"}',
    '{"sequence": [{"literal": "a"}, {"anyOf": [{"regex": "b"}, {"literal": "c"}]}]}',
  ),
  forced: ids(1),
  seed,
  stopTokenIds: ids(2),
  stop: one([], ["a"], ["ab", ""]),
  keepHidden: flag,
  topLogProbs: one(0, 3),
});
const scored = record({ prompt: ids(4), response: ids(3), weights: floats(3) });
const surrogate = record({
  prompt: ids(4),
  response: ids(2),
  weights: floats(2),
  oldLogProbs: floats(2),
  advantages: floats(2),
  referenceLogProbs: floats(2),
  returns: floats(2),
  oldValues: floats(2),
});
const distilled = record({
  student: ids(4),
  teacher: ids(4),
  response: ids(3),
  weight: number,
  teacherHidden: (source) => (source.below(3) === 0 ? tensor(source) : undefined),
});
const pair = record({
  chosen: scored,
  rejected: scored,
  referenceChosen: number,
  referenceRejected: number,
  weight: number,
});
const judged = record({ prompt: ids(4), response: ids(3), label: one(0, 1), weight: number });
const softQ = record({ prompt: ids(4), response: ids(2), weights: floats(2), rewards: floats(2) });
const preference = { beta: number, loss: one("sigmoid", "hinge", "ipo"), labelSmoothing: one(0, 0.1) };
const support = record({ kind: one("full", "top_k", "sampled"), k: one(1, 5) });
const divergence = record({
  kind: one("forward_kl", "cross_entropy", "reverse_kl", "jensen_shannon"),
  beta: number,
});
const adamw = {
  learningRate: number,
  beta1: constant(0.9),
  beta2: constant(0.99),
  epsilon: constant(1e-8),
  weightDecay: one(0, 0.1),
  maxGradNorm: one(0, 1),
};
const tensor = handle("tensor");
/** A tensor of the shape and type. Half of those of other handles have another. */
const made = (shape, types) => (source) => {
  if (source.below(20) === 0) return tensor(source);
  const count = shape.reduce((a, b) => a * b, 1);
  const type = source.pick(types);
  const Data = { int64: BigInt64Array, int32: Int32Array, float64: Float64Array }[type] ?? Float32Array;
  const data = Data.from({ length: count }, () =>
    type.startsWith("int") ? (type === "int64" ? BigInt(source.below(8)) : source.below(8)) : source.random(),
  );
  return addon.tensorFrom(data, shape, type, "cpu");
};
const float = ["float32", "float32", "bfloat16", "float64"];
const [rows, width, words] = [3, 4, 8];
const lossOptions = {
  temperature: one(1, 0.5),
  withGradient: flag,
  workspaceBytes: one(0, 1 << 16),
  gradHead: (source) => (source.below(3) === 0 ? made([words, width], ["float32"])(source) : undefined),
};
const hidden = made([rows, width], float);
const head = made([words, width], float);
const targets = made([rows], ["int64", "int64", "int32"]);
const rowWeights = made([rows], ["float32"]);
const optional = (kind) => (source) => (source.below(2) === 0 ? kind(source) : undefined);
const tokenOptions = {
  ...lossOptions,
  ...{ hidden, head, targets, rowWeights, zLoss: one(0, 0.1), entropyCoefficient: one(0, 0.1) },
  withEntropies: flag,
};
const tensors = many(made([width], float), 2);

/** The arguments of everything that the addon exports. */
const exported = {
  Addon: {
    torchVersion: [],
    cudaAvailable: [],
    instructionSet: [],
    setThreads: [one(1, 2)],
    signatures: [],
    ggufMetadata: [path],
    ggufConfig: [path],
    loadLearner: [path, learnerOptions],
    createLearner: [constant(config), seed, learnerOptions],
    resumeLearner: [path, learnerOptions, one("", "a")],
    joinRanks: [place],
    createSampler: [one(1, 7, 300), one(0, 0.5), one(0, 1), seed, device],
    loadSampler: [path, device],
    tensorFrom: [
      floats(6),
      one([6], [2, 3], [0], [], [1, 6]),
      one("float32", "bfloat16", "int32", "int64", "float64"),
      device,
    ],
    linearTokenKl: [
      record({
        ...lossOptions,
        ...{ studentHidden: hidden, studentHead: head, teacherHidden: hidden, teacherHead: head, rowWeights },
        ...{ targets: optional(targets), divergence, support },
      }),
    ],
    linearTokenNll: [record(tokenOptions)],
    linearTokenLogProbs: [record({ ...tokenOptions, gradLogProbs: optional(rowWeights) })],
    linearTokenSurrogate: [
      record({
        ...tokenOptions,
        ...{ oldLogProbs: rowWeights, advantages: rowWeights, referenceLogProbs: optional(rowWeights) },
        ...{ clipLow: constant(0.2), clipHigh: constant(0.2), klCoefficient: one(0, 0.1) },
      }),
    ],
    linearTokenPreference: [
      record({
        ...lossOptions,
        ...preference,
        ...{ hidden: made([4, width], float), head, targets: made([4], ["int64"]) },
        offsets: one(Int32Array.of(0, 2, 4), Int32Array.of(0, 1, 2, 3, 4), Int32Array.of(0)),
        ...{ referenceLogProbs: made([2], ["float32"]), pairWeights: made([1], ["float32"]) },
      }),
    ],
    ema: [tensors, tensors, tensors, number, seed, seed],
    adamw: [
      record({
        ...adamw,
        ...{ parameters: tensors, masters: tensors, gradients: tensors, m: tensors, v: tensors },
        ...{ step: one(1, 2), target: tensors, shadow: tensors, targetRate: number },
      }),
    ],
  },
  NativeLearner: {
    info: [],
    generate: [many(request, 3), weightSet, one(undefined, () => {})],
    setTokenBytes: [
      ({ below }) =>
        Array.from({ length: below(10) === 0 ? below(60) : vocab }, (_, i) =>
          i < 2 ? new Uint8Array() : Uint8Array.of(95 + i),
        ),
      ids(3),
    ],
    logProbs: [many(scored, 3), weightSet, one(1, 0.5)],
    values: [many(scored, 2)],
    logits: [many(ids(5), 2), weightSet],
    tokenNll: [many(scored, 3), flag],
    tokenKl: [many(distilled, 2), one(1, 2), support, flag, divergence, one(-1, 0, 3)],
    tokenSurrogate: [
      many(surrogate, 2),
      record({
        temperature: constant(1),
        clipLow: constant(0.2),
        clipHigh: constant(0.2),
        klCoefficient: one(0, 0.1),
        entropyCoefficient: one(0, 0.1),
        value: (source) => (source.below(2) === 0 ? { coefficient: 1, clip: 0.2 } : undefined),
        withGradient: flag,
      }),
    ],
    tokenPreference: [many(pair, 2), record({ ...preference, withGradient: flag })],
    gather: [one("online", "target")],
    rewards: [many(judged, 2)],
    rewardLoss: [many(judged, 2), flag],
    softQ: [
      many(softQ, 2),
      record({
        ...{
          temperature: constant(0.1),
          discount: one(1, 0.9),
          qCoefficient: number,
          policyCoefficient: number,
        },
        withGradient: flag,
      }),
    ],
    resetQHeads: [],
    discardGradients: [],
    discardMoments: [one("a", "b")],
    dropCaches: [],
    step: [record({ ...adamw, moments: one("a", "b") }), one(undefined, 0.1)],
    updateTarget: [number],
    targetDistance: [],
    keepReference: [],
    restoreReference: [],
    save: [path],
    exportHuggingFace: [path],
    exportRewardModel: [path, one(-1, 0)],
    exportAdapter: [path, one("", "base")],
    dispose: [],
  },
  // Returned by `generate`, where they are used.
  NativeGeneration: { done: null, cancel: [] },
  NativeRanks: { set: [one("a", "b"), one("x", "")], get: [constant("a")], dispose: [] },
  NativeSampler: {
    capacity: null,
    alpha: null,
    beta: null,
    set: [ids(4), floats(4)],
    get: [ids(4)],
    total: [],
    min: [],
    max: [],
    draws: [],
    sample: [
      constant(3),
      flag,
      () => new Int32Array(3),
      () => new Float32Array(3),
      () => new Float32Array(3),
    ],
    save: [path],
    dispose: [],
  },
  NativeTensor: { shape: null, dtype: null, device: null, toArray: [], dispose: [] },
};

for (const [name, members] of Object.entries(addon.signatures()))
  for (const member of Object.keys(members))
    if (exported[name]?.[member] === undefined) throw new Error(`${name}.${member} has no arguments here`);

// --- hostile values ------------------------------------------------------------------------------

// No number between 8 and 2^31: it may be a valid size that takes minutes or all memory.
const numbers = [0, -0, 1, -1, 2, 7, 0.5, 2 ** 31, 2 ** 31 - 1, -(2 ** 31), 2 ** 32, 2 ** 53, 2 ** 53 + 2];
const extremes = [-(2 ** 53), 2 ** 63, 1e300, -1e300, 5e-324, Number.NaN, Infinity, -Infinity];
const strings = [
  "",
  "\0",
  "cpu",
  "cuda",
  "cuda:99",
  "float16",
  "\ud800",
  "é",
  "x".repeat(70_000),
  "{",
  "[]",
  "null",
];
const bigints = [0n, -1n, 1n, 2n ** 64n, 2n ** 64n - 1n, 2n ** 63n, -(2n ** 63n)];
const lists = [[], [[]], [null], new Array(5), [1, 2, 3], new Array(3).fill({})];

/** Values that no function expects. Some are made anew, because a call may change them. */
const hostile = [
  ({ pick }) => pick(numbers),
  ({ pick }) => pick(numbers),
  ({ pick }) => pick(extremes),
  ({ pick }) => pick(extremes),
  ({ pick }) => pick(strings),
  ({ pick }) => pick(bigints),
  ({ pick }) => pick(lists),
  ({ pick }) =>
    pick([undefined, null, true, false, Symbol("s"), () => {}, class {}, new Date(), /x/, new Map()]),
  ({ pick }) => Int32Array.from([pick(numbers), pick(numbers), -1, vocab]),
  ({ pick }) => Float32Array.from([pick(numbers), pick(extremes)]),
  ({ pick }) =>
    new (pick([Uint8Array, Float64Array, BigInt64Array, Int8Array, Uint16Array, DataView]))(
      new ArrayBuffer(16),
    ),
  ({ pick }) => {
    const array = new (pick([Int32Array, Float32Array, Uint8Array]))(4);
    structuredClone(array.buffer, { transfer: [array.buffer] });
    return array; // detached
  },
  ({ pick }) => new (pick([Int32Array, Float32Array, Uint8Array]))(new SharedArrayBuffer(8)),
  ({ pick }) => {
    const buffer = new ArrayBuffer(16, { maxByteLength: 64 });
    const array = new (pick([Int32Array, Float32Array]))(buffer, 4, 3);
    buffer.resize(pick([4, 8, 64]));
    return array; // perhaps out of bounds
  },
  () => Object.create(null),
  () => new Proxy({}, { get: () => 1 }),
  () => new Proxy({}, { get: throwOwn }),
  () => Object.defineProperty({}, "tokens", { get: throwOwn, enumerable: true, configurable: true }),
  ({ handles, pick }) => pick(Object.values(handles)),
  ({ handles, pick }) => Object.create(pick(Object.values(handles))),
  // A handle that claims to be one of another kind.
  ({ handles, pick }) => {
    const sampler = addon.createSampler(3, 0, 0, 0n, "cpu");
    return Object.setPrototypeOf(sampler, Object.getPrototypeOf(pick(Object.values(handles))));
  },
];

function throwOwn() {
  throw own;
}

/** A copy of `value` in which a random part is replaced by a hostile one. */
function spoil(source, value, depth = 0) {
  const plain =
    value !== null && typeof value === "object" && Object.getPrototypeOf(value) === Object.prototype;
  const parts = Array.isArray(value) || plain ? Object.keys(value) : [];
  if (parts.length === 0 || source.below(depth === 0 ? 6 : 4) === 0) return source.pick(hostile)(source);
  const copy = Object.defineProperties(
    Array.isArray(value) ? [] : {},
    Object.getOwnPropertyDescriptors(value),
  );
  const key = source.pick(parts);
  const old = memberOf(value, key);
  // Or the value stays, but is read from a getter that disposes a handle in the middle of the call.
  const replaced =
    source.below(30) === 0
      ? { get: () => disposeAnd(source, old) }
      : { value: spoil(source, old, depth + 1), writable: true };
  return Object.defineProperty(copy, key, { ...replaced, configurable: true, enumerable: true });
}

function memberOf(value, key) {
  return Object.getOwnPropertyDescriptor(value, key).value;
}

/** Disposes a handle, and returns `value`. */
function disposeAnd({ handles, pick }, value) {
  const disposed = pick(Object.values(handles));
  if (typeof disposed?.dispose === "function") void Promise.resolve(disposed.dispose()).catch(() => {});
  return value;
}

// --- runs ----------------------------------------------------------------------------------------

const show = (value) =>
  inspect(value, { depth: 4, maxArrayLength: 8, maxStringLength: 80, breakLength: 200, getters: false });

function describe(name, args) {
  let text;
  try {
    text = `${name}(${args.map(show).join(", ")})`;
  } catch {
    text = `${name}(…)`;
  }
  writeSync(trace, `${text.slice(0, 4000)}\0`, 0);
  return text;
}

/** What a call may not end with; undefined for an error with a code, or one of an argument's getter. */
function fault(error, counts) {
  const code = error?.code;
  if (error === own) return;
  if (typeof code === "string" && code.startsWith("ERR_") && code !== "ERR_INTERNAL") {
    counts[code] = (counts[code] ?? 0) + 1;
    return;
  }
  // V8 itself refuses a method of another class's handle.
  if (error instanceof TypeError && /Illegal invocation|^A Native\w+ is made by/.test(error.message)) return;
  return error?.stack ?? String(error);
}

async function oneRun({ seed: base, number: runNumber, calls }) {
  const { random, pick } = randomOf(uniform, base, runNumber);
  const below = (n) => Math.floor(random() * n);
  const source = { random, pick, below, handles: {} };
  const counts = { calls: 0 };
  const uncoded = [];
  const pending = [];
  // Files of earlier runs, which run in the same directory.
  for (const name of readdirSync("."))
    if (name !== basename(process.argv[2])) rmSync(name, { recursive: true });

  const open = async () => {
    const { handles } = source;
    handles.learner = await addon.createLearner(config, 1n, learnerOptions(source));
    handles.learner.setTokenBytes(
      Array.from({ length: vocab }, (_, i) => (i < 2 ? new Uint8Array() : Uint8Array.of(95 + i))),
      Int32Array.of(0, 1),
    );
    handles.sampler = addon.createSampler(24, 0.5, 1, 1n, "cpu");
    handles.tensor = addon.tensorFrom(new Float32Array(12), [3, 4], "float32", "cpu");
    if (below(8) === 0) handles.ranks = await addon.joinRanks(place(source));
  };
  const close = () =>
    Promise.allSettled(Object.values(source.handles).map(async (handle) => handle.dispose()));

  const kinds = {
    NativeLearner: "learner",
    NativeSampler: "sampler",
    NativeTensor: "tensor",
    NativeRanks: "ranks",
  };
  const call = (interfaceName, name, kindsOfArguments) => {
    const self = interfaceName === "Addon" ? addon : source.handles[kinds[interfaceName]];
    if (self === undefined) return;
    const args = (kindsOfArguments ?? []).map((kind) => kind(source));
    for (let i = below(3); i > 0 && args.length > 0; i--) {
      const at = below(args.length);
      args[at] = spoil(source, args[at]);
    }
    // Fewer or more arguments, or another's `this`.
    if (below(30) === 0) args.length = below(args.length + 1);
    if (below(30) === 0) args.push(pick(hostile)(source));
    if (name === "joinRanks" && waits(args[0])) return;
    const target = below(40) === 0 ? pick(hostile)(source) : self;
    const text = describe(`${interfaceName}.${name}`, args);
    const failed = (error) => {
      const problem = fault(error, counts);
      if (problem !== undefined && uncoded.length < 5) uncoded.push(`${text}: ${problem}`);
    };
    counts.calls++;
    try {
      const member = kindsOfArguments === null ? self[name] : self[name].apply(target, args);
      const promise =
        member instanceof Promise ? member : member?.done instanceof Promise ? member.done : undefined;
      if (promise !== undefined) pending.push(promise.then(disposeMade, failed));
      else disposeMade(member);
      if (typeof member?.cancel === "function" && below(4) === 0) member.cancel();
    } catch (error) {
      failed(error);
    }
  };

  await open();
  for (let i = 0; i < calls; i++) {
    const interfaceName = pick([
      "Addon",
      "NativeLearner",
      "NativeLearner",
      "NativeSampler",
      "NativeTensor",
      "NativeRanks",
    ]);
    const name = pick(Object.keys(exported[interfaceName]));
    // A run is mostly of open handles.
    if (name === "dispose" && below(10) > 0) continue;
    call(interfaceName, name, exported[interfaceName][name]);
    if (below(10) === 0) await Promise.all(pending.splice(0));
  }
  await Promise.all(pending);
  await close();
  // The process still trains and generates.
  await open();
  const { learner } = source.handles;
  const text = { prompt: Int32Array.of(2, 3), response: Int32Array.of(4), weights: Float32Array.of(1) };
  const [[loss]] = await learner.tokenNll([text], true);
  if (!Number.isFinite(loss)) uncoded.push(`a new learner has the loss ${loss}`);
  await close();
  return { counts, uncoded, rss: process.memoryUsage.rss() };
}

/** Whether joinRanks would wait for other ranks, or for a name server. */
function waits(given) {
  try {
    const { ranks, rank, address, timeoutMs, serves, port } = given;
    return !(
      ranks === 1 &&
      rank === 0 &&
      address === "127.0.0.1" &&
      timeoutMs === 500 &&
      serves === true &&
      port === 0
    );
  } catch {
    return true;
  }
}

/** Frees what a call has returned. */
function disposeMade(value) {
  if (value === null || typeof value !== "object") return;
  const items = typeof value.dispose === "function" ? [value] : Object.values(value);
  for (const item of items)
    if (typeof item?.dispose === "function") void Promise.resolve(item.dispose()).catch(() => {});
}

process.on("message", async (request) => {
  process.send(
    await oneRun(request).catch((error) => ({
      counts: {},
      uncoded: [error?.stack ?? String(error)],
      rss: 0,
    })),
  );
});
process.send("ready");
