"""Peers of `ops.linearTokenKl` and `ops.linearTokenNll`: from hidden states to the gradients of both matrices.

Every call computes the mean loss over the rows and the gradients of the (student's) hidden states and vocabulary
matrix, which replace those of the call before. bench/README.md says what each implementation is.
"""

from math import log

import common


class Inputs:
    """The tensors of lib/bench/suites/losses.ts."""

    def __init__(self, job):
        import torch

        common.threads(job)
        given = job["parameters"]
        rows, width, vocabulary = given["rows"], given["width"], given["vocabulary"]
        self.job, self.loss, self.rows = job, given["loss"], rows
        self.beta, self.top_k = given.get("beta", 0.0), given.get("topK")
        dtype, scale = given["dtype"], given["weightScale"]
        self.hidden = common.tensor(job, 1, (rows, width), 1.0, dtype).requires_grad_()
        self.weight = common.tensor(job, 2, (vocabulary, width), scale, dtype).requires_grad_()
        if self.loss == "nll":
            targets = common.random_bits(5, rows) % vocabulary
            self.targets = torch.from_numpy(targets.astype("int64")).to(job["device"])
        else:
            self.teacher_hidden = common.tensor(job, 3, (rows, width), 1.0, dtype)
            self.teacher_weight = common.tensor(job, 4, (vocabulary, width), scale, dtype)

    def calls(self, loss):
        """`loss()` returns the mean loss as a scalar for backward."""
        return self.gradients(lambda: backward(loss()))

    def gradients(self, step):
        """`step()` computes the gradients and returns the mean loss."""
        values = []

        def call(_):
            self.hidden.grad = self.weight.grad = None
            value = step()
            common.finish(self.job)
            if not values:
                values.append(value)

        return common.Subject(call, lambda: values[0])

    def logits(self, rows=slice(None)):
        return (self.hidden[rows] @ self.weight.T).float()

    def teacher_logits(self, rows=slice(None)):
        import torch

        with torch.no_grad():
            return (self.teacher_hidden[rows] @ self.teacher_weight.T).float()


def backward(loss):
    loss.backward()
    return loss.detach()


def summed(x, rows=slice(None)):
    """The loss summed over `rows`, in plain torch."""
    import torch
    from torch.nn import functional as F

    if x.loss == "nll":
        return F.cross_entropy(x.logits(rows), x.targets[rows], reduction="sum")
    student = F.log_softmax(x.logits(rows), -1)
    with torch.no_grad():
        teacher = F.log_softmax(x.teacher_logits(rows), -1)
    if x.top_k is not None:
        with torch.no_grad():
            teacher, kept = teacher.topk(x.top_k)
        student, teacher = with_tail(student.gather(-1, kept)), with_tail(teacher)
    if x.beta == 0:
        return F.kl_div(student, teacher, reduction="sum", log_target=True)
    mixture = torch.logaddexp(student + log(1 - x.beta), teacher + log(x.beta))
    return x.beta * F.kl_div(mixture, teacher, reduction="sum", log_target=True) + (1 - x.beta) * F.kl_div(
        mixture, student, reduction="sum", log_target=True
    )


def with_tail(kept):
    """[rows, k + 1] log probabilities: the top k, and the remaining mass in the last column."""
    import torch

    rest = torch.log1p(-kept.exp().sum(-1, keepdim=True).clamp(max=1 - 1e-7))
    return torch.cat([kept, rest], -1)


def eager(job):
    x = Inputs(job)
    return x.calls(lambda: summed(x) / x.rows)


def eager_chunked(job):
    x = Inputs(job)
    size = job["parameters"]["chunk"]

    def step():
        pieces = [slice(start, start + size) for start in range(0, x.rows, size)]
        return sum(backward(summed(x, piece) / x.rows) for piece in pieces)

    return x.gradients(step)


def compiled(job):
    import torch

    x = Inputs(job)
    loss = torch.compile(lambda: summed(x) / x.rows)
    return x.calls(loss)


def torch_linear(job):
    from torch.nn import functional as F

    if not hasattr(F, "linear_cross_entropy"):
        raise common.Skip("this torch has no functional.linear_cross_entropy")
    x = Inputs(job)
    return x.calls(lambda: F.linear_cross_entropy(x.hidden, x.weight, x.targets))


def trl(job):
    if job["parameters"]["loss"] == "nll":
        from trl.kernels.chunked_logprob import ChunkedLogProbFunction
        from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

        x = Inputs(job)

        def nll():
            outputs = ChunkedLogProbFunction.apply(
                x.hidden, x.weight, None, x.targets, 1.0, _CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0, ()
            )
            return -outputs[0].mean()

        return x.calls(nll)
    from trl.kernels.chunked_divergence import ChunkedDivergenceFunction

    x = Inputs(job)
    return x.calls(
        lambda: ChunkedDivergenceFunction.apply(
            x.hidden, x.weight, None, x.teacher_hidden, x.teacher_weight, None, x.beta
        )[0].mean()
    )


def need_gpu(job):
    if not job["device"].startswith("cuda"):
        raise common.Skip("its kernels are for a GPU alone")


def liger(job):
    """Liger's fused Triton kernels."""
    need_gpu(job)
    x = Inputs(job)
    if x.loss == "nll":
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        loss = LigerFusedLinearCrossEntropyLoss()
        return x.calls(lambda: loss(x.weight, x.hidden, x.targets))
    from liger_kernel.transformers import LigerFusedLinearJSD

    loss = LigerFusedLinearJSD(jsd_beta=x.beta)
    return x.calls(lambda: loss(x.hidden, x.weight, x.teacher_hidden, x.teacher_weight, None))


def liger_chunked(job):
    """Liger's distillation loss in chunks of rows: plain torch, compiled, on any device."""
    import torch
    from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

    x = Inputs(job)
    loss = LigerFusedLinearJSDLoss(weight_hard_loss=0.0, weight_soft_loss=1.0, beta=x.beta)
    labels = torch.zeros(x.rows, dtype=torch.int64, device=job["device"])
    return x.calls(lambda: loss(x.hidden, x.weight, x.teacher_hidden, x.teacher_weight, labels))


def cut(job):
    """Cut cross entropy: a block's logits live in its registers, and blocks of gradients below bfloat16 are left out."""
    need_gpu(job)
    from cut_cross_entropy import linear_cross_entropy

    x = Inputs(job)
    return x.calls(lambda: linear_cross_entropy(x.hidden, x.weight, x.targets))


def quack(job):
    """QuACK's chunks of rows, or on Hopper the products with their exponentials fused."""
    need_gpu(job)
    from quack.linear_cross_entropy import chunked_linear_cross_entropy

    x = Inputs(job)
    return x.calls(lambda: chunked_linear_cross_entropy(x.hidden, x.weight, x.targets))


if __name__ == "__main__":
    common.main(
        {
            "eager": eager,
            "eager-chunked": eager_chunked,
            "compiled": compiled,
            "linear": torch_linear,
            "trl": trl,
            "liger": liger,
            "liger-chunked": liger_chunked,
            "cut": cut,
            "quack": quack,
        },
        {
            "trl": ["torch", "trl"],
            "liger": ["torch", "liger-kernel"],
            "liger-chunked": ["torch", "liger-kernel"],
            "cut": ["torch", "cut-cross-entropy"],
            "quack": ["torch", "quack-kernels"],
        },
    )
