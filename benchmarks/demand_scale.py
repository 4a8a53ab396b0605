"""What demand costs against the network's size, and in whole on one network.

    python benchmarks/demand_scale.py RESULTS.json [--network FOLDER] [--sizes NODES ...]

Generated networks, a tenth of their nodes with sensors, each in a process of its own: one route set is searched, its
matrices made, and its trip numbers calibrated; `estimate_demand` makes 16 of them. FOLDER has nodes.parquet (lon, lat)
and edges.parquet (src, dst, length_m, speed_mph): there everything is done, from choosing the searches to the flow of
every node and road. Counts are made up: Poisson, of trips from another search. CPU seconds are those of all threads.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from features import streets
from numpy.typing import NDArray

from frigate.city.city import City
from frigate.city.network import Edges, RoadNetwork, clean_edges
from frigate.city.stream import make_stream
from frigate.demand.calibration import SensorView, first_numbers, route_set
from frigate.demand.route_search import SearchSettings, search_routes
from frigate.demand.settings import DemandSettings, num_searches
from frigate.demand.trip_model import estimate_demand
from frigate.demand.tuning import choose_settings
from frigate.reading.files import write_file
from frigate.roads.line_graph import line_graph
from frigate.training.environment import environment

SIZES = (3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
SENSORS = 0.1
STEP_S = 3600
DAYS = 7
MEAN_COUNT = 60.0
TRUTH = SearchSettings(turn_s=30.0, noise=0.3)
KPH_PER_MPH = 1.609344


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--network", type=Path)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(
            json.dumps(
                one_set(streets(args.one, np.random.default_rng(0))) if args.one else whole(read_network(args.network))
            )
        )
        return
    found: dict[str, Any] = {
        "command": f"python benchmarks/demand_scale.py {args.results.name}",
        **environment("cpu"),
        "sensors": SENSORS,
        "one route set": {str(nodes): in_process(nodes, args) for nodes in args.sizes},
    }
    if args.network is not None:
        found["command"] += f" --network {args.network.name}"
        found["whole"] = {args.network.name: in_process(0, args)}
    write_file(args.results, json.dumps(found, indent=1) + "\n")


def in_process(nodes: int, args: argparse.Namespace) -> dict[str, Any]:
    extra = [] if args.network is None else ["--network", str(args.network)]
    done = subprocess.run(
        [sys.executable, __file__, str(args.results), "--one", str(nodes), *extra],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    made: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(nodes or args.network.name, made, flush=True)
    return made


def read_network(folder: Path) -> RoadNetwork:
    nodes, edges = (pl.read_parquet(folder / f"{name}.parquet") for name in ("nodes", "edges"))
    roads = Edges.of(
        edges["src"].to_numpy(),
        edges["dst"].to_numpy(),
        edges["length_m"].to_numpy(),
        speed_kph=edges["speed_mph"].to_numpy() * KPH_PER_MPH,
    )
    return RoadNetwork(np.arange(len(nodes)), nodes["lon"].to_numpy(), nodes["lat"].to_numpy(), clean_edges(roads)[0])


def made_up(network: RoadNetwork) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """[N] a mean count for every node, and which nodes have sensors."""
    rng = np.random.default_rng(0)
    graph = line_graph(network)
    trips = route_set(graph, search_routes(graph, TRUTH, searches=num_searches(graph), seed=99))
    flow = trips.through_node.T @ rng.gamma(1, 1, len(trips.routes))
    return MEAN_COUNT * flow / flow.mean(), rng.random(network.num_nodes) < SENSORS


def one_set(network: RoadNetwork) -> dict[str, Any]:
    counts, sensors = made_up(network)  # compiles too
    graph = line_graph(network)
    settings = DemandSettings()
    times: dict[str, Any] = {"nodes": network.num_nodes, "roads": network.num_edges, "searches": num_searches(graph)}
    routes = timed(
        times, "search", lambda: search_routes(graph, SearchSettings(), searches=num_searches(graph), seed=1)
    )
    trips = timed(times, "matrices", lambda: route_set(graph, routes))
    view = SensorView.of(trips.through_node, sensors)
    wanted = counts[sensors, None]
    numbers = timed(
        times,
        "calibrate",
        lambda: view.calibrate(first_numbers(view, wanted), wanted, iterations=settings.iterations, hold=settings.hold),
    )
    assert np.isfinite(numbers).all()
    return times | {"trips": len(routes), "roads_per_trip": round(len(routes.roads) / len(routes), 1), **peak()}


def whole(network: RoadNetwork) -> dict[str, Any]:
    counts, sensors = made_up(network)
    hours = 0.3 + 1.4 * np.sin(np.pi * (np.arange(24 * DAYS) % 24) / 24)[:, None] ** 2
    values = np.random.default_rng(1).poisson(hours * counts).astype(np.float32)
    stream = make_stream(values, network, start_s=1_699_833_600, step_s=STEP_S, quantity="count")
    times: dict[str, Any] = {"nodes": network.num_nodes, "roads": network.num_edges}
    settings = timed(times, "choose", lambda: choose_settings(stream, sensors))
    demand = timed(times, "estimate", lambda: estimate_demand(City("roads", stream), sensors, settings=settings))
    timed(times, "roads", lambda: demand.road_flow)
    level = demand.node_flow.mean(0)
    usual = values.mean(0)
    error = float(np.abs(level - usual)[~sensors].mean() / usual[~sensors].mean())
    return times | {"error_at_unseen": round(error, 4), **peak()}


def timed(times: dict[str, Any], what: str, call: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    cpu = time.process_time()
    made = call()
    times |= {
        f"{what}_s": round(time.perf_counter() - began, 2),
        f"{what}_cpu_s": round(time.process_time() - cpu, 2),
    }
    return made


def peak() -> dict[str, float]:
    return {"peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)}


if __name__ == "__main__":
    main()
