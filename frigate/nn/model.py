"""Frigate: a GNN on every snapshot, an LSTM encoder, the moments as a prior, an LSTM decoder (paper, Alg. 1).

`Frigate` is the forward pass; the presets `paper` and `default` assemble it from different parts. To try a new part,
build a model and replace that part. Each equation's label stands at the line that computes it, for every backend;
`ops/reference.py` defines what the operations compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from frigate.config import ModelSettings
from frigate.nn import ops
from frigate.nn.batch import Batch
from frigate.nn.calendar import CALENDAR, calendar
from frigate.nn.forecast_model import ForecastModel, Reach, RoadWeights
from frigate.nn.layers import Gate, GatedConv, GatedLayers, Layers, ResidualGatedConv, ResidualGatedLayers
from frigate.nn.moments import MOMENTS, KernelMean, moments
from frigate.nn.scaling import Scaling
from frigate.nn.topology import Topology
from frigate.roads.features import FEATURE_WIDTH

PAPER_CALENDAR = 4  # the first columns of CALENDAR: sine and cosine of the time of day and of the day of the week
FORWARD_TENSORS = 6  # [N,B,T,D] tensors live at once in a forecast; measured


class MLP(nn.Sequential):
    """One hidden layer."""

    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float = 0.0) -> None:
        super().__init__(nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, outputs))


class ReadingEncoder(nn.Module):
    """w_tau * tau, or a learned vector where there is no reading."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))  # w_tau
        self.missing = nn.Parameter(torch.randn(width))

    def forward(self, batch: Batch, tau: Tensor, *beside: Tensor) -> Tensor:
        """[N,B,T,D]: the embedded reading, concatenated with the other inputs [N,B,T,K]."""
        # tau is 0 where there is no reading, so one product covers both cases.
        readings = torch.stack([tau, (~batch.observed).to(tau.dtype)], dim=-1)  # [B,T,N,2]
        return ops.embed(readings, torch.stack([self.weight, self.missing]), *beside)


class Embedding(nn.Module):
    """h0 [N,B,T,D] from (batch, tau, sensor_weights)."""

    def sensor_weights(self, topology: Topology) -> Tensor | None:
        """The part of the embedding that depends only on the topology."""
        return None


class PaperEmbedding(Embedding):
    """h0: the reading concatenated with the position."""

    def __init__(self, width: int, anchors: int) -> None:
        super().__init__()
        self.reading = ReadingEncoder(width - anchors)

    def forward(self, batch: Batch, tau: Tensor, sensor_weights: Sequence[Tensor] | None) -> Tensor:
        positions = per_snapshot(batch, [topology.positions for topology in batch.topologies])
        h0: Tensor = self.reading(batch, tau, positions)  # eq:h0
        return h0


class DefaultEmbedding(Embedding):
    """h0 from the reading, the road features, the calendar, the kernel mean of the visible sensors, and demand."""

    def __init__(self, width: int, kernel: KernelMean, demand: DemandFeatures | None) -> None:
        super().__init__()
        self.reading = ReadingEncoder(width)
        self.kernel = kernel
        self.demand = demand
        known = 0 if demand is None else demand.width
        self.context = nn.Linear(FEATURE_WIDTH + len(CALENDAR) + kernel.width + known, width)

    def sensor_weights(self, topology: Topology) -> Tensor:
        return self.kernel.weights(topology)

    def forward(self, batch: Batch, tau: Tensor, sensor_weights: Sequence[Tensor] | None) -> Tensor:
        N = batch.num_nodes
        B = batch.num_windows
        T = batch.past
        context = [
            per_snapshot(batch, [topology.road_features for topology in batch.topologies]),
            calendar(batch.time_past).expand(N, B, T, -1),
            self.kernel(batch, tau, sensor_weights),
        ]
        if self.demand is not None:
            context.append(self.demand.of_snapshots(batch))
        h0: Tensor = self.reading(batch, tau) + self.context(torch.cat(context, dim=-1))
        return h0


@dataclass(frozen=True)
class DemandFeatures:
    """Demand as model inputs: flows in the model's unit, and their uncertainty."""

    value_scale: float
    width: int = 4

    def of_snapshots(self, batch: Batch) -> Tensor:
        """[N,B,T,4] from the usual flow in each past snapshot; independent of the rest of the window."""
        assert batch.usual_past is not None and batch.demand_node is not None
        flow = batch.usual_past.permute(2, 0, 1)[..., None]
        node = batch.demand_node.transpose(0, 1)[:, :, None, 1:3].expand(-1, -1, batch.past, -1)
        return torch.cat([flow / self.value_scale, torch.log1p(flow), node], dim=-1)

    def of_future(self, batch: Batch) -> Tensor:
        """[N,B,4] from the flow that demand forecasts, averaged over the horizon."""
        assert batch.demand is not None and batch.demand_node is not None
        flow = batch.demand.mean(1).transpose(0, 1)[..., None]
        return torch.cat([flow / self.value_scale, batch.demand_node.transpose(0, 1)[..., :3]], dim=-1)


class Prior(nn.Module):
    """m_v, what is known about a node besides its encoding: [N,B,width] from (batch, tau)."""

    width: int


class MomentPrior(Prior):
    """m_v = MLP3(moments)."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.mlp = MLP(len(MOMENTS), hidden, width)  # MLP3
        self.width = width

    def forward(self, batch: Batch, tau: Tensor) -> Tensor:
        m: Tensor = self.mlp(moments(batch, tau))  # MLP3 of Alg. line 7, the unnumbered equation
        return m


class DefaultPrior(Prior):
    """m_v from the moments, the road features, and demand."""

    def __init__(self, hidden: int, width: int, demand: DemandFeatures | None) -> None:
        super().__init__()
        self.demand = demand
        known = 0 if demand is None else demand.width
        self.mlp = MLP(len(MOMENTS) + FEATURE_WIDTH + known, hidden, width)
        self.width = width

    def forward(self, batch: Batch, tau: Tensor) -> Tensor:
        roads = per_snapshot(batch, [topology.road_features for topology in batch.topologies])[:, :, -1]
        known = [] if self.demand is None else [self.demand.of_future(batch)]
        m: Tensor = self.mlp(torch.cat([moments(batch, tau), roads, *known], dim=-1))
        return m


class Frigate(ForecastModel):
    """The forward pass (paper, Alg. 1), batched over all nodes and windows."""

    length_scale_m: Tensor
    trust: Tensor
    supports_recording = True
    encodes_snapshots = True

    def __init__(
        self,
        settings: ModelSettings,
        scaling: Scaling,
        *,
        embedding: Embedding,
        convolutions: Layers,
        prior: Prior,
        calendar_start: int,
        calendar_future: int,
        corrects_demand: bool = False,
    ) -> None:
        super().__init__(width=settings.width, value_offset=scaling.value_offset, value_scale=scaling.value_scale)
        D = settings.width
        hidden = settings.hidden
        self.calendar_start = calendar_start
        self.calendar_future = calendar_future
        self.register_buffer("length_scale_m", torch.tensor(float(scaling.length_scale_m)))
        self.length = nn.Parameter(torch.randn(settings.length_width) / settings.length_width**0.5)  # w_delta
        self.embedding = embedding
        self.convolutions = convolutions
        self.start = MLP(calendar_start + D, hidden, 2 * D)  # MLP1
        self.encoder = nn.LSTM(D, D, batch_first=True)
        self.prior = prior
        self.first = MLP(2 * D + prior.width, hidden, 1, settings.dropout)  # MLP2
        self.decoder = nn.LSTMCell(1 + calendar_future, D)
        self.readout = MLP(2 * D + prior.width, hidden, 1, settings.dropout)  # MLP4
        self.corrects_demand = corrects_demand
        self.register_buffer("trust", torch.ones(()))  # in the correction; set by training
        if corrects_demand:  # zero residual: the untrained model forecasts exactly the demand
            for mlp in (self.first, self.readout):
                for parameter in mlp[-1].parameters():
                    nn.init.zeros_(parameter)

    def forward(self, batch: Batch, *, weights: Sequence[RoadWeights] | None = None) -> Tensor:
        return self.forecast_from(batch, self.encode_snapshots(batch, weights=weights))

    def forecast_at(self, batch: Batch, nodes: Tensor | slice) -> Tensor:
        """[B,H,n] at these nodes: the GNN runs on all nodes, the LSTMs only on these."""
        return self.forecast_from(batch, self.encode_snapshots(batch), nodes)

    def road_weights(self, topology: Topology) -> RoadWeights:
        return RoadWeights(self._gates(topology), self.embedding.sensor_weights(topology))

    def _readings(self, batch: Batch) -> Tensor:
        """tau [B,T,N], in the model's unit; 0 where there is no reading."""
        return self.scaled(batch.values).where(batch.observed, 0.0)

    def encode_snapshots(self, batch: Batch, *, weights: Sequence[RoadWeights] | None = None) -> Tensor:
        """z [N,B,T,D]: the GNN on every snapshot, with shared weights and the snapshot's own topology."""
        near = None if weights is None else [w for each in weights if (w := each.sensor_weights) is not None]
        h: Tensor = self.embedding(batch, self._readings(batch), near)
        if torch.is_autocast_enabled(h.device.type):
            h = h.to(torch.get_autocast_dtype(h.device.type))
        N, B, T, D = h.shape
        h = h.reshape(N, B * T, D)
        z = h
        for i, topology in enumerate(batch.topologies):
            columns = batch.columns_of(i)
            gates = self._gates(topology) if weights is None else weights[i].gates
            part = h if columns is None else h[:, columns]
            part = self.convolutions(part, gates, topology)  # Alg. lines 3 and 4
            z = part if columns is None else z.index_copy(1, columns, part.to(z.dtype))
        return z.view(N, B, T, D)

    def _gates(self, topology: Topology) -> tuple[Tensor, ...]:
        """beta [E] of each layer."""
        length = (topology.length_m / self.length_scale_m)[:, None] * self.length  # w_delta * delta
        return self.convolutions.gates(length, topology)

    def forecast_from(self, batch: Batch, encodings: Tensor, nodes: Tensor | slice = slice(None)) -> Tensor:
        z = ops.take_nodes(encodings, nodes)
        n, B, _, D = z.shape
        t = calendar(batch.time_past[:, -1])[:, : self.calendar_start].expand(n, B, -1)
        known = calendar(batch.time_future)[..., : self.calendar_future]
        s = self.start(torch.cat([t, z[:, :, 0]], dim=-1)).view(n * B, 2 * D).chunk(2, dim=-1)  # s_0, Alg. line 1
        s = ops.encode(self.encoder, z, s)  # eq:lstm, Alg. line 5
        m = self.prior(batch, self._readings(batch))[nodes].flatten(0, 1)  # Alg. line 7
        y = self.first(torch.cat([*s, m], dim=-1))  # y_0, Alg. line 8
        y = ops.decode(self.decoder, self.readout, s, m, y, known)  # eq:decoder, y_k, Alg. lines 9 to 12
        y = self.unscaled(y.view(n, B, batch.horizon).permute(1, 2, 0))  # Alg. lines 13 and 14
        if not self.corrects_demand:
            return y
        assert batch.demand is not None and batch.demand_node is not None
        # The residual was learned on the usual roads: shrink it where rerouting adds or removes traffic.
        rerouted = batch.demand_node[:, nodes, -1]  # [B,n]
        usual = self.trust * torch.minimum(rerouted, 1 / rerouted.clamp(min=1e-3)) ** 2
        return batch.demand[:, :, nodes] + y * usual[:, None]

    def trust_correction(self, share: float) -> None:
        self.trust.fill_(share)

    @property
    def is_demand_alone(self) -> bool:
        if not self.corrects_demand:
            return False
        outputs = [parameter for mlp in (self.first, self.readout) for parameter in mlp[-1].parameters()]
        return float(self.trust) == 0 or not any(parameter.any() for parameter in outputs)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        state_dict.setdefault(f"{prefix}trust", torch.ones(()))  # runs of 0.1.0 have none
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @property
    def reach(self) -> Reach | None:
        """Known if all parts come from the presets. At least one hop, because the moments read the neighbours."""
        parts = [self, self.embedding, self.prior, self.convolutions, *self.convolutions]
        if not all(type(part) in REACH_IS_KNOWN for part in parts):
            return None
        return Reach(max(1, len(self.convolutions)), isinstance(self.embedding, DefaultEmbedding))

    def training_activations(self, *, nodes: int, edges: int, past: int, horizon: int) -> int:
        """An upper bound. `edges` is not used: nothing is saved per road."""
        layers = self.convolutions.saved_per_layer * len(self.convolutions)
        return nodes * self.width * (past * (layers + 28) + horizon * 28)

    def forecast_activations(self, *, nodes: int, edges: int, past: int, horizon: int) -> int:
        return nodes * past * self.width * FORWARD_TENSORS


REACH_IS_KNOWN = {
    Frigate,
    PaperEmbedding,
    DefaultEmbedding,
    MomentPrior,
    DefaultPrior,
    GatedLayers,
    GatedConv,
    ResidualGatedLayers,
    ResidualGatedConv,
}


def absolute_error(forecast: Tensor, target: Tensor, weight: Tensor, value_scale: float) -> Tensor:
    """The sum in eq:mae in the model's unit, weighted: some nodes count less and some have no reading."""
    error: Tensor = (forecast - target).abs() / value_scale  # eq:mae
    return (error * weight).sum()


def per_snapshot(batch: Batch, tables: list[Tensor]) -> Tensor:
    """[N,B,T,X] from one table [N,X] per topology."""
    N = batch.num_nodes
    B = batch.num_windows
    T = batch.past
    if len(tables) == 1:
        return tables[0][:, None, None].expand(N, B, T, -1)
    return torch.stack(tables, dim=1)[:, batch.topology_of.to(tables[0].device)]


def paper(settings: ModelSettings, scaling: Scaling) -> Frigate:
    """The paper's equations and nothing else."""
    gates = _gates(settings)
    return Frigate(
        settings,
        scaling,
        embedding=PaperEmbedding(settings.width, settings.anchors),
        convolutions=GatedLayers(GatedConv(settings.width, gate) for gate in gates),
        prior=MomentPrior(settings.hidden, settings.hidden),
        calendar_start=PAPER_CALENDAR,
        calendar_future=0,
    )


def default(settings: ModelSettings, scaling: Scaling) -> Frigate:
    """The same architecture with normalised residual layers, road features, calendar, kernel mean, and demand.

    If the scaling has demand, the model forecasts the residual of the demand forecast. Gauges such as speed have none.
    """
    known = None if scaling.demand is None else DemandFeatures(scaling.value_scale)
    kernel = KernelMean(road_features=FEATURE_WIDTH, length_scale_m=scaling.length_scale_m)
    gates = _gates(settings)
    drop = {"dropout": settings.dropout, "edge_dropout": settings.edge_dropout}
    return Frigate(
        settings,
        scaling,
        embedding=DefaultEmbedding(settings.width, kernel, known),
        convolutions=ResidualGatedLayers(ResidualGatedConv(settings.width, gate, **drop) for gate in gates),
        prior=DefaultPrior(settings.hidden, settings.hidden, known),
        calendar_start=len(CALENDAR),
        calendar_future=len(CALENDAR),
        corrects_demand=known is not None,
    )


def _gates(settings: ModelSettings) -> list[Gate]:
    sizes = {"positions": settings.anchors, "length_width": settings.length_width, "width": settings.gate_width}
    return [Gate(**sizes) for _ in range(settings.layers)]
