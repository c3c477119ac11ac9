"""Shared by the peers: the job of a trial, inputs by the rule of lib/bench/inputs.ts, the clock, peak memory.

A peer's script is started as `python <script> <job>`, the job being JSON, and writes its outcome as JSON to file
descriptor 3. One process is one trial of one implementation.
"""

import ctypes
import functools
import gc
import importlib.metadata
import json
import os
import subprocess
import sys
import time

import numpy as np


# NLAC_INSTRUCTION_SET limits nlac's kernels (native/core/instruction_set.h); these settings limit torch and its
# libraries in the same way. They are read at the first use.
LIMITS = {
    "baseline": ("default", "SSE41", "SSE4_2"),
    "avx2": ("avx2", "AVX2", "AVX2"),
    "avx512": ("avx512", "AVX512_CORE", "AVX512"),
    "avx512_bf16": ("avx512", "AVX512_CORE_BF16", "AVX512"),
    "amx_bf16": ("avx512", "AVX512_CORE_AMX", "AVX512"),
}
if os.environ.get("NLAC_INSTRUCTION_SET"):
    names = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
    os.environ.update(zip(names, LIMITS[os.environ["NLAC_INSTRUCTION_SET"]]))


class Skip(Exception):
    """Raised if this implementation cannot run here; the table shows the reason."""


def main(implementations, packages):
    """Runs the implementation that the job names. The result records the versions of `packages[name]`."""
    job = json.loads(sys.argv[1])
    name = job["implementation"]
    try:
        outcome = measure(job, implementations[name])
        outcome["versions"] = {package: importlib.metadata.version(package) for package in packages.get(name, ["torch"])}
    except Skip as reason:
        outcome = {"skipped": str(reason)}
    except ModuleNotFoundError as error:
        listed = "cuda" if job["device"].startswith("cuda") else "bench"
        outcome = {"skipped": f"{error.name} is not installed (scripts/peers.sh {listed})"}
    with open(3, "w") as file:
        json.dump(outcome, file)


def measure(job, prepare):
    """`prepare(job)` makes the inputs and returns a Subject."""
    subject = prepare(job)
    memory = PeakMemory(job["device"])
    checked = None
    for number in range(job["warmup"]):
        subject.before()
        subject.call(number)
        if number == 0 and subject.check is not None:
            checked = float(subject.check())
    samples, number, timed = [], job["warmup"], 0
    while len(samples) < job["calls"] or timed < job["seconds"] * 1e9:
        subject.before()
        begin = time.perf_counter_ns()
        subject.call(number)
        took = time.perf_counter_ns() - begin
        samples.append(took / 1e6)
        timed += took
        number += 1
    return {"samples": samples, "check": checked, "bytes": memory.extra()}


class Subject:
    """The measured calls: `call` takes the call's number; `check` gives a figure of the first call's result, by which
    rows are compared; `before` prepares every call and is not timed."""

    def __init__(self, call, check=None, before=lambda: None):
        self.call, self.check, self.before = call, check, before


# --- memory --------------------------------------------------------------------------------------------------


class PeakMemory:
    """Peak memory in bytes in addition to the current memory; None if unknown."""

    def __init__(self, device):
        self.device = device
        gc.collect()
        if device.startswith("cuda"):
            import torch

            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            self.before = used_on_device(device)
            return
        ctypes.CDLL(None).malloc_trim(0)
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # resets the peak
            self.before = status()
        except OSError:
            self.before = None

    def extra(self):
        if self.before is None:
            return None
        if self.device.startswith("cuda"):
            after = used_on_device(self.device)
            return None if after is None else max(0, after - self.before)
        after = status()
        # Pages of files are code that ran for the first time.
        code = max(0, after["RssFile"] - self.before["RssFile"])
        return max(0, after["VmHWM"] - self.before["VmRSS"] - code)


def status():
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return {name: int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM", "RssFile")}


def used_on_device(device):
    """As in lib/bench/memory.ts: memory in use according to the driver, for every implementation."""
    number = device.partition(":")[2] or "0"
    query = ["nvidia-smi", f"--id={number}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(query, capture_output=True, check=True, text=True).stdout) * 2**20
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None


# --- inputs --------------------------------------------------------------------------------------------------

BLOCK = 2**20 + 7  # a prime: rows of a matrix that repeats it do not repeat


def random_bits(seed, count):
    """[count] u32: number i is hash(hash(seed) + i)."""
    start = mixed(np.array([seed], np.uint32))
    return mixed(start + np.arange(count, dtype=np.uint32))


def mixed(x):
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def uniform(seed, count):
    """[count] f32 in [0, 1)."""
    return ((random_bits(seed, count) >> np.uint32(8)) * np.float64(2.0**-24)).astype(np.float32)


def spread(seed, count, scale):
    """[count] f32 in [-scale, scale), one block of random numbers, repeated."""
    numbers = (block(seed)[:count].astype(np.float64) * 2 - 1) * scale
    return np.resize(numbers.astype(np.float32), count)


@functools.cache
def block(seed):
    return uniform(seed, BLOCK)


# --- torch ---------------------------------------------------------------------------------------------------


def tensor(job, seed, shape, scale, dtype):
    """A matrix of `spread` on the job's device."""
    import torch

    values = torch.from_numpy(spread(seed, int(np.prod(shape)), scale))
    return values.to(device=job["device"], dtype=getattr(torch, dtype)).view(*shape)


def threads(job):
    """Sets the job's number of threads, as in the environment. Call before any operation."""
    import torch

    torch.set_num_threads(job["threads"])


def finish(job):
    """Waits for the device, so that calls are timed to their end."""
    if job["device"].startswith("cuda"):
        import torch

        torch.cuda.synchronize()
