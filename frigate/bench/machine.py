"""Where it was measured."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch


def surroundings(device: torch.device) -> dict[str, Any]:
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    for package in ("triton", "torch_geometric"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    if device.type == "cuda":
        versions["cuda"] = str(torch.version.cuda)
    return {
        "device": device.type,
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
