"""Road features against the size of the network, and estimated against exact betweenness.

    python benchmarks/features.py [--results RESULTS] [--most NODES] [CITY...]

Generated networks of 1,000 to 1,000,000 nodes (--most leaves out larger ones), then each CITY: a city folder, or one
with nodes.parquet (node_id, lon, lat) and edges.parquet (src, dst, length_m; lanes, speed_mph where known). Exact and
estimated betweenness are compared where it has at most 10,000 nodes. CPU seconds are those of all threads.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from frigate.city.folder import open_city
from frigate.city.network import Edges, RoadNetwork, clean_edges
from frigate.coordinates import haversine_m
from frigate.roads import betweenness
from frigate.roads.betweenness import whole_betweenness
from frigate.roads.features import features_and_notice, travel_time_s
from frigate.training.environment import environment

SIZES = (1_000, 10_000, 100_000, 1_000_000)
COMPARED = 10_000  # nodes: the most for which the exact count is made as well
SEED = 0
SPACING_DEG = 0.001  # about 110 m


def streets(num_nodes: int, rng: np.random.Generator) -> RoadNetwork:
    """A crooked grid: every eighth line a main road, a sixth of the others missing, a fifth of the rest one-way."""
    side = int(np.ceil(np.sqrt(num_nodes)))
    x = np.arange(num_nodes) % side
    y = np.arange(num_nodes) // side
    lon, lat = ((at + rng.uniform(-0.3, 0.3, num_nodes)) * SPACING_DEG for at in (x, y))
    east = np.flatnonzero((x < side - 1) & (np.arange(num_nodes) < num_nodes - 1))
    north = np.arange(num_nodes - side)
    a = np.concatenate([east, north])
    b = np.concatenate([east + 1, north + side])
    main = np.concatenate([y[east] % 8 == 0, x[north] % 8 == 0])
    kept = main | (rng.random(len(a)) > 1 / 6)
    a = a[kept]
    b = b[kept]
    main = main[kept]
    both = main | (rng.random(len(a)) > 1 / 5)
    senders = np.concatenate([a, b[both]])
    receivers = np.concatenate([b, a[both]])
    metres = haversine_m(lon[senders], lat[senders], lon[receivers], lat[receivers])
    words = np.where(np.concatenate([main, main[both]]), "primary", "residential")
    edges, _ = clean_edges(Edges.of(senders, receivers, metres, road_class=words))
    return RoadNetwork(np.arange(num_nodes), lon, lat, edges)


def read(folder: Path) -> RoadNetwork:
    if (folder / "city.toml").is_file() or (folder / "cache.json").is_file():
        return open_city(folder).stream.network
    import polars as pl

    nodes = pl.read_parquet(folder / "nodes.parquet")
    table = pl.read_parquet(folder / "edges.parquet")
    more = {"lanes": table["lanes"].cast(pl.Float64)} if "lanes" in table.columns else {}
    if "speed_mph" in table.columns:
        more["speed_kph"] = table["speed_mph"].cast(pl.Float64) * 1.609344
    edges, _ = clean_edges(Edges.of(table["src"], table["dst"], table["length_m"], **more))
    return RoadNetwork(nodes["node_id"].to_numpy(), nodes["lon"].to_numpy(), nodes["lat"].to_numpy(), edges)


def measure(network: RoadNetwork) -> dict[str, Any]:
    load = os.getloadavg()[0]
    wall = time.perf_counter()
    cpu = time.process_time()
    _, notice = features_and_notice(network)
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    return {
        "nodes": network.num_nodes,
        "roads": network.num_edges,
        "wall_s": round(wall, 2),
        "cpu_s": round(cpu, 2),
        "cpu_s_per_1000_nodes": round(cpu / network.num_nodes * 1000, 3),
        "load_before": round(load, 1),
        "notice": notice,
    }


def compare(network: RoadNetwork) -> dict[str, Any]:
    """Estimated against exact, as counts and as the features made of them: logarithms, in spreads of the exact ones."""

    def feature(count: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log1p(100 * count / count.mean()))

    found = {}
    for name, cost in (("length", network.length_m * 100), ("time", travel_time_s(network) * 1000)):
        whole = np.maximum(np.rint(cost), 1)
        exact = whole_betweenness(network, whole, exact_nodes=network.num_nodes).count
        estimate = whole_betweenness(network, whole, exact_nodes=0)
        assert estimate.samples is not None
        one, other = (feature(sample) for sample in estimate.samples)
        spread = feature(exact).std()
        found[name] = {
            "rank_correlation": round(float(spearmanr(estimate.count, exact).statistic), 4),
            "correlation_of_features": round(float(np.corrcoef(feature(estimate.count), feature(exact))[0, 1]), 4),
            "error_in_spreads": round(
                float(np.sqrt(((feature(estimate.count) - feature(exact)) ** 2).mean())) / spread, 4
            ),
            "error_by_two_samples": round(float(np.sqrt((((one - other) / 2) ** 2).mean()) / spread), 4),
            "sum_over_exact": round(float(estimate.count.sum() / exact.sum()), 4),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cities", nargs="*", type=Path, metavar="CITY")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--most", type=int, default=SIZES[-1], metavar="NODES")
    asked = parser.parse_args()

    measure(streets(100, np.random.default_rng(SEED)))  # compiled before the clock starts
    generated, cities = [], {}
    for size in SIZES:
        if size <= asked.most:
            generated.append(measure(streets(size, np.random.default_rng(SEED))))
            print(json.dumps(generated[-1]), flush=True)
    for folder in asked.cities:
        network = read(folder)
        cities[folder.name] = measure(network)
        if network.num_nodes <= COMPARED:
            cities[folder.name]["estimated_against_exact"] = compare(network)
        print(folder.name, json.dumps(cities[folder.name]), flush=True)
    result = {
        "command": "python benchmarks/features.py " + " ".join(folder.name for folder in asked.cities),
        "what": "all road features of a network once; betweenness exact up to exact_nodes nodes, else from `searches`",
        "exact_nodes": betweenness.EXACT_NODES,
        "searches": betweenness.SAMPLES,
        "seed": SEED,
        **environment("cpu"),
        "threads": betweenness.threads(),
        "generated": generated,
        "cities": cities,
    }
    asked.results.mkdir(parents=True, exist_ok=True)
    (asked.results / "features.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
