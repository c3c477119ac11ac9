"""An agent of Python's openai package in a Gymnasium environment that learns while it works.

    pip install openai gymnasium
    python examples/errands/gymnasium_agent.py http://127.0.0.1:8000/v1 http://127.0.0.1:8100 errands-base 400

The addresses are those of `nlac serve --train` and of world.ts. Prints one line of JSON per 20 errands.
"""

import json
import os
import re
import sys
import time
import urllib.request

import gymnasium
from openai import OpenAI


def post(url, body):
    key = os.environ.get("NLAC_SERVE_TOKEN")
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


class Errands(gymnasium.Env):
    """Observations and actions are texts. The first observation's messages are in `info`."""

    observation_space = gymnasium.spaces.Text(10_000)
    action_space = gymnasium.spaces.Text(1_000)

    def __init__(self, world):
        self.world = world

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        begun = post(f"{self.world}/errands", {"seed": seed})
        self.errand = begun["id"]
        return begun["messages"][-1]["content"], {"messages": begun["messages"]}

    def step(self, action):
        moved = post(f"{self.world}/errands/{self.errand}", {"action": action})
        return moved["observation"], moved["reward"], moved["done"], False, {}


def run_errand(client, model, env, episode, seed):
    """Runs one errand and posts its reward: 1 if it was done in time, else 0."""
    observation, info = env.reset(seed=seed)
    messages = info["messages"]
    reward, done, last = 0, False, []
    while not done:
        answer = client.chat.completions.create(
            model=model, messages=messages, max_tokens=8, temperature=1, extra_headers={"x-episode-id": episode}
        )
        content = answer.choices[0].message.content or ""
        action = re.fullmatch(r"Thought:\n.*\nAction:\n(.+)", content)
        if action is None:
            break
        observation, reward, done, _, _ = env.step(action[1])
        last = [{"role": "user", "content": observation}]
        messages += [{"role": "assistant", "content": content}, *last]
    client.post(f"/episodes/{episode}/reward", body={"reward": reward, "messages": last}, cast_to=object)
    return reward


def main(base_url, world, model, count="100"):
    client = OpenAI(base_url=base_url, api_key=os.environ.get("NLAC_SERVE_TOKEN", "none"))
    env = Errands(world)
    started = time.time()
    rewards = []
    for i in range(int(count)):
        rewards.append(run_errand(client, model, env, f"errand-{started}-{i}", i))
        if len(rewards) % 20 == 0 or len(rewards) == int(count):
            success = sum(rewards[-20:]) / len(rewards[-20:])
            print(json.dumps({"errands": len(rewards), "seconds": round(time.time() - started), "success": success}))


if __name__ == "__main__":
    main(*sys.argv[1:])
