"""How large a tensor a model makes, and how much of it backward keeps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from frigate.nn.batch import Batch


class NoSquare(TorchDispatchMode):
    """Fails where an operation, forward or backward, makes a dense tensor of N x N elements or bytes."""

    def __init__(self, num_nodes: int) -> None:
        super().__init__()
        self.limit = num_nodes * num_nodes
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                self.largest = max(self.largest, tensor.untyped_storage().nbytes())
                assert self.largest < self.limit, f"{func} makes {tuple(tensor.shape)}"
        return result


def kept_by_backward(model: nn.Module, batch: Batch) -> int:
    """How many numbers autograd keeps of a forward pass, the weights left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}  # by address; the tensor too, so that no other gets its address

    def note(tensor: Tensor) -> Tensor:
        at = tensor.untyped_storage().data_ptr()
        if tensor.is_floating_point() and at not in weights:
            kept[at] = tensor
        return tensor

    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(batch)
    return sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in kept.values())
