"""Frigate: siamese GNNs over the snapshots, an LSTM encoder, the moments as a prior, an LSTM decoder (paper, Alg. 1).

`Frigate` is the forward pass; what differs between the presets are its parts, put together by `paper` and `default`
below. To try another part, build a model and replace the part; there are no flags for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frigate.config import ModelSettings
from frigate.data.stream import CALENDAR
from frigate.nn import decoder, lstm
from frigate.nn.batch import Batch, Topology
from frigate.nn.choice import plain
from frigate.nn.cpu_lstm import CpuLstm
from frigate.nn.layer import gated_layers
from frigate.nn.layers import Gate, GatedConv, ResidualGatedConv, gates_of
from frigate.nn.moments import MOMENTS, KernelMean, moments

PAPER_CALENDAR = 4  # sine and cosine of the time of day and of the day of the week: the first columns of CALENDAR


class MLP(nn.Sequential):
    """One hidden layer."""

    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float = 0.0) -> None:
        super().__init__(nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, outputs))


class Reading(nn.Module):
    """w_tau * tau; a learned vector where there is no reading."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))  # w_tau
        self.missing = nn.Parameter(torch.randn(width))

    def forward(self, batch: Batch, scaled: Tensor) -> Tensor:
        """[N,B,T,width]"""
        # tau is 0 where there is none: one product of two numbers with two vectors.
        both = torch.stack([scaled, (~batch.observed).to(scaled.dtype)], dim=-1)  # [B,T,N,2]
        weights = torch.stack([self.weight, self.missing])
        return nodes_first(both @ weights) if snapshot_by_snapshot(both) else nodes_first(both) @ weights


class PaperEmbedding(nn.Module):
    """h0: the reading beside the position."""

    def __init__(self, width: int, anchors: int) -> None:
        super().__init__()
        self.reading = Reading(width - anchors)

    def forward(self, batch: Batch, scaled: Tensor) -> Tensor:
        """[N,B,T,D]"""
        return side_by_side([self.reading(batch, scaled), snapshot_positions(batch)])  # eq:h0


class DefaultEmbedding(nn.Module):
    """h0 from the reading, the road features, the snapshot's calendar and the kernel mean of the visible sensors."""

    def __init__(self, width: int, road_features: int, kernel: KernelMean) -> None:
        super().__init__()
        self.reading = Reading(width)
        self.kernel = kernel
        self.context = nn.Linear(road_features + len(CALENDAR) + kernel.width, width)

    def forward(self, batch: Batch, scaled: Tensor, weights_of: Sequence[Tensor] | None = None) -> Tensor:
        """[N,B,T,D]"""
        N, B, T = batch.num_nodes, batch.num_windows, batch.past
        roads = per_snapshot(batch, [topology.road_features for topology in batch.topologies])
        context = [roads, batch.calendar_past.expand(N, B, T, -1), self.kernel(batch, scaled, weights_of)]
        h: Tensor = self.reading(batch, scaled) + self.context(torch.cat(context, dim=-1))
        return h


class Prior(nn.Module):
    """m_v, what is known of a node beside its encoding: [N,B,width] from (batch, scaled)."""

    width: int


class MomentPrior(Prior):
    """m_v = MLP3(moments)."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.mlp = MLP(len(MOMENTS), hidden, width)  # MLP3
        self.width = width

    def forward(self, batch: Batch, scaled: Tensor) -> Tensor:
        """[N,B,width]"""
        prior: Tensor = self.mlp(moments(batch, scaled))  # the unnumbered equation of m_v^t, Alg. line 7
        return prior


class DefaultPrior(Prior):
    """m_v from the moments and the road features."""

    def __init__(self, hidden: int, width: int, road_features: int) -> None:
        super().__init__()
        self.mlp = MLP(len(MOMENTS) + road_features, hidden, width)
        self.width = width

    def forward(self, batch: Batch, scaled: Tensor) -> Tensor:
        """[N,B,width]"""
        roads = per_snapshot(batch, [topology.road_features for topology in batch.topologies])[:, :, -1]
        prior: Tensor = self.mlp(torch.cat([moments(batch, scaled), roads], dim=-1))
        return prior


@dataclass(frozen=True)
class Fixed:
    """What a model computes from a topology alone: made once, it serves all snapshots until a weight changes."""

    gates: tuple[Tensor | None, ...]  # [E] of each layer; None for a layer that has none
    weights: Tensor | None  # [N,M,G] of the kernel mean; None for an embedding without


class Frigate(nn.Module):
    """The forward pass (paper, Alg. 1), for all nodes of all windows at once."""

    value_offset: Tensor
    value_scale: Tensor
    length_scale_m: Tensor

    def __init__(
        self,
        settings: ModelSettings,
        *,
        embedding: nn.Module,
        convolutions: list[nn.Module],
        prior: Prior,
        calendar_start: int,
        calendar_future: int,
        value_offset: float,
        value_scale: float,
        length_scale_m: float,
    ) -> None:
        super().__init__()
        D, hidden = settings.width, settings.hidden
        self.calendar_start, self.calendar_future = calendar_start, calendar_future
        self.register_buffer("value_offset", torch.tensor(float(value_offset)))
        self.register_buffer("value_scale", torch.tensor(float(value_scale)))
        self.register_buffer("length_scale_m", torch.tensor(float(length_scale_m)))
        self.length = nn.Parameter(torch.randn(settings.length_width) / settings.length_width**0.5)  # w_delta
        self.embedding = embedding
        self.convolutions = nn.ModuleList(convolutions)
        self.start = MLP(calendar_start + D, hidden, 2 * D)  # MLP1
        self.encoder = nn.LSTM(D, D, batch_first=True)
        self.prior = prior
        self.first = MLP(2 * D + prior.width, hidden, 1, settings.dropout)  # MLP2
        self.decoder = nn.LSTMCell(1 + calendar_future, D)
        self.readout = MLP(2 * D + prior.width, hidden, 1, settings.dropout)  # MLP4

    def kept_numbers(self, *, nodes: int, edges: int, past: int, horizon: int) -> int:
        """How many numbers backward keeps of one window, at the most. `edges` plays no part: a road keeps nothing."""
        kept = {GatedConv: 2, ResidualGatedConv: 6}  # of a snapshot of a node, in D numbers; a layer of another kind: 8
        layers = sum(kept.get(type(layer), 8) for layer in self.convolutions)
        return nodes * self.encoder.hidden_size * (past * (layers + 28) + horizon * 28)

    def forward(self, batch: Batch, fixed: Sequence[Fixed] | None = None) -> Tensor:
        """[B,H,N] in the user's unit, not clamped. In use, `fixed` saves the work that the topologies alone decide."""
        scaled = self.scaled(batch)
        return self.from_snapshots(batch, scaled, self.snapshots(batch, scaled, fixed))

    def scaled(self, batch: Batch) -> Tensor:
        """[B,T,N] the readings in the model's unit, 0 where there is none."""
        return ((batch.values - self.value_offset) / self.value_scale).where(batch.observed, 0.0)

    def from_snapshots(self, batch: Batch, scaled: Tensor, z: Tensor) -> Tensor:
        """[B,H,N] from the encodings of the snapshots."""
        state = self.encode(batch, z)
        prior = self.prior(batch, scaled).flatten(0, 1)
        return self.decode(batch, state, prior)

    def forecast_at(self, batch: Batch, nodes: Tensor | slice) -> Tensor:
        """[B,H,n] at these nodes: all are encoded by the GNN, the others go no further."""
        scaled = self.scaled(batch)
        z, prior = rows_of(self.snapshots(batch, scaled), nodes), self.prior(batch, scaled)[nodes]
        return self.decode(batch, self.encode(batch, z), prior.flatten(0, 1))

    def fixed(self, topology: Topology) -> Fixed:
        """What of `snapshots` depends on neither readings nor time."""
        embedding = self.embedding
        weights = embedding.kernel.weights(topology) if isinstance(embedding, DefaultEmbedding) else None
        return Fixed(self._gates(topology), weights)

    def _gates(self, topology: Topology) -> tuple[Tensor | None, ...]:
        gated = [layer for layer in self.convolutions if isinstance(layer, GatedConv | ResidualGatedConv)]
        if not gated:
            return (None,) * len(self.convolutions)
        made = iter(gates_of([layer.gate for layer in gated], self._length(topology), topology))
        return tuple(next(made) if layer in gated else None for layer in self.convolutions)

    def snapshots(self, batch: Batch, scaled: Tensor, fixed: Sequence[Fixed] | None = None) -> Tensor:
        """z [N,B,T,D]: the GNN on every snapshot, with the same weights and its own topology (Alg. line 4).

        A snapshot's z depends on its own readings, topology and calendar alone. `fixed` is one for each topology.
        """
        weights = None if fixed is None else [part.weights for part in fixed if part.weights is not None]
        h: Tensor = self.embedding(batch, scaled, weights) if weights else self.embedding(batch, scaled)
        if torch.is_autocast_enabled(h.device.type):
            h = h.to(torch.get_autocast_dtype(h.device.type))  # the wide tensors of a step: half the bytes
        N, B, T, D = h.shape
        h = h.reshape(N, B * T, D)
        z = h
        for i, topology in enumerate(batch.topologies):
            columns = batch.columns_of(i)
            part = h if columns is None else h[:, columns]
            part = self._convolved(part, topology, self._gates(topology) if fixed is None else fixed[i].gates)
            z = part if columns is None else z.index_copy(1, columns, part.to(z.dtype))
        return z.view(N, B, T, D)

    def _convolved(self, h: Tensor, topology: Topology, gates_of_layers: Sequence[Tensor | None]) -> Tensor:
        """h [N,M,D] after the last layer."""
        plain_layers = [layer for layer in self.convolutions if type(layer) is GatedConv]
        if len(plain_layers) == len(self.convolutions):
            gates = [gate for gate in gates_of_layers if gate is not None]
            return gated_layers(h, gates, [layer.linear.weight for layer in plain_layers], topology)
        length = self._length(topology)
        for convolution, gate in zip(self.convolutions, gates_of_layers, strict=True):
            h = convolution(h, length, topology, *(() if gate is None else (gate,)))
        return h

    def _length(self, topology: Topology) -> Tensor:
        return (topology.length_m / self.length_scale_m)[:, None] * self.length

    def encode(self, batch: Batch, z: Tensor) -> tuple[Tensor, Tensor]:
        """s: hidden and cell state, each [N*B,D], after the last snapshot."""
        N, B, T, D = z.shape
        t = batch.calendar_past[:, -1, : self.calendar_start].expand(N, B, -1)
        start = self.start(torch.cat([t, z[:, :, 0]], dim=-1)).view(N * B, 2 * D)  # Alg. line 1
        if lstm.fused(self.encoder, z):
            return lstm.last_state(self.encoder, z.reshape(N * B, T, D), *start.chunk(2, dim=-1))
        if z.device.type == "cpu" and not plain() and lstm.plain_lstm(self.encoder):
            return CpuLstm(self.encoder)(z, *start.chunk(2, dim=-1))
        z = z.reshape(N * B, T, D)
        hidden, cell = (part[None].contiguous() for part in start.chunk(2, dim=-1))
        _, (hidden, cell) = self.encoder(z, (hidden, cell))  # eq:lstm, Alg. line 5
        return hidden[0], cell[0]

    def decode(self, batch: Batch, state: tuple[Tensor, Tensor], prior: Tensor) -> Tensor:
        """[B,H,n] in the user's unit, from state and prior of n nodes, each [n*B,*]."""
        y = self.first(torch.cat([*state, prior], dim=-1))  # y_0, Alg. line 8
        known = batch.calendar_future[..., : self.calendar_future]
        if decoder.fused(self.decoder, self.readout, state[0]):
            steps = [decoder.forecasts(self.decoder, self.readout, state, prior, y, known)]
        elif y.device.type == "cpu" and not plain() and lstm.plain_lstm(self.decoder) and type(self.readout) is MLP:
            steps = self._decode_on_cpu(known, state, prior, y)
        else:
            steps = self._decode(known, state, prior, y)
        n, B = prior.shape[0] // batch.num_windows, batch.num_windows
        scaled = torch.cat(steps, dim=-1).view(n, B, batch.horizon).permute(1, 2, 0)
        return scaled.to(self.value_scale.dtype) * self.value_scale + self.value_offset

    def _decode(self, known: Tensor, state: tuple[Tensor, Tensor], prior: Tensor, y: Tensor) -> list[Tensor]:
        B, H = known.shape[:2]
        steps = []
        for k in range(H):  # q_0 = s, Alg. line 9
            inputs = torch.cat([y, known[:, k].repeat(prior.shape[0] // B, 1)], dim=-1)
            state = self.decoder(inputs, state)  # eq:decoder, Alg. line 11
            y = self.readout(torch.cat([*state, prior], dim=-1))  # y_k, Alg. line 12; fed back as it is
            steps.append(y)
        return steps

    def _decode_on_cpu(self, known: Tensor, state: tuple[Tensor, Tensor], prior: Tensor, y: Tensor) -> list[Tensor]:
        """`_decode` with the gates of a step at once, and the prior's part of MLP4 computed once."""
        (B, H, C), D, n = known.shape, self.decoder.hidden_size, len(prior) // known.shape[0]
        inner, *rest = self.readout
        assert isinstance(inner, nn.Linear)
        of_hidden, of_memory, of_prior = torch.split(inner.weight.T, [D, D, prior.shape[1]])
        always, cell = torch.addmm(inner.bias, prior, of_prior), CpuLstm(self.decoder)
        steps = []
        for k in range(H):
            inputs = torch.cat([y, known[:, k].repeat(n, 1)], dim=-1)
            state = cell(inputs.view(n, B, 1, 1 + C), *state)
            y = torch.addmm(always, state[0], of_hidden).addmm_(state[1], of_memory)
            for part in rest:
                y = part(y)
            steps.append(y)
        return steps


def snapshot_by_snapshot(each: Tensor) -> bool:
    """Whether encodings lie in memory as [B,T,N,D], which is how layers on a CPU read them; else [N,B,T,D]."""
    return each.device.type == "cpu" and not plain()


def nodes_first(each: Tensor) -> Tensor:
    """[N,B,T,X] from [B,T,N,X]"""
    return each.permute(2, 0, 1, 3)


def side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """[N,B,T,X+Y+..] from [N,B,T,X], [N,B,T,Y] and so on."""
    if snapshot_by_snapshot(parts[0]):
        return nodes_first(torch.cat([part.permute(1, 2, 0, 3) for part in parts], dim=-1))
    return torch.cat(list(parts), dim=-1)


def rows_of(z: Tensor, nodes: Tensor | slice) -> Tensor:
    """[n,B,T,D] of z [N,B,T,D], which lies in memory as z does: snapshots one after the other, or nodes."""
    if isinstance(nodes, slice) or z.is_contiguous():
        return z[nodes]
    return z.permute(1, 2, 0, 3).index_select(2, nodes).permute(2, 0, 1, 3)


def per_snapshot(batch: Batch, tables: list[Tensor]) -> Tensor:
    """[N,B,T,X] from one table [N,X] for each topology."""
    N, B, T = batch.num_nodes, batch.num_windows, batch.past
    if len(tables) == 1:
        return tables[0][:, None, None].expand(N, B, T, -1)
    return torch.stack(tables, dim=1)[:, batch.topology_of.to(tables[0].device)]


def snapshot_positions(batch: Batch) -> Tensor:
    """[N,B,T,K]"""
    return per_snapshot(batch, [topology.positions for topology in batch.topologies])


def paper(settings: ModelSettings, *, value_offset: float, value_scale: float, length_scale_m: float) -> Frigate:
    """The paper's equations and nothing else."""
    gates = [
        Gate(positions=settings.anchors, length_width=settings.length_width, width=settings.gate_width)
        for _ in range(settings.layers)
    ]
    return Frigate(
        settings,
        embedding=PaperEmbedding(settings.width, settings.anchors),
        convolutions=[GatedConv(settings.width, gate) for gate in gates],
        prior=MomentPrior(settings.hidden, settings.hidden),
        calendar_start=PAPER_CALENDAR,
        calendar_future=0,
        value_offset=value_offset,
        value_scale=value_scale,
        length_scale_m=length_scale_m,
    )


def default(
    settings: ModelSettings, *, road_features: int, value_offset: float, value_scale: float, length_scale_m: float
) -> Frigate:
    """The same architecture with normalised residual layers, road features, calendar and kernel mean."""
    kernel = KernelMean(road_features=road_features, length_scale_m=length_scale_m)
    gates = [
        Gate(positions=settings.anchors, length_width=settings.length_width, width=settings.gate_width)
        for _ in range(settings.layers)
    ]
    return Frigate(
        settings,
        embedding=DefaultEmbedding(settings.width, road_features, kernel),
        convolutions=[
            ResidualGatedConv(settings.width, gate, dropout=settings.dropout, edge_dropout=settings.edge_dropout)
            for gate in gates
        ],
        prior=DefaultPrior(settings.hidden, settings.hidden, road_features),
        calendar_start=len(CALENDAR),
        calendar_future=len(CALENDAR),
        value_offset=value_offset,
        value_scale=value_scale,
        length_scale_m=length_scale_m,
    )
