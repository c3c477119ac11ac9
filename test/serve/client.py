"""Python's openai client against a server whose address and model are the arguments; prints what it got as JSON."""

import json
import sys

import openai

base_url, model = sys.argv[1:]
client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
hello = [{"role": "user", "content": "Hello"}]
tools = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]

answer = client.chat.completions.create(model=model, messages=hello, seed=1, logprobs=True, top_logprobs=2)
streamed = client.chat.completions.create(model=model, messages=hello, stream=True, stream_options={"include_usage": True})
parts = list(streamed)
called = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Weather?"}], tools=tools)
(call,) = called.choices[0].message.tool_calls
completed = client.completions.create(model=model, prompt="Once", n=2, logprobs=3)
answered = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "JSON?"}],
    response_format={
        "type": "json_schema",
        "json_schema": {
            "name": "one",
            "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        },
    },
)
try:
    client.chat.completions.create(model="other", messages=hello)
    refused = None
except openai.NotFoundError as error:
    refused = error.code
try:
    client.chat.completions.create(model=model, messages=hello, temperature=3)
    wrong = None
except openai.BadRequestError as error:
    wrong = error.param

print(
    json.dumps(
        {
            "models": [entry.id for entry in client.models.list()],
            "text": answer.choices[0].message.content,
            "reason": answer.choices[0].finish_reason,
            "tokens": len(answer.choices[0].logprobs.content),
            "likeliest": [top.model_dump() for top in answer.choices[0].logprobs.content[0].top_logprobs],
            "completedLikeliest": completed.choices[0].logprobs.top_logprobs[0],
            "streamed": "".join(part.choices[0].delta.content or "" for part in parts if part.choices),
            "usage": parts[-1].usage.completion_tokens,
            "call": [call.function.name, json.loads(call.function.arguments), called.choices[0].finish_reason],
            "completed": [choice.text for choice in completed.choices],
            "parsed": json.loads(answered.choices[0].message.content),
            "refused": refused,
            "wrong": wrong,
        }
    )
)
