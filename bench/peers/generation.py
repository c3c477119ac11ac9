"""Peers of `Learner.generate`: generation on random prompts, as in lib/bench/suites/generation.ts."""

import os
from pathlib import Path

import common

FIRST_ID, IDS = 1000, 40_000


def prompts(given):
    """[texts][tokens]; prompts with the same prefix are adjacent."""

    def random(seed, count):
        return [FIRST_ID + int(bits) % IDS for bits in common.random_bits(seed, count)]

    groups, texts = given["groups"], given["texts"]
    return [
        random(1 + i // texts, given["shared"]) + random(1 + groups + i, given["own"]) for i in range(groups * texts)
    ]


def load_model(job, dtype):
    """The case's model, from nlac's cache: the default one, or a family's random one."""
    import torch
    from transformers import AutoModelForCausalLM

    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "nlac"
    given = job["parameters"]
    if "family" in given:
        folder, options = cache / "peers" / "models" / given["family"], {}
        source = folder
    else:
        folder, options = cache / "models", {"gguf_file": given["file"]}
        source = folder / given["file"]
    if not source.exists():
        raise common.Skip(f"{source.name} is not in the cache")
    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), **options).to(job["device"])


def transformers_in(dtype):
    return lambda job: transformers(job, dtype)


def transformers(job, dtype="bfloat16"):
    """As many texts at once as the case has, its long ones 32 at a time; every text is written to its full length."""
    import torch

    common.threads(job)
    given = job["parameters"]
    model = load_model(job, dtype).eval()
    ids = torch.tensor(prompts(given), device=job["device"])
    written = given["written"]

    def call(_):
        with torch.inference_mode():
            for batch in ids.split(32):
                model.generate(
                    batch,
                    attention_mask=torch.ones_like(batch),
                    **sampled(written),
                )
        common.finish(job)

    return common.Subject(call)


def sampled(written):
    """Settings for a fixed number of tokens per text, sampled without filters."""
    return dict(max_new_tokens=written, min_new_tokens=written, do_sample=True, top_k=0, pad_token_id=0)


def transformers_written(job):
    """Writing without prefill, as in lib/bench/suites/generation-cuda.ts: the first call keeps the prompts' keys and
    values, and they are cut back to the prompts before every later call."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    given = job["parameters"]
    config = AutoConfig.for_model(**given["config"])
    written, length = given["written"], given["prompt"]
    with torch.device(job["device"]):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    ids = torch.tensor(
        [[int(bits) % config.vocab_size for bits in common.random_bits(1 + i, length)] for i in range(given["texts"])],
        device=job["device"],
    )
    kept = {}

    def before():
        with torch.inference_mode():
            if not kept:
                for batch in ids.split(8):  # all at once, a layer would need more than the cache
                    part = model(batch[:, :-1], use_cache=True, logits_to_keep=1).past_key_values
                    kept.setdefault("parts", []).append(part)
                kept["cache"] = joined(kept.pop("parts"))
            beyond = kept["cache"].get_seq_length() - (length - 1)
            if beyond > 0:
                kept["cache"].crop(-beyond)

    def call(_):
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                past_key_values=kept["cache"],
                **sampled(written),
            )
        common.finish(job)

    return common.Subject(call, before=before)


def joined(parts):
    """Joins several caches along the batch."""
    import torch
    from transformers import DynamicCache

    cache = DynamicCache()
    for layer in range(len(parts[0].layers)):
        keys = torch.cat([part.layers[layer].keys for part in parts])
        values = torch.cat([part.layers[layer].values for part in parts])
        cache.update(keys, values, layer)
        for part in parts:
            part.layers[layer].keys = part.layers[layer].values = None
    return cache


if __name__ == "__main__":
    common.main(
        {
            "transformers": transformers,
            "transformers-float32": transformers_in("float32"),
            "transformers-written": transformers_written,
        },
        dict.fromkeys(
            ["transformers", "transformers-float32", "transformers-written"],
            ["torch", "transformers"],
        ),
    )
