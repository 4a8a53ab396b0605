"""CUDA graphs: a computation captured once, then replayed with one launch instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

WARM_UP = 2  # calls before capture: the first one compiles kernels and allocates buffers


class RecordedFunction:
    """A function of tensors, captured as a CUDA graph.

    A call copies in tensors of the same shapes, replays the graph, and returns the function's result, which the next
    call overwrites. The function must neither depend on host values that change nor synchronise with the device.

    Parameters
    ----------
    function : callable
        Takes as many tensors as there are examples, and returns one.
    examples : sequence of Tensor
        Inputs for the capture, on the device.
    device : torch.device
        Where the function runs.
    """

    def __init__(self, function: Callable[..., Tensor], examples: Sequence[Tensor], device: torch.device) -> None:
        self.inputs = [example.clone() for example in examples]
        with torch.cuda.device(device), torch.random.fork_rng([device]):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    function(*self.inputs)
            torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), torch.cuda.graph(self.graph):
            self.result = function(*self.inputs)

    def __call__(self, *tensors: Tensor) -> Tensor:
        for mine, given in zip(self.inputs, tensors, strict=True):
            mine.copy_(given, non_blocking=True)
        self.graph.replay()
        return self.result
