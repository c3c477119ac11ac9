"""Peers of `ops.adamw`: a clipped step on float32 masters, a bfloat16 copy of them, and gradients set to 0."""

import common


class Inputs:
    """The tensors of lib/bench/suites/adamw.ts."""

    def __init__(self, job):
        import torch

        common.threads(job)
        given = job["parameters"]
        self.options = given["options"]
        self.masters = [common.tensor(job, 1, shape, 1.0, "float32").requires_grad_() for shape in given["shapes"]]
        self.source = [common.tensor(job, 2, shape, 1e-3, "float32") for shape in given["shapes"]]
        self.compute = [master.detach().to(torch.bfloat16) for master in self.masters]
        for master, gradient in zip(self.masters, self.source):
            master.grad = gradient.clone()


def torch_adamw(**kind):
    def prepare(job):
        import torch

        x = Inputs(job)
        options = x.options
        matrices = [master for master in x.masters if master.dim() >= 2]
        vectors = [master for master in x.masters if master.dim() < 2]
        optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": options["weightDecay"]},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=options["learningRate"],
            betas=(options["beta1"], options["beta2"]),
            eps=options["epsilon"],
            **kind,
        )
        # The moments are inputs: allocate them here, not in the first call.
        for master in x.masters:
            optimizer.state[master] = {
                "step": torch.zeros((), device=job["device"] if kind.get("fused") else "cpu"),
                "exp_avg": written_zeros(master),
                "exp_avg_sq": written_zeros(master),
            }
        gradients = [master.grad for master in x.masters]
        masters = [master.detach() for master in x.masters]

        def refill():
            torch._foreach_copy_(gradients, x.source)
            common.finish(job)

        def call(_):
            torch.nn.utils.clip_grad_norm_(x.masters, options["maxGradNorm"], foreach=True)
            optimizer.step()
            torch._foreach_copy_(x.compute, masters)
            torch._foreach_zero_(gradients)
            common.finish(job)

        return common.Subject(call, lambda: masters[1].double().mean(), refill)

    return prepare


def written_zeros(master):
    """Zeros that are written, so that their memory is allocated."""
    import torch

    return torch.full_like(master, 0.0, requires_grad=False)


if __name__ == "__main__":
    common.main({"fused": torch_adamw(fused=True), "foreach": torch_adamw(foreach=True)}, {})
