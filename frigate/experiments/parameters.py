"""How many parameters each model has, beside the paper's numbers (tab:params), on two networks of different size."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from frigate.config import BASELINES, PRESETS, Settings, preset
from frigate.data.network import RoadNetwork
from frigate.data.split import Split
from frigate.data.stream import RoadNetworkStream
from frigate.experiments.plan import LABELS, Plan
from frigate.experiments.table import Cell, Table
from frigate.nn.scaling import fit_scaling
from frigate.training.run import build_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = {  # tab:params
    "paper": 198985, "dcrnn": 372353, "stnn": 313906, "graph-wavenet": 247660, "stgode": 558582, "localegn": 333636
}  # fmt: skip
IN_PAPER, PAPER_COLOUR = "in the paper", "#c9ced6"  # the paper's bars
COLUMNS = {
    "model": "with the sizes of its preset",
    "parameters": "numbers that training learns, with the model built for the city",
    "parameters_half": "the same, with the model built for the western half of the city's nodes",
    "paper": "as the paper has it for its own implementation; none where it gives no number",
    "of_paper_percent": "parameters over the paper's, %",
}


def measure(plan: Plan) -> Table:
    """The parameters of every model, built for the city and for half of it."""
    whole = plan.city.stream.slice(0, 1)  # readings do not matter
    half = western_half(whole)
    rows: list[dict[str, Cell]] = []
    for model in plan.wanted(*PRESETS, *BASELINES):
        count, paper = count_parameters(preset(model), whole), PAPER.get(model)
        rows.append(
            {
                "model": LABELS[model],
                "parameters": count,
                "parameters_half": count_parameters(preset(model), half),
                "paper": paper,
                "of_paper_percent": None if paper is None else 100 * count / paper,
            }
        )
    return Table(
        "parameters",
        "Number of parameters",
        rows=rows,
        columns=COLUMNS,
        notes=[
            f"Counted on networks of {whole.num_nodes:,} and {half.num_nodes:,} nodes: a model that depends on the "
            "network would differ.",
            "At the sizes of the presets, also in quick runs. The paper counts the official code of the baselines; "
            "ours are written anew from their papers' equations and adapted to nodes without sensors.",
            "The paper has no number for STGCN, and none for our default preset.",
        ],
    )


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
    row_of = np.full(network.num_nodes, -1)
    row_of[rows] = np.arange(len(rows))
    edges = network.edges.take((row_of[network.senders] >= 0) & (row_of[network.receivers] >= 0))
    edges = replace(edges, senders=row_of[edges.senders], receivers=row_of[edges.receivers])
    part = RoadNetwork(network.node_ids[rows], network.lon[rows], network.lat[rows], edges, network.present[rows])
    return replace(
        stream,
        values=stream.values[:, rows],
        observed=stream.observed[:, rows],
        topologies=(part,),
        topology_of=np.zeros(stream.num_snapshots, np.int64),
    )


def draw(table: Table) -> Figure:
    """A bar for each model, and below it a grey one where the paper has a number."""
    from frigate.experiments import plots

    names, values = beside_paper(table, "parameters", "paper")
    figure, (ax, *_) = plots.figure(7.0, 0.6 + 0.36 * len(names))
    colours = [PAPER_COLOUR if name == IN_PAPER else plots.colour(name) for name in names]
    plots.bars(ax, names, values, colours=colours)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    plots.label(ax, x="parameters", y="", title=table.title)
    return figure


def beside_paper(table: Table, ours: str, paper: str) -> tuple[list[str], list[float]]:
    """Names and values of bars: each model's, and the paper's where there is one."""
    bars: list[tuple[str, Cell]] = []
    for row in table.rows:
        bars.append((str(row["model"]), row[ours]))
        bars += [(IN_PAPER, row[paper])] if row[paper] is not None else []
    return [name for name, _ in bars], [float(value or 0) for _, value in bars]
