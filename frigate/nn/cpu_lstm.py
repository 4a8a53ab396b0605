"""The LSTM over T steps on a CPU: some rows at a time through all steps, so that their gates stay in the cache.

All four gates of a step are one product of [h, x, 1] with the weights, and one sigmoid: tanh(a) = 2 sigmoid(2a) - 1, so
the weights of the third gate are doubled. With i, f, s, o the four sigmoids:

    c' = f c + i (2s - 1)        h' = o tanh(c')

Backward keeps the states before each step and computes the gates again, which costs less than to write them down.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

BLOCK_ROWS = 2048  # with D = 64, two megabytes of gates


class CpuLstm:
    """An `nn.LSTM` or `nn.LSTMCell` of one layer with biases, as its weights are now."""

    def __init__(self, net: nn.LSTM | nn.LSTMCell) -> None:
        w_ih, w_hh, b_ih, b_hh = net.parameters()
        times = w_ih.new_tensor([1.0, 1.0, 2.0, 1.0]).repeat_interleave(net.hidden_size)
        self.weights = torch.cat([w_hh.T, w_ih.T, (b_ih + b_hh)[None]]) * times  # [D+X+1,4D]
        self.rooms: dict[int, _Room] = {}

    def __call__(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """(h_T, c_T), each [N*B,D], of x [N,B,T,X], T at least 1, and the first state [N*B,D]."""
        # Asked here: in `forward` torch never wants gradients.
        h, c = _Lstm.apply(self.weights, x, hidden, cell, torch.is_grad_enabled(), self)  # type: ignore[no-untyped-call]
        return h, c

    def blocks(self, x: Tensor) -> Iterator[tuple[slice, slice, _Room]]:
        """The nodes of x in blocks alike in size: which, which rows of the state they are, and the room for them."""
        N, B = x.shape[:2]
        block = max(1, math.ceil(N / max(1, math.ceil(N * B / BLOCK_ROWS))))
        for first in range(0, N, block):
            last = min(N, first + block)
            rows = (last - first) * B
            if rows not in self.rooms:
                self.rooms[rows] = _Room(rows, self.weights.detach())
            yield slice(first, last), slice(first * B, last * B), self.rooms[rows]


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, x: Tensor, h0: Tensor, c0: Tensor, keeps: bool, lstm: CpuLstm
    ) -> tuple[Tensor, Tensor]:
        T, keeps = x.shape[2], keeps and any(ctx.needs_input_grad)
        # The state before each step and after the last; where nothing is kept, each is written over the last.
        hs, cs = ([first, *_places(first, T, apart=keeps)] for first in (h0, c0))
        for nodes, rows, room in lstm.blocks(x):
            i, f, s, o = room.gates.chunk(4, dim=1)
            for step in range(T):
                room.compute_gates(hs[step][rows], x[nodes, :, step], weights)
                c = torch.mul(f, cs[step][rows], out=cs[step + 1][rows]).addcmul_(i, s, value=2).sub_(i)
                torch.mul(o, torch.tanh(c, out=room.tanh), out=hs[step + 1][rows])
        if keeps:
            ctx.save_for_backward(weights, x, *hs, *cs)
            ctx.lstm = lstm
        return hs[T], cs[T]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weights, x, *states = ctx.saved_tensors
        (_, B, T, X), D = x.shape, states[0].shape[1]
        hs, cs = states[: T + 1], states[T + 1 :]
        of_x, of_weights = torch.empty_like(x), torch.zeros_like(weights)
        of_h, of_c = (grad.clone(memory_format=torch.contiguous_format) for grad in grads)
        back = weights[:-1].T.contiguous()
        for nodes, rows, room in ctx.lstm.blocks(x):
            (i, f, s, o), (up_i, up_f, up_s, up_o) = room.gates.chunk(4, dim=1), room.up.chunk(4, dim=1)
            grad_h, grad_c = of_h[rows], of_c[rows]
            for step in reversed(range(T)):
                room.compute_gates(hs[step][rows], x[nodes, :, step], weights)
                tanh = torch.tanh(cs[step + 1][rows], out=room.tanh)
                torch.mul(grad_h, tanh, out=up_o)
                grad_c += torch.ops.aten.tanh_backward(grad_h.mul_(o), tanh, grad_input=tanh)
                torch.mul(grad_c, s, out=up_i).mul_(2).sub_(grad_c)
                torch.mul(grad_c, cs[step][rows], out=up_f)
                torch.mul(grad_c, i, out=up_s).mul_(2)
                grad_c *= f
                torch.ops.aten.sigmoid_backward(room.up, room.gates, grad_input=room.up)
                of_weights.addmm_(room.inputs.T, room.up)
                torch.mm(room.up, back, out=room.of_inputs)
                grad_h.copy_(room.of_inputs[:, :D])
                of_x[nodes, :, step] = room.of_inputs[:, D:].view(-1, B, X)
        return of_weights, of_x, of_h, of_c, None, None


def _places(first: Tensor, steps: int, *, apart: bool) -> list[Tensor]:
    """For the state after each step."""
    one = first.new_empty(first.shape)
    return [one] + [first.new_empty(first.shape) if apart else one for _ in range(steps - 1)]


class _Room:
    """What lies between for one block of rows; the next block writes over it."""

    def __init__(self, rows: int, weights: Tensor) -> None:
        wide, four = weights.shape
        self.inputs = weights.new_ones(rows, wide)  # h, x and 1
        self.gates, self.tanh = weights.new_empty(rows, four), weights.new_empty(rows, four // 4)
        self.up, self.of_inputs = weights.new_empty(rows, four), weights.new_empty(rows, wide - 1)  # backward's

    def compute_gates(self, h: Tensor, x: Tensor, weights: Tensor) -> None:
        """From h [rows,D] and x [nodes,B,X]."""
        D, (nodes, B, X) = h.shape[1], x.shape
        self.inputs[:, :D] = h
        self.inputs.view(nodes, B, D + X + 1)[:, :, D:-1] = x
        torch.mm(self.inputs, weights, out=self.gates).sigmoid_()
