"""Peers of a training step: the mean NLL of some texts, its gradient and AdamW, as in lib/bench/suites/training.ts."""

import common
from generation import load_model, prompts


def transformers_in(dtype):
    def prepare(job):
        import torch

        common.threads(job)
        given = job["parameters"]
        return training_step(job, load_model(job, dtype).train())

    return prepare


def random_weights(job):
    """The case's model with random weights, in bfloat16; with a rank, adapters of all matrices of its layers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    given = job["parameters"]
    with torch.device(job["device"]):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**given["config"]), dtype=torch.bfloat16)
    if given["rank"] > 0:
        from peft import LoraConfig, get_peft_model

        own = LoraConfig(r=given["rank"], lora_alpha=given["rank"], target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(model, own, autocast_adapter_dtype=False)
    return training_step(job, model.train())


def training_step(job, model):
    import torch

    given = job["parameters"]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=given["learningRate"], fused=True)
    texts = {"groups": given["texts"], "texts": 1, "shared": 0, "own": given["tokens"]}
    ids = torch.tensor(prompts(texts), device=job["device"])
    losses = []

    def call(_):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        common.finish(job)

    return common.Subject(call, lambda: losses[0])


if __name__ == "__main__":
    common.main(
        {"random": random_weights, **{dtype: transformers_in(dtype) for dtype in ("bfloat16", "float32")}},
        dict.fromkeys(["random", "bfloat16", "float32"], ["torch", "transformers"]),
    )
