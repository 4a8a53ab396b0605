"""All-node forecast of one window on a CPU: the CSR sum against gather and index_add_, in the same run.

    python benchmarks/forecast_cpu.py [RESULTS]

A Chengdu-sized network (3,192 nodes, 7,269 roads) is generated. Both variants run in turn; the ratio is of medians.
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

from frigate.batch import Batch, Windows
from frigate.config import preset
from frigate.kept import build_topologies, fit_kept
from frigate.network import Edges, RoadNetwork, clean_edges, haversine_m
from frigate.nn import aggregate, gated_conv
from frigate.nn.frigate import Frigate, default, paper
from frigate.roads import FEATURE_WIDTH, FEATURES
from frigate.split import make_split
from frigate.stream import make_stream

NODES, ROADS, REPEATS, SEED = 3_192, 7_269, 15, 0


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


def window(name: str, rng: np.random.Generator) -> tuple[Frigate, Batch]:
    settings = preset(name).model
    values = rng.poisson(4, (300, NODES)).astype(np.float32)
    stream = make_stream(values, network(rng), start_s=1_700_000_000, step_s=300)
    split = make_split(stream, seen=0.5, seed=SEED)
    features = rng.normal(size=(NODES, len(FEATURES))).astype(np.float32) if name == "default" else None
    kept = fit_kept(stream, split, settings, features=features, seed=SEED)
    topologies, _ = build_topologies(stream.topologies, kept, sensors=split.seen, features=[features])
    scales = {"value_offset": 0.0, "value_scale": kept.value_scale, "length_scale_m": kept.length_scale_m}
    torch.manual_seed(SEED)
    model = paper(settings, **scales) if name == "paper" else default(settings, road_features=FEATURE_WIDTH, **scales)
    inputs = torch.from_numpy(split.seen)
    return model.eval(), Windows(stream, topologies).batch(np.array([200]), past=12, horizon=12, inputs=inputs)


@torch.inference_mode()
def measure(name: str) -> dict[str, float]:
    model, batch = window(name, np.random.default_rng(SEED))
    variants = {"csr": aggregate.csr, "index_add": aggregate.reference}
    seconds: dict[str, list[float]] = {variant: [] for variant in variants}
    results = {}
    for repeat in range(REPEATS + 2):
        for variant, function in variants.items():
            gated_conv.gated_messages = function
            began = time.perf_counter()
            results[variant] = model(batch)
            if repeat >= 2:
                seconds[variant].append(time.perf_counter() - began)
    gated_conv.gated_messages = aggregate.gated_messages
    torch.testing.assert_close(results["csr"], results["index_add"], rtol=1e-4, atol=1e-4)
    median = {variant: statistics.median(times) for variant, times in seconds.items()}
    return {
        **{f"{k}_s": round(v, 4) for k, v in median.items()},
        "ratio": round(median["index_add"] / median["csr"], 2),
    }


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results"
    roads = network(np.random.default_rng(SEED)).num_edges
    result = {
        "command": "python benchmarks/forecast_cpu.py",
        "what": "one window, all nodes, T = H = 12, fp32; median seconds, the two variants alternating",
        "nodes": NODES,
        "roads": roads,
        "repeats": REPEATS,
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
