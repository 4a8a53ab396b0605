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
from frigate.experiments.table import Row, Table, number_or
from frigate.nn.scaling import fit_scaling
from frigate.training.run import build_model

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
    rows: list[Row] = []
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


def draw(table: Table) -> plots.Figure:
    """A bar for each model, and below it a grey one where the paper has a number."""
    figure, ax = bars_beside_paper(table, "parameters", "paper")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    plots.label(ax, x="parameters", y="", title=table.title)
    return figure


def bars_beside_paper(
    table: Table, ours: str, paper: str, *, low: str = "", high: str = "", scale: float = 1.0
) -> tuple[plots.Figure, plots.Axes]:
    """A bar for each model, with whiskers where their columns are named, and the paper's below it in grey."""
    bars: list[tuple[str, list[float]]] = []
    for row in table.rows:
        ends = [row[ours], row[low or ours], row[high or ours]]
        bars.append((str(row["model"]), [scale * number_or(0, end) for end in ends]))
        if row[paper] is not None:
            bars.append((IN_PAPER, [scale * number_or(0, row[paper])] * 3))
    names = [name for name, _ in bars]
    figure, (ax, *_) = plots.figure(7.0, 0.6 + 0.36 * len(names))
    colours = [PAPER_COLOUR if name == IN_PAPER else plots.colour(name) for name in names]
    values, lows, highs = ([ends[k] for _, ends in bars] for k in range(3))
    plots.bars(ax, names, values, low=lows if low else None, high=highs if high else None, colours=colours)
    return figure, ax
