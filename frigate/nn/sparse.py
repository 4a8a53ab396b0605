"""A sparse matrix of fixed weights on the nodes, times features [N,C]: what diffusion and Laplacians are made of.

The gated sum (`aggregate`) learns its weights and goes both ways at once; here the weights come from the map alone, so
only the features have a gradient, and it is the product with the transpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from frigate.nn.choice import on_gpu


@dataclass(frozen=True)
class Sparse:
    """Row v holds weight[k] at column index[k], for k in start[v] .. start[v+1]; and the same transposed."""

    start: Tensor  # [N+1]
    index: Tensor  # [P]
    weight: Tensor  # [P] fp32
    start_t: Tensor
    index_t: Tensor
    weight_t: Tensor

    @classmethod
    def of(cls, rows: Tensor, columns: Tensor, weight: Tensor, *, num_nodes: int) -> Sparse:
        """From coordinates in any order; equal ones add up in a product."""
        return cls(
            *_sorted(rows, columns, weight.float(), num_nodes), *_sorted(columns, rows, weight.float(), num_nodes)
        )

    def __matmul__(self, features: Tensor) -> Tensor:
        """[N,...] from features [N,...]."""
        flat = features.reshape(len(features), -1).contiguous()
        product: Tensor = _Product.apply(flat, self)  # type: ignore[no-untyped-call]
        return product.view(features.shape)


def _sorted(rows: Tensor, columns: Tensor, weight: Tensor, num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, order = torch.sort(rows, stable=True)
    start = torch.searchsorted(rows, torch.arange(num_nodes + 1, device=rows.device))
    return start, columns[order], weight[order]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, matrix: Sparse) -> Tensor:
        ctx.matrix = matrix
        return _row_sums(features, matrix.start, matrix.index, matrix.weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        matrix: Sparse = ctx.matrix
        return _row_sums(grads[0].contiguous(), matrix.start_t, matrix.index_t, matrix.weight_t), None


def _row_sums(features: Tensor, start: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    if len(index) == 0 or features.numel() == 0:
        return torch.zeros_like(features)
    if on_gpu(features.device):
        from frigate.nn import kernels

        return kernels.row_sums(features, weight, start, index)
    if features.is_cuda:
        rows = torch.repeat_interleave(torch.arange(len(features), device=features.device), start.diff())
        return torch.zeros_like(features).index_add(0, rows, weight.to(features.dtype)[:, None] * features[index])
    return functional.embedding_bag(
        index, features, start[:-1], mode="sum", per_sample_weights=weight.to(features.dtype)
    )
