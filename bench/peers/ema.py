"""Peers of `ops.ema`: target ← target + tau · (online - target), over the parameters of a model."""

import common

GROUP = 2**27  # elements converted at once: a bf16 list is not doubled in memory


class Inputs:
    """The tensors of lib/bench/suites/ema.ts."""

    def __init__(self, job):
        import torch

        common.threads(job)
        given = job["parameters"]
        self.tau = given["tau"]
        self.target = [common.tensor(job, 1, shape, 1.0, "float32") for shape in given["shapes"]]
        self.online = [common.tensor(job, 2, shape, 1.0, given["online"]) for shape in given["shapes"]]
        self.shadow = [torch.empty_like(t, dtype=torch.bfloat16) for t in self.target] if given["shadow"] else []
        for tensor in self.shadow:
            tensor.zero_()  # memory is allocated at the first write


def groups(tensors):
    """Slices of the list of about GROUP elements each."""
    start = elements = 0
    for i, tensor in enumerate(tensors):
        elements += tensor.numel()
        if elements >= GROUP or i + 1 == len(tensors):
            yield slice(start, i + 1)
            start, elements = i + 1, 0


def foreach_lerp(job):
    import torch

    x = Inputs(job)
    parts = list(groups(x.target))

    def call(_):
        for part in parts:
            target, online = x.target[part], x.online[part]
            if online[0].dtype != target[0].dtype:
                online = [tensor.float() for tensor in online]
            torch._foreach_lerp_(target, online, x.tau)
            if x.shadow:
                torch._foreach_copy_(x.shadow[part], target)
        common.finish(job)

    return common.Subject(call, lambda: x.target[1].double().mean())


if __name__ == "__main__":
    common.main({"foreach-lerp": foreach_lerp}, {})
