/** What the agents of this folder share: running errands in the world, and posting the rewards. */

export interface Message {
  role: "system" | "user" | "assistant";
  content: string;
}

/** Answers messages. `episode` is the value of the header `x-episode-id`. */
export type Answer = (messages: Message[], episode: string) => Promise<string>;

export interface Addresses {
  /** Of the model: http://127.0.0.1:8000/v1. */
  baseURL: string;
  /** Of the world: http://127.0.0.1:8100. */
  world: string;
}

/** Runs one errand and posts its reward: 1 if it was done in time, else 0. */
export async function runErrand(
  answer: Answer,
  { baseURL, world }: Addresses,
  episode: string,
  seed: number,
): Promise<number> {
  const { id, messages } = await post(`${world}/errands`, { seed });
  let reward = 0;
  let last: Message[] = [];
  for (let done = false; !done; ) {
    const content = await answer(messages, episode);
    const action = /^Thought:\n.*\nAction:\n(.+)$/.exec(content)?.[1];
    if (action === undefined) break;
    const moved = await post(`${world}/errands/${id}`, { action });
    ({ reward, done } = moved);
    last = [{ role: "user", content: moved.observation }];
    messages.push({ role: "assistant", content }, ...last);
  }
  await post(`${baseURL}/episodes/${episode}/reward`, { reward, messages: last });
  return reward;
}

/** Runs errands one after another, as `node examples/errands/… BASE_URL WORLD_URL MODEL COUNT`. */
export async function runErrands(agent: (baseURL: string, model: string) => Answer): Promise<void> {
  const [baseURL, world, model, count = "100"] = process.argv.slice(2);
  if (baseURL === undefined || world === undefined || model === undefined)
    throw new Error("Usage: BASE_URL WORLD_URL MODEL [COUNT]");
  const answer = agent(baseURL, model);
  const started = Date.now();
  const rewards: number[] = [];
  for (let i = 0; i < Number(count); i++) {
    rewards.push(await runErrand(answer, { baseURL, world }, `errand-${started}-${i}`, i));
    if (rewards.length % 20 > 0) continue;
    const success = rewards.slice(-20).reduce((sum, reward) => sum + reward) / 20;
    console.log(
      `${rewards.length} errands, ${Math.round((Date.now() - started) / 1000)} s: success ${success}`,
    );
  }
}

// biome-ignore lint/suspicious/noExplicitAny: the answers of the world and of the server differ
async function post(url: string, body: object): Promise<any> {
  const key = process.env.NLAC_SERVE_TOKEN;
  const response = await fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) },
    body: JSON.stringify(body),
  });
  if (!response.ok) throw new Error(`${url}: status ${response.status}: ${await response.text()}`);
  return response.json();
}
