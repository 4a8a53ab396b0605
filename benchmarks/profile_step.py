"""Which kernels a training step spends its time in, by torch's profiler.

    python benchmarks/profile_step.py [FILE] [--size chengdu] [--preset paper] [--device cuda]

Milliseconds of a step on the device, by kernel, on the networks of `frigate bench`. On a CPU, by torch's operations.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from frigate.bench.synthetic import parse_size, synthetic_run, windows_for
from frigate.config import change, preset
from frigate.nn.device import best_device
from frigate.training.environment import environment
from frigate.training.hidden_sensors import training_windows
from frigate.training.trainer import Trainer

WARM, STEPS, SHOWN = 4, 4, 40


def measure(size: str, name: str, device: torch.device) -> dict[str, Any]:
    sized = parse_size(size)
    windows = windows_for(sized, device)
    run = synthetic_run(change(preset(name), {"train": {"batch_size": windows}}), sized)
    trainer = Trainer(run, training_windows(run, device))
    rng = np.random.default_rng(0)

    def step(number: int) -> None:
        trainer._step(rng.permutation(trainer.train_at)[:windows], rng, number)

    for number in range(WARM):
        step(number)
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiled:
        for number in range(STEPS):
            step(WARM + number)
        if on_gpu:
            torch.cuda.synchronize()
    took: dict[str, list[float]] = {}
    for event in profiled.events():
        if (event.device_type.name == "CUDA") == on_gpu:
            ms = (event.device_time if on_gpu else event.self_cpu_time_total) / 1e3
            took.setdefault(event.name, []).append(ms)
    rows: list[dict[str, Any]] = [
        {"kernel": name, "ms": sum(ms) / STEPS, "times": len(ms) / STEPS} for name, ms in took.items()
    ]
    rows.sort(key=lambda row: -row["ms"])
    return {
        "command": f"python benchmarks/profile_step.py --size {size} --preset {name} --device {device.type}",
        **environment(device),
        "windows": windows,
        "kernels_ms": round(sum(row["ms"] for row in rows), 3),
        "kernels": len(rows),
        "launches": sum(row["times"] for row in rows),
        "rows": [{**row, "kernel": row["kernel"][:120], "ms": round(row["ms"], 3)} for row in rows[:SHOWN]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--size", default="chengdu")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--device")
    said = parser.parse_args()
    told = json.dumps(measure(said.size, said.preset, best_device(said.device)), indent=1) + "\n"
    if said.file is None:
        sys.stdout.write(told)
    else:
        said.file.write_text(told, encoding="utf-8")


if __name__ == "__main__":
    main()
