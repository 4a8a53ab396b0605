"""Hand-written parts beside the libraries that could replace them: betweenness and igraph, the road grid and shapely.

    python benchmarks/libraries.py DATA [RESULTS]

DATA holds sf-taxi-core, sf-taxi, bayarea-osm-network and sf-streets-traces. The file written is RESULTS/libraries.json.
Times are seconds of CPU, of all threads together, the best of several, after compiling.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import igraph
import numpy as np
import polars as pl
import shapely

from frigate.city.network import RoadNetwork
from frigate.reading.notices import Notices
from frigate.roads.betweenness import local_betweenness, whole_betweenness
from frigate.roads.features import LOCAL_M
from frigate.roads.geometry import Projection
from frigate.sources.tables.importer import import_tables
from frigate.sources.traces.matching import INSIDE_M
from frigate.sources.traces.road_index import build_grid, find_candidates
from frigate.training.environment import environment

REPEATS = 3
RADIUS_M = 50.0
MAX_EXACT = 15_000  # nodes; the exact betweenness of more takes too long to compare with


def cpu_s(act: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, Any]:
    times = []
    for _ in range(repeats):
        begun = time.process_time()
        found = act()
        times.append(time.process_time() - begun)
    return round(min(times), 3), found


def compare(what: str, ours: tuple[float, Any], theirs: tuple[float, Any], difference: float | None) -> dict[str, Any]:
    row = {"what": what, "ours_cpu_s": ours[0], "library_cpu_s": theirs[0], "largest_difference": difference}
    print(row, flush=True)
    return row


def betweenness(name: str, network: RoadNetwork) -> list[dict[str, Any]]:
    cost = np.rint(network.length_m * 100)
    graph = igraph.Graph(network.num_nodes, np.stack([network.senders, network.receivers], 1), directed=True)
    local_betweenness(network, cost, cutoff=100.0)  # compiles
    rows = []

    def apart(a: Any, b: Any) -> float:
        return float((np.abs(np.asarray(a) - np.asarray(b)) / np.maximum(1.0, np.asarray(a))).max())

    cutoff = LOCAL_M * 100
    ours = cpu_s(lambda: local_betweenness(network, cost, cutoff=cutoff))
    theirs = cpu_s(lambda: graph.betweenness(directed=True, weights=cost, cutoff=cutoff))
    rows.append(compare(f"{name}: within {LOCAL_M:g} m", ours, theirs, apart(ours[1], theirs[1])))
    if network.num_nodes <= 5000:
        ours = cpu_s(lambda: whole_betweenness(network, cost).count)
        theirs = cpu_s(lambda: graph.betweenness(directed=True, weights=cost), 1)
        rows.append(compare(f"{name}: all pairs", ours, theirs, apart(ours[1], theirs[1])))
        return rows
    ours = cpu_s(lambda: whole_betweenness(network, cost).count)
    sources = np.random.default_rng(0).choice(network.num_nodes, 512, replace=False).tolist()
    theirs = cpu_s(lambda: graph.betweenness(directed=True, weights=cost, sources=sources), 1)
    rows.append(compare(f"{name}: 512 searches", ours, theirs, None))
    if network.num_nodes > MAX_EXACT:
        return rows
    scaled = np.asarray(theirs[1]) * (network.num_nodes / len(sources))
    exact = whole_betweenness(network, cost, exact_nodes=network.num_nodes).count
    for whose, found in (("ours", ours[1]), ("igraph", scaled)):
        off = np.log1p(found) - np.log1p(exact)
        print(f"{name}: {whose}, sampled: RMS error of the logarithm {np.sqrt((off**2).mean()):.3f}")
        rows.append({"what": f"{name}: {whose}, sampled, RMS error of log", "error": float(np.sqrt((off**2).mean()))})
    return rows


def candidates(folder: Path) -> list[dict[str, Any]]:
    network = import_tables(edges=folder / "streets.parquet", timezone="America/Los_Angeles").network
    frame = pl.read_parquet(folder / "traces_2008-05-28.parquet")
    plane = Projection.of(network)
    x, y = plane.metres(frame["lon_e5"].to_numpy() / 1e5, frame["lat_e5"].to_numpy() / 1e5)
    build = cpu_s(lambda: build_grid(network, plane, radius_m=RADIUS_M, margin_m=INSIDE_M, notices=Notices()))
    grid = build[1]
    find_candidates(grid, x[:10], y[:10], RADIUS_M, INSIDE_M)  # compiles
    pieces = np.stack([grid.piece_x_m, grid.piece_y_m], 1)
    ends = pieces + np.stack([grid.piece_dx_m, grid.piece_dy_m], 1)
    tree_s, tree = cpu_s(lambda: shapely.STRtree(shapely.linestrings(np.stack([pieces, ends], 1))))
    ours = cpu_s(lambda: find_candidates(grid, x, y, RADIUS_M, INSIDE_M))

    def theirs() -> Any:
        """The pairs alone: the nearest piece of each road, the sixteen nearest and their offsets would come on top."""
        points = shapely.points(x, y)
        at, piece = tree.query(points, predicate="dwithin", distance=RADIUS_M)
        return at, piece, shapely.distance(points[at], tree.geometries[piece])

    found = cpu_s(theirs)
    nearest = np.full(len(x), np.inf)
    np.minimum.at(nearest, found[1][0], found[1][2])
    held = ours[1]
    some = held.number > 0
    mine = np.where(np.arange(held.road.shape[1]) < held.number[:, None], held.distance_m, np.inf).min(axis=1)
    apart = float(np.abs(mine[some] - nearest[some]).max()) if (some == np.isfinite(nearest)).all() else float("inf")
    print(f"grid laid in {build[0]} s, tree built in {tree_s} s, of {len(pieces):,} pieces")
    return [compare(f"roads within {RADIUS_M:g} m of {len(x):,} positions", ours, found, apart)]


def main() -> None:
    data = Path(sys.argv[1])
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent / "results"
    rows = candidates(data / "sf-streets-traces")
    for name in ("sf-taxi-core", "sf-taxi", "bayarea-osm-network"):
        names = {"src": "source", "dst": "target"}
        nodes, edges = (data / name / f"{what}.parquet" for what in ("nodes", "edges"))
        rows += betweenness(name, import_tables(nodes=nodes, edges=edges, rename=names).network)
    result = {
        "command": "python benchmarks/libraries.py DATA",
        "what": "seconds of CPU of all threads together, the best of several, after compiling",
        **environment("cpu"),
        "libraries": {name: version(name) for name in ("igraph", "shapely", "numba")},
        "rows": rows,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "libraries.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
