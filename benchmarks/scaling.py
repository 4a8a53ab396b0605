"""What positions, road features, the nearest sensors, a forecast and a training step cost against the network's size.

    python benchmarks/scaling.py [--results RESULTS] [--images IMAGES] [--sizes NODES ...]

Generated networks of 1,000 to 1,000,000 nodes, a tenth of them with sensors, each in a process of its own: T = H = 12,
fp32, both presets at their own sizes. A forecast is of all nodes from one window, with activations of 4 GiB at most. A
training step is one window at every sensor: forward, loss, backward, clipping and the optimiser once for each part of
the network, of some 10,000 nodes. CPU seconds are those of all threads; peak memory is that of the whole process in the
stage, with all that it holds by then: the network, its features and its topology.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from features import streets
from numpy.typing import NDArray

from frigate.calendar import wall_clock
from frigate.city.network import RoadNetwork
from frigate.config import Settings, preset
from frigate.nn.batch import Batch
from frigate.nn.forecast_model import ForecastModel
from frigate.nn.partition import cut_parts
from frigate.nn.predictor import Predictor
from frigate.nn.scaling import Scaling, build_topologies
from frigate.nn.topology import Topology
from frigate.roads.areas import split_into_areas
from frigate.roads.betweenness import threads
from frigate.roads.features import fit_feature_scaling, road_features
from frigate.roads.positions import choose_anchors, distances_m, position_scale_m, positions
from frigate.training.environment import environment
from frigate.training.run import build_model

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 1_000_000)
PRESETS = ("paper", "default")
SEED = 0
PAST = HORIZON = 12
SENSORS = 0.1  # of the nodes
PART_NODES = 10_000  # in a training step, the halo not counted
LIMIT_GB = 4.0  # for the activations of a forecast
STAGES = {  # in the order of the figure
    "positions": "positions (16 anchors)",
    "features": "road features",
    "topology": "nearest sensors and topology",
    "forecast_paper": "forecast, paper",
    "forecast_default": "forecast, default",
    "step_paper": "training step, paper",
    "step_default": "training step, default",
}
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")  # Okabe and Ito's
MARKERS = "osD^vP*"


def measured(stages: dict[str, Any], name: str, work: Callable[[], Any], *, repeats: int = 1) -> Any:
    """Do the work; keep the median seconds, and the most memory that the process had meanwhile."""
    clear_peak()
    seconds = []
    for _ in range(repeats):
        wall = time.perf_counter()
        cpu = time.process_time()
        made = work()
        seconds.append((time.perf_counter() - wall, time.process_time() - cpu))
    wall, cpu = np.median(seconds, axis=0).tolist()
    stages[name] = {"wall_s": round(wall, 4), "cpu_s": round(cpu, 4), "peak_gb": round(peak_gb(), 3)}
    print(name, json.dumps(stages[name]), file=sys.stderr, flush=True)
    return made


def clear_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak starts anew from what is held now


def peak_gb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 2**20


def fit(network: RoadNetwork, features: NDArray[np.float32]) -> dict[str, Scaling]:
    """What training would keep, without readings."""
    anchors = choose_anchors(network, seed=SEED)
    scaling = fit_feature_scaling(features, np.flatnonzero(network.present))
    scale_m = position_scale_m(distances_m(network, anchors))
    both = Scaling(
        value_offset=0.0,
        value_scale=4.0,
        length_scale_m=float(np.median(network.length_m)),
        position_scale_m=scale_m,
        anchors=anchors,
        roads=scaling,
    )
    return {"both": both, "paper": replace(both, roads=None), "default": replace(both, anchors=None)}


def window(topology: Topology, sensors: NDArray[np.bool_]) -> Batch:
    rng = np.random.default_rng(SEED)
    N = len(sensors)
    times_s = 3600 * np.arange(PAST + HORIZON)
    known = torch.from_numpy(wall_clock(times_s))[None]
    observed = torch.from_numpy(np.tile(sensors, (PAST, 1)))[None]
    target = torch.from_numpy(rng.poisson(4.0, (1, HORIZON, N)).astype(np.float32))
    values = torch.from_numpy(rng.poisson(4.0, (1, PAST, N)).astype(np.float32)) * observed
    return Batch(
        values=values,
        observed=observed,
        time_past=known[:, :PAST],
        time_future=known[:, PAST:],
        topologies=(topology,),
        topology_of=torch.zeros(1, PAST, dtype=torch.long),
        target=target,
        target_observed=torch.from_numpy(np.tile(sensors, (HORIZON, 1)))[None],
    )


def model_of(settings: Settings, scaling: Scaling) -> ForecastModel:
    torch.manual_seed(SEED)
    return build_model(settings, scaling)


@torch.inference_mode()
def forecast(model: ForecastModel, network: RoadNetwork, batch: Batch) -> None:
    values = Predictor(model, network, torch.device("cpu"), memory_gb=LIMIT_GB)(batch)
    assert values.shape == (1, HORIZON, network.num_nodes) and bool(torch.isfinite(values).all())


def train(model: ForecastModel, network: RoadNetwork, batch: Batch, sensors: NDArray[np.bool_]) -> None:
    """The window at all sensors: part by part, a step of the optimiser each."""
    reach = model.train().reach
    assert reach is not None and batch.target_observed is not None
    rows = np.flatnonzero(sensors)
    cells = batch.target_observed.sum()
    areas = split_into_areas(network.lon[rows], network.lat[rows], math.ceil(network.num_nodes / PART_NODES))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for part in cut_parts(batch.topologies, [rows[area] for area in areas], reach):
        mine = part.of(batch)
        assert mine.target is not None and mine.target_observed is not None
        optimiser.zero_grad(set_to_none=True)
        error = (model.forecast_at(mine, slice(len(part.core))) - mine.target).abs() * mine.target_observed
        (error.sum() * len(areas) / cells).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()


def measure(size: int) -> dict[str, Any]:
    """All stages of one network, in this process."""
    road_features(streets(100, np.random.default_rng(SEED)))  # compiled before the clock starts
    stages: dict[str, Any] = {}
    repeats = 3 if size <= 10_000 else 1
    network = measured(stages, "network", lambda: streets(size, np.random.default_rng(SEED)))
    sensors = np.random.default_rng(SEED + 1).random(size) < SENSORS

    def place() -> NDArray[np.float32]:
        metres = distances_m(network, choose_anchors(network, seed=SEED))
        return positions(metres, position_scale_m(metres))

    measured(stages, "positions", place, repeats=repeats)
    features = measured(stages, "features", lambda: road_features(network), repeats=repeats)
    scaling = fit(network, features)
    (topology,), _ = measured(
        stages,
        "topology",
        lambda: build_topologies([network], scaling["both"], sensors=sensors, features=[features]),
        repeats=repeats,
    )
    without = torch.zeros(size, 0)
    batches = {
        "paper": window(replace(topology, road_features=without), sensors),
        "default": window(replace(topology, positions=without), sensors),
    }
    models = {name: model_of(preset(name), scaling[name]) for name in PRESETS}
    for name in PRESETS:
        forecast_it = partial(forecast, models[name], network, batches[name])
        measured(stages, f"forecast_{name}", forecast_it, repeats=repeats)
    for name in PRESETS:
        train_it = partial(train, models[name], network, batches[name], sensors)
        measured(stages, f"step_{name}", train_it, repeats=repeats)
    return {
        "nodes": size,
        "roads": network.num_edges,
        "load": round(os.getloadavg()[0], 1),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "not set"),
        "stages": stages,
    }


def exponents(rows: list[dict[str, Any]]) -> dict[str, float]:
    """b of the best a * nodes ** b to the CPU seconds of each stage; 1 is linear."""
    nodes = np.log([row["nodes"] for row in rows])
    return {
        stage: round(float(np.polyfit(nodes, np.log([row["stages"][stage]["cpu_s"] for row in rows]), 1)[0]), 3)
        for stage in STAGES
    }


def draw(result: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = result["sizes"]
    nodes = [row["nodes"] for row in rows]
    figure, (time_axes, memory_axes) = plt.subplots(1, 2, figsize=(11, 5.2), layout="constrained")
    for (stage, label), colour, marker in zip(STAGES.items(), COLOURS, MARKERS, strict=True):
        style = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.4}
        power = result["exponent"][stage]
        time_axes.plot(nodes, [row["stages"][stage]["cpu_s"] for row in rows], label=f"{label}: {power:.2f}", **style)
        memory_axes.plot(nodes, [row["stages"][stage]["peak_gb"] for row in rows], label=label, **style)
    last = rows[-1]["stages"]["positions"]["cpu_s"]
    time_axes.plot(nodes, [last * n / nodes[-1] / 3 for n in nodes], "k:", linewidth=1, label="linear: 1")
    memory_axes.axhline(16, color="k", linestyle=":", linewidth=1)
    memory_axes.text(nodes[0], 15.7, "16 GiB", va="top")
    for axes in (time_axes, memory_axes):
        axes.set_xscale("log")
        axes.set_xlabel("nodes")
        axes.grid(True, which="major", alpha=0.3)
    time_axes.set_yscale("log")
    time_axes.set_ylabel("CPU seconds, all threads")
    memory_axes.set_ylabel("peak memory of the process, GiB")
    memory_axes.set_ylim(0, 17)
    handles, labels = time_axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, title="exponent of the fit to time")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--images", type=Path, default=Path(__file__).parents[1] / "docs" / "images")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="NODES")
    parser.add_argument("--one", type=int, metavar="NODES", help="measure one size in this process and print it")
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(measure(asked.one)))
        return
    file = asked.results / "scaling-cpu.json"
    scaling = json.loads(file.read_text(encoding="utf-8"))["sizes"] if file.exists() else []
    rows = {row["nodes"]: row for row in scaling}  # of sizes that are not asked for
    for size in asked.sizes:
        command = [sys.executable, __file__, "--one", str(size)]
        env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}  # a thread that waits for another is not at work
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
        rows[size] = json.loads(done.stdout)
        result = report([rows[size] for size in sorted(rows)])
        asked.results.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    draw(result, asked.images / "scaling.png")


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "command": "python benchmarks/scaling.py",
        **environment("cpu"),
        "what": "seconds and peak memory (GiB) against the number of nodes; exponent: of nodes in CPU seconds",
        "task": {"past": PAST, "horizon": HORIZON, "windows": 1, "sensors": SENSORS},
        "forecast_limit_gb": LIMIT_GB,
        "part_nodes": PART_NODES,
        "seed": SEED,
        "threads": {"torch": torch.get_num_threads(), "numba": threads()},
        "exponent": exponents(rows) if len(rows) > 1 else {},
        "sizes": rows,
    }


if __name__ == "__main__":
    main()
