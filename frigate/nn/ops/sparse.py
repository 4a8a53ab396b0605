"""A fixed sparse matrix over the nodes, for diffusion and graph Laplacians."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

RowSums = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # features [N,C], weight, start, index -> [N,C]


@dataclass(frozen=True)
class SparseMatrix:
    """CSR: row v holds weight[k] at column index[k], for k in start[v] .. start[v+1]; and the transpose."""

    start: Tensor  # [N+1]
    index: Tensor  # [P]
    weight: Tensor  # [P] fp32
    start_t: Tensor
    index_t: Tensor
    weight_t: Tensor

    @classmethod
    def of(cls, rows: Tensor, columns: Tensor, weight: Tensor, *, num_nodes: int) -> SparseMatrix:
        """From coordinates in any order; duplicates add up in a product."""
        return cls(
            *_sorted(rows, columns, weight.float(), num_nodes), *_sorted(columns, rows, weight.float(), num_nodes)
        )


def _sorted(rows: Tensor, columns: Tensor, weight: Tensor, num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, order = torch.sort(rows, stable=True)
    start = torch.searchsorted(rows, torch.arange(num_nodes + 1, device=rows.device))
    return start, columns[order], weight[order]


def multiply(matrix: SparseMatrix, features: Tensor, row_sums: RowSums) -> Tensor:
    """[N,...]: the product with features [N,...] by a backend's `row_sums`; backward multiplies by the transpose."""
    flat = features.reshape(len(features), -1).contiguous()
    product: Tensor = _Product.apply(flat, matrix, row_sums)
    return product.view(features.shape)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, matrix: SparseMatrix, row_sums: RowSums) -> Tensor:
        ctx.matrix = matrix
        ctx.row_sums = row_sums
        if len(matrix.index) == 0 or features.numel() == 0:
            return torch.zeros_like(features)
        return row_sums(features, matrix.weight, matrix.start, matrix.index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        matrix: SparseMatrix = ctx.matrix
        grad = grads[0].contiguous()
        if len(matrix.index) == 0 or grad.numel() == 0:
            return torch.zeros_like(grad), None, None
        return ctx.row_sums(grad, matrix.weight_t, matrix.start_t, matrix.index_t), None, None
