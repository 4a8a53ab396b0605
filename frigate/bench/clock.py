"""Measures time, memory and hardware limits, on a CPU or a GPU."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from frigate.bench.roofline import Ceilings

CUDA_PEAK = "torch.cuda.max_memory_allocated: all tensors on the GPU, including weights and readings"
RSS_PEAK = "peak resident memory of the process, minus what it used before"


@dataclass(frozen=True)
class Repeats:
    """How often each thing is measured, after `warm` calls to warm up; medians are reported."""

    warm: int
    step: int
    forecast: int
    live_update: int


ON_GPU = Repeats(warm=10, step=50, forecast=50, live_update=50)
ON_CPU = Repeats(warm=2, step=3, forecast=9, live_update=15)


def median_ms(
    calls: Mapping[str, Callable[[], object]], device: torch.device, *, warm: int, repeats: int
) -> dict[str, float]:
    """Median time of each call: with CUDA events on a GPU; on a CPU the calls alternate, because its load may vary."""
    if device.type == "cuda":
        return {name: _events_ms(call, warm=warm, repeats=repeats) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(warm + repeats):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if repeat >= warm:
                seconds[name].append(time.perf_counter() - began)
    return {name: round(1e3 * statistics.median(times), 4) for name, times in seconds.items()}


def host_ms(call: Callable[[], object], *, warm: int, repeats: int) -> float:
    """Median time on the host's clock, for a call whose result is on the host."""
    return median_ms({"": call}, torch.device("cpu"), warm=warm, repeats=repeats)[""]


def _events_ms(call: Callable[[], object], *, warm: int, repeats: int) -> float:
    for _ in range(warm):
        call()
    event = partial(torch.cuda.Event, enable_timing=True)
    pairs = [(event(), event()) for _ in range(repeats)]
    for start, stop in pairs:
        start.record()
        call()
        stop.record()
    torch.cuda.synchronize()
    return round(statistics.median([float(start.elapsed_time(stop)) for start, stop in pairs]), 4)


def peak_bytes(call: Callable[[], object], device: torch.device) -> int | None:
    """CUDA_PEAK or RSS_PEAK during one call; None if the system does not report it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device))
    try:
        ctypes.CDLL(None).malloc_trim(0)  # freed memory that malloc still holds would hide what the call uses
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # reset the peak
        before = _proc_bytes("self/status", "VmRSS")
        call()
        return max(0, _proc_bytes("self/status", "VmHWM") - before)
    except (OSError, AttributeError, StopIteration):  # not Linux, not glibc, or no permission
        return None


def _proc_bytes(file: str, name: str) -> int:
    lines = Path("/proc", file).read_text(encoding="ascii", errors="replace").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def free_bytes(device: torch.device) -> int | None:
    """Free memory of the GPU, or of the machine; None if the system does not report it."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return _proc_bytes("meminfo", "MemAvailable")
    except (OSError, StopIteration):
        return None


def ceilings(
    device: torch.device, *, copied_bytes: int = 2**31, side: int = 8192, repeats: int = 50, warm: int = 10
) -> Ceilings:
    """The speed of a plain copy and a plain matrix product; the product in bf16 on a GPU, in fp32 on a CPU."""
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    a, b = (torch.randn(side, side, device=device).to(kind) for _ in range(2))
    source = torch.zeros(copied_bytes, dtype=torch.uint8, device=device)
    product = torch.empty_like(a)
    target = torch.empty_like(source)
    calls = {"copy": lambda: target.copy_(source), "product": lambda: torch.mm(a, b, out=product)}
    times = median_ms(calls, device, warm=warm, repeats=repeats)
    return Ceilings(2e3 * copied_bytes / times["copy"], 2e3 * side**3 / times["product"])
