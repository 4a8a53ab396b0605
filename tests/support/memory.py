"""How large a tensor a model may make."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class NoSquare(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails where an operation, forward or backward, makes a dense tensor of N x N elements or bytes."""

    def __init__(self, num_nodes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.limit = num_nodes * num_nodes
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                self.largest = max(self.largest, tensor.untyped_storage().nbytes())
                assert self.largest < self.limit, f"{func} makes {tuple(tensor.shape)}"
        return result
