"""The device a model runs on, its precision, and the memory limit for activations."""

from __future__ import annotations

import torch

from frigate.errors import SettingsError

CPU_MEMORY_GB = 4
GPU_SHARE = 0.7  # of the free memory; the rest is for weights, inputs and fragmentation


def best_device(name: str | torch.device | None) -> torch.device:
    """The named device; None: cuda if available, else cpu."""
    if isinstance(name, torch.device):
        return name
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    remedy = "Use cpu, or cuda on a machine with a GPU"
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise SettingsError(f'device "{name}" is not known. {remedy}')
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # Triton launches kernels on the current device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise SettingsError(f'device "{name}" cannot be used: {reason}. {remedy}') from None
    return device


def memory_limit(memory_gb: float | None, device: torch.device) -> int:
    """The memory limit for activations in bytes; None: most of the free memory on a GPU, 4 GiB on a CPU."""
    if memory_gb is not None:
        return int(memory_gb * 2**30)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        # A process limited to a fraction of the GPU must stay within it, however much is free.
        return int(GPU_SHARE * min(free, torch.cuda.get_per_process_memory_fraction(device.index) * total))
    return CPU_MEMORY_GB * 2**30


def autocast(device: torch.device) -> torch.autocast:
    """bf16 on a GPU, fp32 on a CPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
