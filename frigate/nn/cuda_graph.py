"""A computation on a GPU, recorded once as a CUDA graph: from then on it costs one launch instead of hundreds.

Nothing in it may depend on a number on the host that changes, nor wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

WARM = 2  # what is made once, as a kernel is compiled, must not be recorded


class Replay:
    """A function of tensors, recorded with `examples`. A call copies tensors of the same shapes in, and returns what
    the function returned, written anew: read it before the next call."""

    def __init__(self, function: Callable[..., Tensor], examples: Sequence[Tensor]) -> None:
        device = examples[0].device
        self.inputs = [example.clone() for example in examples]
        with torch.cuda.device(device), torch.random.fork_rng([device]):
            aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(WARM):
                    function(*self.inputs)
            torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), torch.cuda.graph(self.graph):
            self.result = function(*self.inputs)

    def __call__(self, *tensors: Tensor) -> Tensor:
        for mine, given in zip(self.inputs, tensors, strict=True):
            mine.copy_(given, non_blocking=True)
        self.graph.replay()
        return self.result
