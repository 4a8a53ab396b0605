"""A forecast of all nodes and a training step on a CPU, the usual way and ours, and a tick, in the same run.

    python benchmarks/forecast_cpu.py [RESULTS]

A Chengdu-sized network (3,192 nodes, 7,269 roads) is generated. The usual way is the same model with gather and
index_add_ in its layers, an LSTM cell in its decoder, and gates made anew at each call. A tick is a push of one
snapshot and the forecast after it; readings come in as an array on the host, and the forecast goes out as one. A step
is forward, loss, backward, clipping and optimiser. All run in turn; ratios are of medians.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

from frigate.batch import Windows
from frigate.checkpoint import Progress, Run, build_model
from frigate.city import City
from frigate.config import preset
from frigate.kept import build_topologies, fit_kept
from frigate.network import Edges, RoadNetwork, clean_edges, haversine_m
from frigate.nn.choice import kernels
from frigate.nn.frigate import Frigate
from frigate.roads import FEATURES
from frigate.split import make_split
from frigate.stream import make_stream
from frigate.tick import Live

NODES, ROADS, SEED = 3_192, 7_269, 0
REPEATS, WARM, FIRST = 15, 3, 200
STEP_WINDOWS, STEP_REPEATS = 4, 5  # the usual way takes much memory for each window


def network(rng: np.random.Generator) -> RoadNetwork:
    """Random places, each joined to near ones, with as many roads as asked for."""
    from scipy.spatial import cKDTree

    lon, lat = 104.0 + rng.uniform(0, 0.3, NODES), 30.6 + rng.uniform(0, 0.3, NODES)
    _, near = cKDTree(np.stack([lon, lat], 1)).query(np.stack([lon, lat], 1), k=4)
    senders, receivers = np.repeat(np.arange(NODES), 3), near[:, 1:].ravel()
    chosen = np.sort(rng.permutation(len(senders))[:ROADS])
    senders, receivers = senders[chosen], receivers[chosen]
    length_m = haversine_m(lon[senders], lat[senders], lon[receivers], lat[receivers])
    edges, _ = clean_edges(Edges.of(senders, receivers, length_m))
    return RoadNetwork(np.arange(NODES), lon, lat, edges)


def invented_run(name: str) -> Run:
    """A run of untrained weights: the time does not depend on them."""
    rng = np.random.default_rng(SEED)
    settings, roads = preset(name), network(rng)
    values = rng.poisson(4, (300, NODES)).astype(np.float32)
    stream = make_stream(values, roads, start_s=1_700_000_000, step_s=300, quantity="speed")  # not clamped at 0
    split = make_split(stream, seen=0.5, seed=SEED)
    features = rng.normal(size=(NODES, len(FEATURES))).astype(np.float32)
    raw = features if name == "default" else None
    kept = fit_kept(stream, split, settings.model, features=raw, seed=SEED)
    torch.manual_seed(SEED)
    model = build_model(settings, kept).eval()
    return Run(model, settings, kept, split, City("Random", stream, road_features=(features,)), None, Progress())


def measure(name: str) -> dict[str, float]:
    run = invented_run(name)
    return {**measure_forecast(run), **measure_step(run)}


@torch.inference_mode()
def measure_forecast(run: Run) -> dict[str, float]:
    model, stream = run.model, run.city.stream
    assert isinstance(model, Frigate)
    windows, inputs = cut(run)
    fixed = [model.fixed(topology) for topology in windows.topologies]
    live = Live(run, stream.network, sensors=run.split.seen, device="cpu")
    live.push(int(stream.times_s[FIRST - 12]), stream.values[FIRST - 12 : FIRST], stream.observed[FIRST - 12 : FIRST])
    live.forecast()
    seconds: dict[str, list[float]] = {"usual": [], "full": [], "tick": []}
    for repeat in range(WARM + REPEATS):
        now = FIRST + repeat
        batch = windows.batch(np.array([now]), past=12, horizon=12, inputs=inputs)

        def usual(batch=batch) -> np.ndarray:
            with kernels("reference"):
                return model(batch)[0].double().numpy()

        def full(batch=batch) -> np.ndarray:
            return model(batch, fixed)[0].double().numpy()

        def tick(now=now) -> np.ndarray:
            live.push(int(stream.times_s[now]), stream.values[now], stream.observed[now])
            return live.forecast().values

        made = {}
        for variant, function in (("usual", usual), ("full", full), ("tick", tick)):
            began = time.perf_counter()
            made[variant] = function()
            if repeat >= WARM:
                seconds[variant].append(time.perf_counter() - began)
        for variant in ("full", "tick"):
            np.testing.assert_allclose(made[variant], made["usual"], rtol=1e-4, atol=1e-4)
    assert live.encoded == 12 + WARM + REPEATS
    median = {variant: statistics.median(times) for variant, times in seconds.items()}
    return {
        **{f"{variant}_s": round(value, 4) for variant, value in median.items()},
        "usual_to_full": round(median["usual"] / median["full"], 2),
        "full_to_tick": round(median["full"] / median["tick"], 2),
        "usual_to_tick": round(median["usual"] / median["tick"], 2),
    }


def cut(run: Run) -> tuple[Windows, torch.Tensor]:
    """The windows of a run's stream, and the nodes that are read [N]."""
    features = run.city.road_features if run.kept.roads is not None else None
    topologies, _ = build_topologies(run.city.stream.topologies, run.kept, sensors=run.split.seen, features=features)
    return Windows(run.city.stream, topologies), torch.from_numpy(run.split.seen)


def measure_step(run: Run) -> dict[str, float]:
    windows, inputs = cut(run)
    batch = windows.batch(np.arange(FIRST, FIRST + STEP_WINDOWS), past=12, horizon=12, inputs=inputs)
    model = run.model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def step() -> float:
        torch.manual_seed(SEED)
        optimiser.zero_grad(set_to_none=True)
        loss = (model(batch) - batch.target).abs().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        return float(loss.detach())

    seconds: dict[str, list[float]] = {"reference": [], "auto": []}
    for repeat in range(1 + STEP_REPEATS):
        losses = []
        for choice, times in seconds.items():
            with kernels(choice):
                began = time.perf_counter()
                losses.append(step())
                if repeat:
                    times.append(time.perf_counter() - began)
        # Not closer: dropout draws in the order of memory, and theirs differs.
        np.testing.assert_allclose(losses[0], losses[1], rtol=0.02)
    usual, ours = (statistics.median(times) for times in seconds.values())
    return {"step_usual_s": round(usual, 3), "step_s": round(ours, 3), "usual_to_step": round(usual / ours, 2)}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results"
    result = {
        "command": "python benchmarks/forecast_cpu.py",
        "what": "all nodes, T = H = 12, fp32; median seconds of a full forecast the usual way, of ours, of a tick, and "
        f"of a training step of {STEP_WINDOWS} windows the usual way and ours",
        "nodes": NODES,
        "roads": network(np.random.default_rng(SEED)).num_edges,
        "repeats": REPEATS,
        "step_windows": STEP_WINDOWS,
        "step_repeats": STEP_REPEATS,
        "seed": SEED,
        "threads": torch.get_num_threads(),
        "hardware": platform.machine(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "presets": {name: measure(name) for name in ("paper", "default")},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "forecast-cpu.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["presets"]))


if __name__ == "__main__":
    main()
