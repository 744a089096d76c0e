"""Times, memory and kernels of a step."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import time
from dataclasses import asdict, dataclass

import torch

GIB = 1 << 30
NEGLIGIBLE_MS = 0.02  # of a kernel in a whole step: left out of the record


@dataclass
class Kernel:
    name: str
    calls: int
    ms: float


@dataclass
class Result:
    """What was measured of one system; times in ms, memory in GiB."""

    system: str
    loss: float
    first_step_s: float
    step_ms: float  # median
    steps_ms: list[float]
    tokens_per_second: float
    model_tflops: float
    allocated_gib: float  # peaks of the measured steps
    reserved_gib: float
    kernels: list[Kernel]
    idle_ms: float  # of the profiled step
    versions: dict
    distinct_gradients: int | None = None  # of the repeats that were asked for

    def as_json(self) -> dict:
        return asdict(self)


def step(system, hold_gradients: bool = False) -> torch.Tensor:
    """Forward, backward and the update, if the system makes one; from empty gradients unless they are held."""
    if not hold_gradients:
        for parameter in system.parameters.values():
            parameter.grad = None
    loss = system.loss()
    loss.backward()
    system.update()
    return loss.detach()


def gradient_hash(system) -> int:
    """Of the bits of all gradients, and where they stand."""
    total = 0
    for parameter in system.parameters.values():
        bits = parameter.grad.contiguous().view(torch.int16).flatten()
        for part in bits.split(1 << 26):
            places = torch.arange(1, len(part) + 1, device=part.device, dtype=torch.int32)
            total = (total * 31 + int((part * places).sum(dtype=torch.int64))) % (1 << 61)
    return total


def distinct_gradients(system, repeats: int) -> int:
    hashes = set()
    for _ in range(repeats):
        step(system)
        hashes.add(gradient_hash(system))
    return len(hashes)


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed_steps(system, count: int, hold_gradients: bool = False) -> list[float]:
    """Milliseconds of each of `count` steps that follow each other without a wait."""
    if not torch.cuda.is_available():
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            step(system, hold_gradients)
            times.append((time.perf_counter() - begin) * 1e3)
        return times
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step(system, hold_gradients)
        mark.record()
    synchronize()
    return [begin.elapsed_time(end) for begin, end in itertools.pairwise(marks)]


def profiled(system) -> tuple[list[Kernel], float]:
    """The kernels of one step, most time first, and the milliseconds between its first and last in which none ran."""
    if not torch.cuda.is_available():
        return [], 0.0
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step(system)
        synchronize()
    events = [event for event in profile.key_averages() if event.device_time_total > 0]
    kernels = [
        Kernel(event.key[:160], event.count, round(event.device_time_total / 1e3, 4)) for event in events
    ]
    kernels = [kernel for kernel in kernels if kernel.ms >= NEGLIGIBLE_MS]
    return sorted(kernels, key=lambda kernel: -kernel.ms), idle_ms(profile.events())


def idle_ms(events) -> float:
    ranges = sorted((event.time_range.start, event.time_range.end) for event in events)
    idle, busy_until = 0.0, ranges[0][0]
    for begin, end in ranges:
        idle += max(0.0, begin - busy_until)
        busy_until = max(busy_until, end)
    return idle / 1e3


@dataclass
class Plan:
    """How to measure: steps before the measured ones, for no longer than `warm_limit` seconds, and measured ones."""

    warmup: int
    warm_limit: float
    steps: int
    hold_gradients: bool = False
    repeats: int = 0  # of forward and backward, to count distinct gradients


def measure(system, plan: Plan, tokens: int, flops_per_token: float) -> Result:
    begin = time.perf_counter()
    loss = step(system).item()
    first = time.perf_counter() - begin
    for _ in range(plan.warmup):
        if time.perf_counter() - begin > plan.warm_limit:
            break
        timed_steps(system, 1, plan.hold_gradients)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    times = timed_steps(system, plan.steps, plan.hold_gradients)
    peaks = [0.0, 0.0]
    if torch.cuda.is_available():
        peaks = [torch.cuda.max_memory_allocated() / GIB, torch.cuda.max_memory_reserved() / GIB]
    kernels, idle = profiled(system)
    median = statistics.median(times)
    rate = tokens / median * 1e3
    return Result(
        system=system.name,
        loss=loss,
        first_step_s=first,
        step_ms=median,
        steps_ms=times,
        tokens_per_second=rate,
        model_tflops=rate * flops_per_token / 1e12,
        allocated_gib=peaks[0],
        reserved_gib=peaks[1],
        kernels=kernels,
        idle_ms=idle,
        distinct_gradients=distinct_gradients(system, plan.repeats) if plan.repeats else None,
        versions=system.versions(),
    )


def device_state() -> dict:
    """Name, driver, clocks, power and temperature of the GPU, as nvidia-smi gives them."""
    if not torch.cuda.is_available():
        return {"name": "CPU"}
    fields = "name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "--id=0"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return dict(zip(fields.split(","), found.stdout.strip().split(", "), strict=False))
