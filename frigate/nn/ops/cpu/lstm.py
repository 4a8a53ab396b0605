"""The LSTM over T steps on a CPU: a block of nodes goes through all steps, so that its gates stay in cache.

All four gates of a step come from one product of [h, x, 1] with the weights and one sigmoid: tanh(a) =
2 sigmoid(2a) - 1, so the weights of the third gate are doubled. With i, f, s, o the four sigmoids:

    c' = f c + i (2s - 1)        h' = o tanh(c')

The state before each step is saved for backward, which recomputes the gates: cheaper than storing them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

BLOCK_ROWS = 2048  # with D = 64, two megabytes of gates


class BlockedLstm:
    """An `nn.LSTM` or `nn.LSTMCell` with one layer and biases; uses its weights at the time of construction."""

    def __init__(self, lstm: nn.LSTM | nn.LSTMCell) -> None:
        w_ih, w_hh, b_ih, b_hh = lstm.parameters()
        scale = w_ih.new_tensor([1.0, 1.0, 2.0, 1.0]).repeat_interleave(lstm.hidden_size)
        self.weights = torch.cat([w_hh.T, w_ih.T, (b_ih + b_hh)[None]]) * scale  # [D+X+1,4D]
        self.buffers: dict[int, _Buffers] = {}

    def __call__(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """(h_T, c_T), each [N*B,D], from x [N,B,T,X] with T at least 1 and the initial state [N*B,D]."""
        # Checked here: inside `forward`, grad mode is always off.
        recording = torch.is_grad_enabled()
        h, c = _Lstm.apply(self.weights, x, hidden, cell, recording, self)
        return h, c

    def blocks(self, x: Tensor) -> Iterator[tuple[slice, slice, _Buffers]]:
        """The nodes of x in blocks of nearly equal size: slices of nodes and of state rows, and buffers."""
        N, B = x.shape[:2]
        block = max(1, math.ceil(N / max(1, math.ceil(N * B / BLOCK_ROWS))))
        for first in range(0, N, block):
            last = min(N, first + block)
            rows = (last - first) * B
            if rows not in self.buffers:
                self.buffers[rows] = _Buffers(rows, self.weights.detach())
            yield slice(first, last), slice(first * B, last * B), self.buffers[rows]


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, x: Tensor, h0: Tensor, c0: Tensor, recording: bool, lstm: BlockedLstm
    ) -> tuple[Tensor, Tensor]:
        T = x.shape[2]
        save = recording and any(ctx.needs_input_grad)
        # The states before each step and after the last; if nothing is saved, each step overwrites the previous one.
        hs, cs = ([first, *_states(first, T, separate=save)] for first in (h0, c0))
        for nodes, rows, buffers in lstm.blocks(x):
            i, f, s, o = buffers.gates.chunk(4, dim=1)
            for step in range(T):
                buffers.compute_gates(hs[step][rows], x[nodes, :, step], weights)
                c = torch.mul(f, cs[step][rows], out=cs[step + 1][rows]).addcmul_(i, s, value=2).sub_(i)
                torch.mul(o, torch.tanh(c, out=buffers.tanh), out=hs[step + 1][rows])
        if save:
            ctx.save_for_backward(weights, x, *hs, *cs)
            ctx.lstm = lstm
        return hs[T], cs[T]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weights, x, *states = ctx.saved_tensors
        (_, B, T, X) = x.shape
        D = states[0].shape[1]
        hs = states[: T + 1]
        cs = states[T + 1 :]
        grad_x = torch.empty_like(x)
        grad_weights = torch.zeros_like(weights)
        grad_h0, grad_c0 = (grad.clone(memory_format=torch.contiguous_format) for grad in grads)
        back = weights[:-1].T.contiguous()
        for nodes, rows, buffers in ctx.lstm.blocks(x):
            grad_gates = buffers.grad_gates
            (i, f, s, o) = buffers.gates.chunk(4, dim=1)
            (grad_i, grad_f, grad_s, grad_o) = grad_gates.chunk(4, dim=1)
            grad_h = grad_h0[rows]
            grad_c = grad_c0[rows]
            for step in reversed(range(T)):
                buffers.compute_gates(hs[step][rows], x[nodes, :, step], weights)
                tanh = torch.tanh(cs[step + 1][rows], out=buffers.tanh)
                torch.mul(grad_h, tanh, out=grad_o)
                grad_c += torch.ops.aten.tanh_backward(grad_h.mul_(o), tanh, grad_input=tanh)
                torch.mul(grad_c, s, out=grad_i).mul_(2).sub_(grad_c)
                torch.mul(grad_c, cs[step][rows], out=grad_f)
                torch.mul(grad_c, i, out=grad_s).mul_(2)
                grad_c *= f
                torch.ops.aten.sigmoid_backward(grad_gates, buffers.gates, grad_input=grad_gates)
                grad_weights.addmm_(buffers.inputs.T, grad_gates)
                torch.mm(grad_gates, back, out=buffers.grad_inputs)
                grad_h.copy_(buffers.grad_inputs[:, :D])
                grad_x[nodes, :, step] = buffers.grad_inputs[:, D:].view(-1, B, X)
        return grad_weights, grad_x, grad_h0, grad_c0, None, None


def _states(first: Tensor, steps: int, *, separate: bool) -> list[Tensor]:
    """Buffers for the state after each step: separate ones, or one shared by all steps."""
    one = first.new_empty(first.shape)
    return [one] + [first.new_empty(first.shape) if separate else one for _ in range(steps - 1)]


class _Buffers:
    """Scratch memory for one block of rows; the next block overwrites it."""

    def __init__(self, rows: int, weights: Tensor) -> None:
        wide, four = weights.shape
        self.inputs = weights.new_ones(rows, wide)  # h, x and 1
        self.gates = weights.new_empty(rows, four)
        self.tanh = weights.new_empty(rows, four // 4)
        self.grad_gates = weights.new_empty(rows, four)
        self.grad_inputs = weights.new_empty(rows, wide - 1)

    def compute_gates(self, h: Tensor, x: Tensor, weights: Tensor) -> None:
        """Fill `gates` from h [rows,D] and x [nodes,B,X]."""
        D = h.shape[1]
        (nodes, B, X) = x.shape
        self.inputs[:, :D] = h
        self.inputs.view(nodes, B, D + X + 1)[:, :, D:-1] = x
        torch.mm(self.inputs, weights, out=self.gates).sigmoid_()
