"""The bytes and operations of a training step and a forecast, counted from the sizes alone, and the minimum time that a
machine needs for them (roofline).

Counts assume a fused implementation: a layer reads its input once and writes its output once. In backward, a layer
reads the gradient, its output and its input, writes the gradient before the relu, reads that again for the neighbours'
sums, and writes the gradient of its input. The LSTMs keep the state before each step and recompute their gates; the
gates' gradients are written, and read once more to sum the weights' gradients over the rows. Weights, roads and gates
are small and stay in the caches, so they are not counted. Norm, dropout and residual of the preset `default` can be
fused and are not counted either.

N nodes, E roads, B windows, T past and H future steps, D width; R = N B sequences.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from frigate.config import ModelSettings, Task
from frigate.nn.calendar import CALENDAR
from frigate.nn.scaling import NEAR_SENSORS

FP32 = 4
READING = FP32 + 1  # bytes of a value and its mask
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
    """Speeds measured in the same run: a copy (bytes read and written), and a matrix product."""

    copy_bytes_per_s: float
    matmul_flop_per_s: float

    def to_json(self) -> dict[str, float]:
        return {
            "copy_tb_per_s": round(self.copy_bytes_per_s / 1e12, 3),
            "matmul_tflop_per_s": round(self.matmul_flop_per_s / 1e12, 1),
        }


@dataclass(frozen=True)
class Sizes:
    """The sizes that the counts depend on."""

    model: ModelSettings
    task: Task
    nodes: int
    edges: int
    windows: int
    features: int  # road features per node, as input to the model
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

    @property
    def outside(self) -> int:
        """Bytes that the decoder reads (first states, prior) and writes (forecasts)."""
        return 2 * self.state + self.rows * (self.model.hidden + self.task.horizon) * FP32


def forecast_work(sizes: Sizes) -> tuple[WorkItem, ...]:
    """A forward pass without gradients; gates and positions are precomputed."""
    embedding, layers, encoder, decoder = _flops(sizes)
    return (
        WorkItem("embedding", sizes.rows * sizes.task.past * READING + sizes.wide, embedding),
        WorkItem("layers", sizes.model.layers * 2 * sizes.wide, sum(layers)),
        WorkItem("encoder", sizes.wide + 4 * sizes.state, encoder),
        WorkItem("decoder", sizes.outside, decoder),
    )


def step_work(sizes: Sizes, *, targets: int) -> tuple[WorkItem, ...]:
    """Forward, backward and optimiser. Only `targets` nodes have targets; the others need neither LSTM."""
    decoded = replace(sizes, nodes=targets)
    horizon = sizes.task.horizon
    _, (product, sums), _, _ = _flops(sizes)
    embed, layers, _, _ = forecast_work(sizes)
    _, _, encode, decode = forecast_work(decoded)
    # In backward, the decoder reads its states and writes gradients of gates and of the readout's hidden units; then
    # all of them are read for the sums. The encoder reads encodings and states and writes gradients of gates and
    # encodings; then gates, encodings and states are read for the sums.
    states = horizon * decoded.state
    units = horizon * decoded.rows * sizes.model.hidden * sizes.number
    decoder_back = 2 * (states + decoded.state) + 4 * states + units + decoded.outside + 7 * states + 2 * units
    encoder_back = (1 + 2 + 4 + 1 + 6) * decoded.wide + 4 * decoded.state
    return (
        embed,
        layers,
        WorkItem("encoder", encode.bytes + 2 * decoded.wide, encode.flops),  # the states before each step are kept
        WorkItem("decoder", decode.bytes + 2 * (horizon + 1) * decoded.state, decode.flops),
        WorkItem("decoder, back", decoder_back, 3 * decode.flops),
        WorkItem("encoder, back", encoder_back, 3 * encode.flops),
        # Two products, for the input and W_1; sums again for W_1, sums of gradients, products for the gates.
        WorkItem("layers, back", 3 * layers.bytes, 2 * product + 3 * sums),
        WorkItem("embedding, back", embed.bytes, embed.flops),  # weights only: readings have no gradient
        WorkItem("optimiser", ADAM * FP32 * sizes.parameters, 12 * sizes.parameters),
    )


def _flops(s: Sizes) -> tuple[int, tuple[int, int], int, int]:
    """Flops of a forward pass: embedding; the layers' products with W_1 and gated sums; encoder; decoder."""
    D = s.model.width
    hidden = s.model.hidden
    cells = s.rows * s.task.past
    calendar = len(CALENDAR) if s.model.roads else 0
    embedding = 2 * cells * D
    if s.model.roads:
        embedding += 2 * cells * ((s.features + calendar + 2 * HEADS) * D + 2 * NEAR_SENSORS * HEADS)
    products = s.model.layers * 2 * cells * 3 * D * D
    sums = s.model.layers * 4 * s.edges * s.windows * s.task.past * D  # of both directions
    encoder = 2 * cells * (2 * D) * (4 * D)
    # The cell's product with its state and inputs, and the readout's two layers.
    decoder = 2 * s.rows * s.task.horizon * ((D + 1 + calendar) * 4 * D + 2 * D * hidden + hidden)
    return embedding, (products, sums), encoder, decoder


def floor_ms(parts: Iterable[WorkItem], ceilings: Ceilings) -> float:
    """Total time of the parts in sequence, each limited by the slower of bytes and operations."""
    return sum(max(_both_ms(part, ceilings)) for part in parts)


def work_json(parts: tuple[WorkItem, ...], ceilings: Ceilings | None) -> dict[str, Any]:
    result: dict[str, Any] = {"bytes": sum(p.bytes for p in parts), "flops": sum(p.flops for p in parts)}
    result["floor_ms"] = None if ceilings is None else round(floor_ms(parts, ceilings), 4)
    result["parts"] = [{"name": part.name, "bytes": part.bytes, "flops": part.flops} for part in parts]
    if ceilings is not None:
        for row, part in zip(result["parts"], parts, strict=True):
            by_bytes, by_flops = _both_ms(part, ceilings)
            row |= {"bytes_ms": round(by_bytes, 4), "flops_ms": round(by_flops, 4)}
    return result


def _both_ms(part: WorkItem, ceilings: Ceilings) -> tuple[float, float]:
    return 1e3 * part.bytes / ceilings.copy_bytes_per_s, 1e3 * part.flops / ceilings.matmul_flop_per_s
