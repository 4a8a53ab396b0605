"""How many parameters each model has, beside the paper's numbers (tab:params), on two networks of different size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from frigate.config import BASELINES, PRESETS, Settings, preset
from frigate.data.network import RoadNetwork
from frigate.data.split import Split
from frigate.data.stream import RoadNetworkStream
from frigate.experiments import plots
from frigate.experiments.plan import LABELS, Plan
from frigate.experiments.table import Cell, Row, Table
from frigate.nn.scaling import fit_scaling
from frigate.training.run import build_model

PAPER = {  # tab:params
    "paper": 198985, "dcrnn": 372353, "stnn": 313906, "graph-wavenet": 247660, "stgode": 558582, "localegn": 333636
}  # fmt: skip
IN_PAPER, PAPER_COLOUR = "in the paper", "#c9ced6"  # the paper's bars


def measure(plan: Plan) -> Table:
    """The parameters of every model, built for the city and for half of it."""
    whole = plan.city.stream.slice(0, 1)  # readings do not matter
    half = western_half(whole)
    rows: list[Row] = []
    for model in plan.wanted(*PRESETS, *BASELINES):
        ours, of_half = (count_parameters(preset(model), stream) for stream in (whole, half))
        paper = PAPER.get(model)
        row: Row = {"model": LABELS[model], "parameters": ours, "parameters_half": of_half, "paper": paper}
        rows.append(row | {"of_paper_percent": None if paper is None else 100 * ours / paper})
    return Table.make("parameters", rows, whole=whole.num_nodes, half=half.num_nodes)


def count_parameters(settings: Settings, stream: RoadNetworkStream) -> int:
    """Of a model as training would build it for this stream."""
    none = np.zeros(stream.num_nodes, bool)
    split = Split(stream.sensors, none, none, (0, stream.num_snapshots), (0, 0), (0, 0))
    scaling = fit_scaling(stream, split, settings.model, features=None, seed=settings.train.seed)
    return sum(parameter.numel() for parameter in build_model(settings, scaling).parameters())


def western_half(stream: RoadNetworkStream) -> RoadNetworkStream:
    """The stream of the western half of the nodes, with the roads among them, as the network is now."""
    network = stream.network
    rows = np.sort(np.argsort(network.lon, kind="stable")[: (network.num_nodes + 1) // 2])
    edges = network.edges.take(np.isin(network.senders, rows) & np.isin(network.receivers, rows))
    senders, receivers = (np.searchsorted(rows, ends) for ends in (edges.senders, edges.receivers))
    edges = replace(edges, senders=senders, receivers=receivers)
    part = RoadNetwork(network.node_ids[rows], network.lon[rows], network.lat[rows], edges, network.present[rows])
    return stream.on(part)


def draw(table: Table) -> plots.Figure:
    """A bar for each model, and below it a grey one where the paper has a number."""
    figure, ax = bars_beside_paper(table, ("parameters",), "paper")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.set(xlabel="parameters", title=table.title)
    return figure


def bars_beside_paper(
    table: Table, ours: tuple[str, ...], paper: str, *, scale: float = 1.0
) -> tuple[plots.Figure, plots.Axes]:
    """A bar for each model, and the paper's below it in grey; `ours` is its column, or those of value, low and high."""
    bars: list[tuple[str, list[Cell]]] = []
    for row in table.rows:
        bars.append((str(row["model"]), [row[column] for column in ours]))
        if row[paper] is not None:
            bars.append((IN_PAPER, [row[paper], None, None][: len(ours)]))
    names = [name for name, _ in bars]
    figure, (ax,) = plots.figure(7.0, 0.6 + 0.36 * len(names))
    colours = [PAPER_COLOUR if name == IN_PAPER else plots.look(name)[0] for name in names]
    numbers = scale * np.array([cells for _, cells in bars], float)  # None becomes NaN
    plots.bars(ax, names, numbers[:, 0], **dict(zip(("low", "high"), numbers.T[1:], strict=False)), colours=colours)
    return figure, ax
