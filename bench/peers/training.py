"""Peers of a training step: the mean NLL of some texts, its gradient and AdamW, as in lib/bench/suites/training.ts."""

import common
from generation import load_model, prompts


def transformers_in(dtype):
    def prepare(job):
        import torch

        common.threads(job)
        given = job["parameters"]
        model = load_model(job, dtype).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=given["learningRate"], fused=True)
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

    return prepare


if __name__ == "__main__":
    common.main(
        {dtype: transformers_in(dtype) for dtype in ("bfloat16", "float32")},
        dict.fromkeys(["bfloat16", "float32"], ["torch", "transformers"]),
    )
