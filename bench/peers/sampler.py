"""Peers of `PrioritizedSampler`: a sum tree over 2^20 priorities, set and sampled many at once.

Operations: "set" (batch k of the indices and priorities), "sample" (batch draws), "cycle" (a set, then a sample).
"""

import common

BATCHES = 64


class Inputs:
    """The arrays of lib/bench/suites/sampler.ts."""

    def __init__(self, job):
        given = job["parameters"]
        self.capacity, self.batch = given["capacity"], given["batch"]
        self.alpha, self.beta = given["alpha"], given["beta"]
        self.operation = given["operation"]
        self.initial = positive(1, self.capacity)
        indices = (common.random_bits(2, BATCHES * self.batch) % self.capacity).astype("int64")
        indices[7::8] = indices[6::8]  # every eighth is a duplicate
        self.indices = indices.reshape(BATCHES, self.batch)
        self.priorities = positive(3, BATCHES * self.batch).reshape(BATCHES, self.batch)

    def calls(self, set_batch, sample):
        """The call of the operation, of `set_batch(k)` and `sample()`."""
        if self.operation == "set":
            return lambda number: set_batch(number % BATCHES)
        if self.operation == "sample":
            return lambda number: sample()

        def cycle(number):
            set_batch(number % BATCHES)
            sample()

        return cycle


def positive(seed, count):
    """[count] f32 in (0, 1]."""
    return 1 - common.uniform(seed, count)


def torchrl_tree(kind):
    def prepare(job):
        on_cpu(job)
        common.threads(job)
        import torch
        from torchrl import _torchrl

        x = Inputs(job)
        dtype = torch.float32 if kind == "Fp32" else torch.float64
        tree = getattr(_torchrl, f"SumSegmentTree{kind}")(x.capacity)
        indices = torch.from_numpy(x.indices)
        values = torch.from_numpy(x.priorities).to(dtype) ** x.alpha
        tree[torch.arange(x.capacity)] = torch.from_numpy(x.initial).to(dtype) ** x.alpha

        def set_batch(k):
            tree[indices[k]] = values[k]

        def sample():
            mass = torch.rand(x.batch, dtype=dtype) * tree.query(0, x.capacity)
            return tree[tree.scan_lower_bound(mass)]

        return common.Subject(x.calls(set_batch, sample), lambda: tree.query(0, x.capacity))

    return prepare


def torchrl_sampler(job):
    on_cpu(job)
    common.threads(job)
    import torch
    from torchrl.data import LazyTensorStorage
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler

    x = Inputs(job)
    storage = LazyTensorStorage(x.capacity)
    storage.set(range(x.capacity), torch.zeros(x.capacity, dtype=torch.uint8))
    sampler = PrioritizedSampler(x.capacity, x.alpha, x.beta)
    sampler.update_priority(torch.arange(x.capacity), torch.from_numpy(x.initial))
    indices, priorities = torch.from_numpy(x.indices), torch.from_numpy(x.priorities)
    return common.Subject(
        x.calls(
            lambda k: sampler.update_priority(indices[k], priorities[k]),
            lambda: sampler.sample(storage, x.batch),
        )
    )


def torch_cumsum(job):
    """No tree: the sums are computed at every sample."""
    common.threads(job)
    import torch

    x = Inputs(job)

    def on_device(array):
        return torch.from_numpy(array).to(job["device"])

    leaves = on_device(x.initial).double() ** x.alpha
    indices, values = on_device(x.indices), on_device(x.priorities).double() ** x.alpha

    def set_batch(k):
        leaves[indices[k]] = values[k]
        common.finish(job)

    def sample():
        sums = leaves.cumsum(0)
        mass = torch.rand(x.batch, dtype=torch.float64, device=job["device"]) * sums[-1]
        index = torch.searchsorted(sums, mass, right=True)
        probabilities = leaves[index] / sums[-1]
        common.finish(job)
        return index, probabilities

    return common.Subject(x.calls(set_batch, sample), leaves.sum)


def cpprb(job):
    on_cpu(job)
    import numpy as np
    from cpprb import PrioritizedReplayBuffer

    x = Inputs(job)
    buffer = PrioritizedReplayBuffer(x.capacity, {"x": {"dtype": np.uint8}}, alpha=x.alpha)
    buffer.add(x=np.zeros((x.capacity, 1), np.uint8), priorities=x.initial)
    return common.Subject(
        x.calls(
            lambda k: buffer.update_priorities(x.indices[k], x.priorities[k]),
            lambda: buffer.sample(x.batch, x.beta),
        )
    )


def sumtree(job):
    on_cpu(job)
    from sumtree import SumTree

    x = Inputs(job)
    tree = SumTree(x.capacity)
    for value in (x.initial.astype("float64") ** x.alpha).tolist():
        tree.add(value)
    indices = x.indices.tolist()
    values = (x.priorities.astype("float64") ** x.alpha).tolist()
    return common.Subject(
        x.calls(lambda k: tree.update_batched(indices[k], values[k]), lambda: tree.sample(x.batch)),
        lambda: tree.total,
    )


def on_cpu(job):
    if job["device"] != "cpu":
        raise common.Skip("runs on the CPU only")


if __name__ == "__main__":
    torchrl = ["torch", "torchrl", "tensordict"]
    common.main(
        {
            "torchrl-tree-fp32": torchrl_tree("Fp32"),
            "torchrl-tree-fp64": torchrl_tree("Fp64"),
            "torchrl-sampler": torchrl_sampler,
            "cumsum": torch_cumsum,
            "cpprb": cpprb,
            "sumtree": sumtree,
        },
        {
            "torchrl-tree-fp32": torchrl,
            "torchrl-tree-fp64": torchrl,
            "torchrl-sampler": torchrl,
            "cpprb": ["cpprb", "numpy"],
            "sumtree": ["sumtree"],
        },
    )
