"""The bytes and operations of a training step and a forecast, counted from the sizes alone, and the least time that a
machine needs for them (its roofline).

The fused implementation is counted: a layer reads its input once and writes its output once. In backward, a layer reads
the gradient, its output and its input, writes the gradient before the relu, reads that again for the neighbours' sums,
and writes the gradient of its input. The LSTMs keep the state before each step and recompute their gates; the gates'
gradients are written, and read once more for the sums over the rows that are the weights' gradients. Weights, roads
and gates are small and stay in the caches: they are not counted. Norm, dropout and residual of the preset `default` can
be fused and are not counted either.

N nodes, E roads, B windows, T past and H future steps, D width; R = N B sequences.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from frigate.config import ModelSettings, Task
from frigate.data.stream import CALENDAR
from frigate.nn.scaling import NEAR_SENSORS

FP32 = 4
READING = FP32 + 1  # bytes of a value and of whether there is one
HEADS = 4  # of the kernel mean
ADAM = 7  # weight, gradient and two moments read; weight and moments written


@dataclass(frozen=True)
class WorkItem:
    """Bytes read and written, and floating-point operations (a multiplication and an addition are two)."""

    name: str
    bytes: int
    flops: int


@dataclass(frozen=True)
class Ceilings:
    """What the machine reached in the same run: a copy (bytes read and written), and a matrix product."""

    copy_bytes_per_s: float
    matmul_flop_per_s: float

    def to_json(self) -> dict[str, float]:
        return {
            "copy_tb_per_s": round(self.copy_bytes_per_s / 1e12, 3),
            "matmul_tflop_per_s": round(self.matmul_flop_per_s / 1e12, 1),
        }


@dataclass(frozen=True)
class Sizes:
    """What the counts depend on."""

    model: ModelSettings
    task: Task
    nodes: int
    edges: int
    windows: int
    features: int  # a node's road features as the model reads them
    parameters: int
    number: int = 2  # bytes of an activation: 2 in bf16, 4 in fp32

    @property
    def rows(self) -> int:
        """R"""
        return self.nodes * self.windows

    @property
    def wide(self) -> int:
        """Bytes of a layer's encodings, [N,B,T,D]."""
        return self.rows * self.task.past * self.model.width * self.number

    @property
    def state(self) -> int:
        """Bytes of hidden or cell state, [R,D]."""
        return self.rows * self.model.width * self.number


def forecast_work(sizes: Sizes) -> tuple[WorkItem, ...]:
    """A forward pass without gradients; gates and positions are ready."""
    return (_embedding(sizes), _layers(sizes), _encoder(sizes, kept=False), _decoder(sizes, kept=False))


def step_work(sizes: Sizes, *, targets: int) -> tuple[WorkItem, ...]:
    """Forward, backward and optimiser. Only `targets` of the nodes have targets; the others need neither LSTM."""
    decoded = replace(sizes, nodes=targets)
    return (
        _embedding(sizes),
        _layers(sizes),
        _encoder(decoded, kept=True),
        _decoder(decoded, kept=True),
        _decoder_back(decoded),
        _encoder_back(decoded),
        _layers_back(sizes),
        _embedding_back(sizes),
        WorkItem("optimiser", ADAM * FP32 * sizes.parameters, 12 * sizes.parameters),
    )


def floor_ms(parts: Iterable[WorkItem], ceilings: Ceilings) -> float:
    """The parts one after the other, each limited by the slower of bytes and operations."""
    return sum(1e3 * max(_seconds(part, ceilings)) for part in parts)


def work_json(parts: tuple[WorkItem, ...], ceilings: Ceilings | None) -> dict[str, Any]:
    result: dict[str, Any] = {"bytes": sum(p.bytes for p in parts), "flops": sum(p.flops for p in parts)}
    result["floor_ms"] = None if ceilings is None else round(floor_ms(parts, ceilings), 4)
    result["parts"] = [{"name": part.name, "bytes": part.bytes, "flops": part.flops} for part in parts]
    if ceilings is not None:
        for row, part in zip(result["parts"], parts, strict=True):
            by_bytes, by_flops = _seconds(part, ceilings)
            row |= {"bytes_ms": round(1e3 * by_bytes, 4), "flops_ms": round(1e3 * by_flops, 4)}
    return result


def _seconds(part: WorkItem, ceilings: Ceilings) -> tuple[float, float]:
    return part.bytes / ceilings.copy_bytes_per_s, part.flops / ceilings.matmul_flop_per_s


def _embedding(s: Sizes) -> WorkItem:
    cells = s.rows * s.task.past
    flops = 2 * cells * s.model.width
    if s.model.roads:
        inputs = s.features + len(CALENDAR) + 2 * HEADS
        flops += 2 * cells * (inputs * s.model.width + 2 * NEAR_SENSORS * HEADS)
    return WorkItem("embedding", cells * READING + s.wide, flops)


def _embedding_back(s: Sizes) -> WorkItem:
    """For the weights alone: readings have no gradient."""
    return WorkItem("embedding, back", _embedding(s).bytes, _embedding(s).flops)


def _layer_flops(s: Sizes) -> tuple[int, int]:
    """The product with W_1, and the gated sums of both directions, of one layer."""
    snapshots, D = s.windows * s.task.past, s.model.width
    return 2 * s.nodes * snapshots * 3 * D * D, 4 * s.edges * snapshots * D


def _layers(s: Sizes) -> WorkItem:
    return WorkItem("layers", s.model.layers * 2 * s.wide, s.model.layers * sum(_layer_flops(s)))


def _layers_back(s: Sizes) -> WorkItem:
    """Two products, for the input and for W_1; sums again for W_1, sums of gradients, products for the gates."""
    product, sums = _layer_flops(s)
    return WorkItem("layers, back", s.model.layers * 6 * s.wide, s.model.layers * (2 * product + 3 * sums))


def _encoder_flops(s: Sizes) -> int:
    return 2 * s.rows * s.task.past * (2 * s.model.width) * (4 * s.model.width)


def _encoder(s: Sizes, *, kept: bool) -> WorkItem:
    """Encodings read; first and last states; where they are kept, the states before each step."""
    return WorkItem("encoder", (3 if kept else 1) * s.wide + 4 * s.state, _encoder_flops(s))


def _encoder_back(s: Sizes) -> WorkItem:
    """Encodings and states read, gradients of gates and encodings written; then gates, encodings, states for sums."""
    return WorkItem("encoder, back", (1 + 2 + 4 + 1 + 6) * s.wide + 4 * s.state, 3 * _encoder_flops(s))


def _decoder_flops(s: Sizes) -> int:
    """The cell's product with its state and inputs, and the readout's two layers."""
    D, hidden = s.model.width, s.model.hidden
    inputs = 1 + (len(CALENDAR) if s.model.roads else 0)
    a_step = (D + inputs) * 4 * D + 2 * D * hidden + hidden
    return 2 * s.rows * s.task.horizon * a_step


def _outside(s: Sizes) -> int:
    """Bytes: first states and the prior's part read, forecasts written."""
    return 2 * s.state + s.rows * (s.model.hidden + s.task.horizon) * FP32


def _decoder(s: Sizes, *, kept: bool) -> WorkItem:
    states = 2 * (s.task.horizon + 1) * s.state if kept else 0
    return WorkItem("decoder", states + _outside(s), _decoder_flops(s))


def _decoder_back(s: Sizes) -> WorkItem:
    """States read, gradients of gates and of the readout's hidden units written; then all of them for the sums."""
    states = s.task.horizon * s.state  # [H,R,D]
    units = s.task.horizon * s.rows * s.model.hidden * s.number
    back = 2 * (states + s.state) + 4 * states + units + _outside(s)
    sums = (4 + 1 + 2) * states + 2 * units
    return WorkItem("decoder, back", back + sums, 3 * _decoder_flops(s))
