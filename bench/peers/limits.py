"""Limits of the machine, measured like a peer; other rows are reported as a fraction of them."""

import concurrent.futures
import ctypes
import time

import common

BUFFER = 2**30  # bytes; larger copies go over it again


def products(job):
    """Only the matrix products of a token loss, over all rows, with reused memory for results."""
    import torch

    common.threads(job)
    given = job["parameters"]
    dtype, rows, width, vocabulary = given["dtype"], given["rows"], given["width"], given["vocabulary"]
    hidden = common.tensor(job, 1, (rows, width), 1.0, dtype)
    weight = common.tensor(job, 2, (vocabulary, width), given["weightScale"], dtype)
    gradient = common.tensor(job, 3, (rows, vocabulary), 1.0, dtype)
    pairs = [(hidden, weight.T)] * (1 if given["loss"] == "nll" else 2)
    pairs += [(gradient, weight), (gradient.T, hidden)]
    wide = given["wideProducts"] and job["device"].startswith("cuda")
    out_type = torch.float32 if wide else hidden.dtype
    results = [torch.zeros(a.shape[0], b.shape[1], dtype=out_type, device=job["device"]) for a, b in pairs]

    def call(_):
        for (a, b), result in zip(pairs, results):
            if wide:
                torch.mm(a, b, out_dtype=torch.float32, out=result)
            else:
                torch.mm(a, b, out=result)
        common.finish(job)

    return common.Subject(call)


def copy(job):
    """Copies until the job's bytes are moved, counting reads and writes."""
    import torch

    common.threads(job)
    moved = job["parameters"]["bytes"] // 2
    size = min(moved, BUFFER)
    source = torch.ones(size, dtype=torch.uint8, device=job["device"])
    target = torch.zeros(size, dtype=torch.uint8, device=job["device"])

    def by_torch():
        left = moved
        while left > 0:
            target[:left].copy_(source[:left])
            left -= size
        common.finish(job)

    if job["device"] != "cpu":
        return common.Subject(lambda _: by_torch())

    # memcpy bypasses the caches, torch's copy does not: which is faster depends on the machine.
    pool = concurrent.futures.ThreadPoolExecutor(job["threads"])
    part = -(-size // job["threads"])
    pieces = [(start, min(part, size - start)) for start in range(0, size, part)]

    def by_memcpy():
        left = moved
        while left > 0:
            ends = [(start, max(0, min(count, left - start))) for start, count in pieces]
            move = lambda piece: ctypes.memmove(target.data_ptr() + piece[0], source.data_ptr() + piece[0], piece[1])
            list(pool.map(move, ends))
            left -= size

    faster = min((by_torch, by_memcpy), key=best)
    return common.Subject(lambda _: faster())


def best(call):
    """The minimum of three timings, seconds."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


if __name__ == "__main__":
    common.main({"products": products, "copy": copy}, {})
