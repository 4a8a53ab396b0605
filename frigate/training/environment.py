"""The machine and package versions behind a result."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from frigate.version import __version__

PACKAGES = ("torch", "triton", "numpy", "scipy", "polars", "numba", "osmium", "torch_geometric")


def environment(device: torch.device | str | None = None) -> dict[str, Any]:
    """Describe this machine and its software versions, as JSON data.

    Parameters
    ----------
    device
        The device used. Default: cuda if available.

    Returns
    -------
    dict
        `hardware` is the name of the device; `device`, `gpu`, `driver`, `cpu`, `cores`, `threads`, `memory_gb` and
        `system` give details; `versions` lists Frigate, Python, CUDA and installed packages.
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "hardware": gpu or _cpu_model(),
        "device": device.type,
        "gpu": gpu,
        "driver": None if gpu is None else _driver(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": _memory_gb(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": dict(versions()),
    }


@cache
def versions() -> dict[str, str]:
    """The versions of Frigate, Python, CUDA and installed packages, by name."""
    found = {"frigate": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    found["torch"] = torch.__version__  # includes the CUDA build, e.g. 2.11.0+cu128
    return found | ({"cuda": torch.version.cuda} if torch.version.cuda is not None else {})


@cache
def _cpu_model() -> str:
    """The CPU's model name, or its architecture if the name is unknown."""
    named = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    if not named and platform.system() == "Darwin":
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        named = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.splitlines()
    return next(filter(None, named), "") or platform.processor() or platform.machine()


@cache
def _driver() -> str | None:
    """The NVIDIA driver version, such as 570.86.15."""
    words = " ".join(_lines("/proc/driver/nvidia/version")[:1]).partition("Kernel Module")[2].split()
    return next((word for word in words if word[0].isdigit()), None)


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError, AttributeError):  # not available on this system
        return None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
