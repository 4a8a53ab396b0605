"""Import large invented maps and see that memory grows with the roads, not with the file.

    python benchmarks/osm_memory.py [RESULTS]

Two .osm.pbf files are written with the same road network: one of roads alone, one with three times as many nodes of
buildings and land use, as extracts have them. Each is imported in a process of its own. The file written is
RESULTS/osm-memory.json: seconds of the clock and of all cores, and the most memory that the process ever held. Node ids
are spread as widely as OpenStreetMap's are.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIDE = 388  # crossings along a side of the town: 2 * 388 * 387 = 300,312 ways
BENDS = 3  # nodes of a way between its crossings
OTHER_NODES = (0, 2_950_000)  # beside a million of the roads: the larger file has 4 million
CORNERS = 5  # of a building, which are those other nodes
BUILDINGS_PER_AREA = 10  # of which one relation of land use is made
CROSSINGS_PER_RESTRICTION = 50
APART_DEG = 0.001
CROOKED_DEG = 0.0002  # a map is not a grid, and packs less well
SEED = 0
LAST_ID = 12_000_000_000  # OpenStreetMap's newest nodes have such ids


def main() -> None:
    if sys.argv[1:2] == ["--import"]:
        print(json.dumps(imported(sys.argv[2])))
        return
    from frigate.training.environment import environment

    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results"
    result = {
        "command": " ".join(["python benchmarks/osm_memory.py", *(Path(word).name for word in sys.argv[1:])]),
        "what": "one road network alone and in a file of much else: seconds and peak memory of import_osm",
        **environment("cpu"),
        "load_average": round(os.getloadavg()[0], 1),
        "seed": SEED,
        "runs": [measured(others) for others in OTHER_NODES],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "osm-memory.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["runs"], indent=1))


def measured(others: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "town.osm.pbf"
        written = write_town(path, others)
        child = [sys.executable, __file__, "--import", str(path)]
        done = subprocess.run(child, capture_output=True, text=True, check=True)
        return {**written, "file_mib": round(path.stat().st_size / 2**20, 1), **json.loads(done.stdout)}


def imported(path: str) -> dict[str, Any]:
    """What the import took, and gave. The memory before it is that of Python and its packages."""
    from frigate.sources.osm.importer import import_osm

    before = peak_mib()
    began = time.perf_counter()
    busy = time.process_time()
    city = import_osm(path)
    taken_s = time.perf_counter() - began
    cpu_s = time.process_time() - busy
    return {
        "seconds": round(taken_s, 1),
        "cpu_seconds": round(cpu_s, 1),
        "peak_before_mib": before,
        "peak_mib": peak_mib(),
        "intersections": city.network.num_nodes,
        "roads": city.network.num_edges,
        "forbidden_turns": len(city.forbidden_turns),
    }


def peak_mib() -> int:
    """Of this process alone, in contrast to getrusage, which keeps what its parent had before it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


# The map


def write_town(path: Path, others: int) -> dict[str, int]:
    import osmium

    streets = list(town_streets())
    rng = random.Random(SEED)
    roads = SIDE * SIDE + BENDS * len(streets)
    apart = LAST_ID // (roads + others)
    node = osmium.osm.mutable.Node
    way = osmium.osm.mutable.Way
    relation = osmium.osm.mutable.Relation

    def node_id(k: int) -> int:
        """Of the k-th node of the roads: the other nodes lie evenly between them."""
        return 1 + apart * (k + k * others // roads)

    with osmium.SimpleWriter(str(path), overwrite=True) as writer:
        corners = array("q")
        for k, place in enumerate(road_places(streets)):
            writer.add_node(node(id=node_id(k), location=place))
            for at in range(node_id(k) + apart, node_id(k + 1), apart):
                writer.add_node(node(id=at, location=(place[0] + rng.random() / 1000, place[1])))
                corners.append(at)
        for i, (a, b) in enumerate(streets):
            first = SIDE * SIDE + BENDS * i
            ends = [node_id(a), *(node_id(first + j) for j in range(BENDS)), node_id(b)]
            kind = "primary" if a % 10 == 0 else "residential"
            writer.add_way(way(id=i + 1, nodes=ends, tags={"highway": kind, "name": f"Street {a % SIDE}"}))
        buildings = len(corners) // CORNERS
        for i in range(buildings):
            ring = corners[i * CORNERS : (i + 1) * CORNERS].tolist()
            tags = {"building": "yes", "addr:housenumber": str(i % 200)}
            writer.add_way(way(id=len(streets) + i + 1, nodes=[*ring, ring[0]], tags=tags))
        areas = buildings // BUILDINGS_PER_AREA
        for i in range(areas):
            of = range(i * BUILDINGS_PER_AREA, (i + 1) * BUILDINGS_PER_AREA)
            members = [("w", len(streets) + j + 1, "outer") for j in of]
            tags = {"type": "multipolygon", "landuse": "residential"}
            writer.add_relation(relation(id=i + 1, members=members, tags=tags))
        into = {b: i + 1 for i, (_, b) in enumerate(streets)}  # a way that ends at a crossing, one that begins there
        out = {a: i + 1 for i, (a, _) in enumerate(streets)}
        turns = [c for c in range(0, SIDE * SIDE, CROSSINGS_PER_RESTRICTION) if c in into and c in out]
        for i, c in enumerate(turns):
            members = [("w", into[c], "from"), ("n", node_id(c), "via"), ("w", out[c], "to")]
            tags = {"type": "restriction", "restriction": "no_left_turn"}
            writer.add_relation(relation(id=areas + i + 1, members=members, tags=tags))
    return {
        "nodes": roads + len(corners),
        "road_nodes": roads,
        "ways": len(streets) + buildings,
        "road_ways": len(streets),
        "relations": areas + len(turns),
        "restrictions": len(turns),
    }


def town_streets() -> Iterator[tuple[int, int]]:
    """The crossings at the ends of each street of a grid."""
    for y in range(SIDE):
        for x in range(SIDE):
            here = y * SIDE + x
            if x + 1 < SIDE:
                yield here, here + 1
            if y + 1 < SIDE:
                yield here, here + SIDE


def road_places(streets: list[tuple[int, int]]) -> Iterator[tuple[float, float]]:
    """Longitude and latitude: the crossings, then the bends of each street."""

    rng = random.Random(SEED)

    def place(crossing: int, other: int, share: float) -> tuple[float, float]:
        (y, x) = divmod(crossing, SIDE)
        (v, u) = divmod(other, SIDE)
        lon = 6 + APART_DEG * (x + share * (u - x))
        lat = 49 + APART_DEG * (y + share * (v - y))
        return lon + CROOKED_DEG * rng.random(), lat + CROOKED_DEG * rng.random()

    for crossing in range(SIDE * SIDE):
        yield place(crossing, crossing, 0)
    for a, b in streets:
        for j in range(BENDS):
            yield place(a, b, (j + 1) / (BENDS + 1))


if __name__ == "__main__":
    main()
