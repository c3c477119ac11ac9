// An environment that breaks its contract in every way that code in this process can, except that
// it never blocks the event loop. Chosen at random, a fifth of starts and steps misbehave.

export class Foreign extends Error {}

const never = () => new Promise(() => {});
const later = (ms, value) => new Promise((resolve) => setTimeout(resolve, ms, value));
const circular = () => {
  const value = { role: "user" };
  value.content = value;
  return value;
};
const texts = [
  "",
  "\ud800",
  "\udc00\ud800",
  "\u0000",
  "<|end|><|assistant|>",
  "x".repeat(100_000),
  "\u2028",
  "🙂".repeat(50),
];

const throwing = [
  () => {
    throw new Foreign("sync");
  },
  () => {
    throw undefined;
  },
  () => Promise.reject(new Foreign("async")),
  () => Promise.reject(null),
  () => Promise.reject("a string"),
  () =>
    Promise.reject({
      get message() {
        throw new Foreign("message");
      },
    }),
  () => Promise.reject({ toString: () => 5, message: 5 }),
  never,
  () => later(80).then(() => Promise.reject(new Foreign("late"))),
];

const messages = [
  undefined,
  null,
  5,
  "text",
  {},
  [null],
  [5],
  [{}],
  [{ role: "user" }],
  [{ role: "user", content: 5 }],
  [{ role: "king", content: "" }],
  [{ role: "user", content: null }],
  [circular()],
  [{ role: "user", content: 10n }],
  [{ role: "constructor", content: "" }],
  [
    {
      role: "user",
      get content() {
        throw new Foreign("content");
      },
    },
  ],
  [
    new Proxy(
      {},
      {
        get() {
          throw new Foreign("proxy");
        },
      },
    ),
  ],
];

const infos = [
  null,
  5,
  "text",
  circular(),
  { big: 10n },
  { f: () => 5 },
  { [Symbol("s")]: 1 },
  { text: "\ud800" },
  [1],
  {
    toJSON() {
      throw new Foreign("toJSON");
    },
  },
  { date: new Date(Number.NaN) },
  { success: "yes" },
  { deep: { nan: Number.NaN } },
];

/**
 * `watch`: { started, closed, stepsAfterEnd, overlapping } counts of what nlac did with the
 * episodes. `randomOf(task)` gives a task's { random, pick }.
 */
export function hostileEnvironment(randomOf, watch, { maxTurns = 4 } = {}) {
  const good = (content) => ({
    observation: [{ role: "user", content }],
    reward: 0,
    terminated: false,
    truncated: false,
    info: {},
  });

  const badStep = ({ pick }) => {
    const result = good("go on");
    const change = pick([
      () => pick([undefined, null, 5, [], "text", new Proxy({}, { get: () => result })]),
      () => ({ ...result, reward: pick([Number.NaN, Number.POSITIVE_INFINITY, "1", null, 10n, undefined]) }),
      () => ({ ...result, terminated: pick([1, "true", null, undefined]) }),
      () => ({ ...result, truncated: pick([1, "false", null]) }),
      () => ({ ...result, terminated: true, truncated: true }),
      () => ({ ...result, observation: pick(messages) }),
      () => ({ ...result, observation: [{ role: "user", content: pick(texts) }] }),
      () => ({ ...result, info: pick(infos) }),
      () => Object.freeze(result),
      () => {
        // Changes an object that it has returned.
        setTimeout(() => {
          result.observation.push(5);
          result.reward = Number.NaN;
          result.observation[0].content = 5;
          result.info.later = 10n;
        });
        return result;
      },
    ]);
    return change();
  };

  const badStart = ({ pick }, episode) =>
    pick([
      () => pick([undefined, null, 5, "text", {}, [], { observation: {} }]),
      () => ({ ...episode, observation: undefined }),
      () => ({ ...episode, observation: { messages: pick(messages) } }),
      () => ({ ...episode, observation: { messages: [{ role: "user", content: pick(texts) }] } }),
      () => ({
        ...episode,
        observation: { ...episode.observation, tools: pick([5, "text", [null], [{}], null, {}]) },
      }),
      () => ({ ...episode, step: undefined }),
      () => ({ ...episode, close: pick([undefined, 5]) }),
      () => {
        let looks = 0;
        return {
          step: episode.step,
          close: episode.close,
          get observation() {
            if (++looks > 2) throw new Foreign("observation");
            return episode.observation;
          },
        };
      },
      () => later(80, episode), // after the timeout
    ])();

  async function start(task) {
    const chance = randomOf(task);
    const { random, pick } = chance;
    let over = false;
    let stepping = false;
    let turn = 0;
    const episode = {
      observation: { messages: [{ role: "user", content: `task ${task}` }] },
      step() {
        if (over) watch.stepsAfterEnd++;
        if (stepping) watch.overlapping++;
        stepping = true;
        turn++;
        const misbehaves = random() < 0.2;
        const answer = misbehaves
          ? pick([...throwing, () => badStep(chance), () => badStep(chance)])()
          : good(`turn ${turn}`);
        const done = !misbehaves && random() < 0.3;
        if (done) over = true;
        return Promise.resolve(done ? { ...answer, terminated: true, reward: 1 } : answer).finally(() => {
          stepping = false;
        });
      },
      close() {
        watch.closed++;
        if (random() < 0.05) return pick(throwing)();
        return Promise.resolve();
      },
    };
    if (random() < 0.1)
      return pick([...throwing, () => badStart(chance, episode), () => badStart(chance, episode)])();
    watch.started++;
    return episode;
  }

  return {
    name: "hostile",
    actionFormat: "text",
    maxTurns,
    tasks: async () => [1, 2, 3, 4],
    taskId: (task) => {
      const { random, pick } = randomOf(`${task} id`);
      if (random() < 0.02)
        return pick([
          () => undefined,
          () => 5,
          () => {
            throw new Foreign("taskId");
          },
        ])();
      return String(task);
    },
    start,
    reset: never,
    step: never,
    close: async () => {},
  };
}
