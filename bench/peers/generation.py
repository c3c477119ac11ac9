"""Peers of `Learner.generate`: texts written in bfloat16 on random prompts, as lib/bench/suites/generation.ts has them."""

import os
from pathlib import Path

import common

FIRST_ID, IDS = 1000, 40_000


def prompts(given):
    """[texts][tokens], those on one beginning together."""

    def random(seed, count):
        return [FIRST_ID + int(bits) % IDS for bits in common.random_bits(seed, count)]

    groups, texts = given["groups"], given["texts"]
    return [
        random(1 + i // texts, given["shared"]) + random(1 + groups + i, given["own"]) for i in range(groups * texts)
    ]


def transformers(job):
    """As many texts at once as the case has, its long ones 32 at a time; every text is written to its full length."""
    import torch
    from transformers import AutoModelForCausalLM

    common.threads(job)
    given = job["parameters"]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "nlac" / "models"
    if not (cache / given["file"]).exists():
        raise common.Skip(f"{given['file']} is not in the cache")
    model = AutoModelForCausalLM.from_pretrained(cache, gguf_file=given["file"], dtype=torch.bfloat16)
    model = model.to(job["device"]).eval()
    ids = torch.tensor(prompts(given), device=job["device"])
    written = given["written"]

    def call(_):
        with torch.inference_mode():
            for batch in ids.split(32):
                model.generate(
                    batch,
                    attention_mask=torch.ones_like(batch),
                    max_new_tokens=written,
                    min_new_tokens=written,
                    do_sample=True,
                    top_k=0,
                    pad_token_id=0,
                )
        common.finish(job)

    return common.Subject(call)


if __name__ == "__main__":
    common.main({"transformers": transformers}, {"transformers": ["torch", "transformers"]})
