"""A small SUMO network and its outputs."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<!-- as SUMO writes it -->\n'


UTM = "+proj=utm +zone=32 +ellps=WGS84 +datum=WGS84 +units=m +no_defs"


JUNCTIONS = {"A": (0, 0), "B": (200, 0), "C": (400, 0), "D": (200, 300), "E": (600, 0)}


ROADS = ("AB", "BA", "BC", "CB", "BD", "DB", "BC2")  # for cars; CE is for buses


def net_xml(*, location: str | None = None, roads: str = "", junctions: str = "") -> str:
    """A on a road of two lanes to B, B to C twice, B to D and back, and a bus road from C to E.

    Lanes begin and end 10 m from the junctions, as SUMO's do; B has a lane inside.
    """
    if location is None:
        location = f'<location netOffset="-285000.00,-5492000.00" convBoundary="0,0,1,1" projParameter="{UTM}"/>'

    def road(name: str, *, lanes: int = 1, speed: float = 13.89, more: str = "", lane_more: str = "") -> str:
        (x, y) = JUNCTIONS[name[0]]
        (u, v) = JUNCTIONS[name[1]]
        length = float(np.hypot(u - x, v - y))
        a = 10 / length
        b = 1 - 10 / length
        shape = " ".join(f"{x + s * (u - x):.2f},{y + s * (v - y):.2f}" for s in (a, b))
        inner = "\n".join(
            f'<lane id="{name}_{i}" speed="{speed}" length="{length - 20:.2f}" shape="{shape}" {lane_more}/>'
            for i in range(lanes)
        )
        return f'<edge id="{name}" from="{name[0]}" to="{name[1]}" priority="1" {more}>\n{inner}\n</edge>\n'

    detour = "200.00,0.00 200.00,-100.00 400.00,-100.00,5.00 400.00,0.00"
    parallel = (
        f'<edge id="BC2" from="B" to="C" type="railway.tram|highway.residential" name="Rue Longue" shape="{detour}">\n'
        f'<lane id="BC2_0" index="0" speed="8.33" length="400.00" shape="{detour}"/>\n</edge>\n'
    )
    inside = (
        '<edge id=":B_0" function="internal"><lane id=":B_0_0" speed="9" length="20" shape="190,0 210,0"/></edge>'
        '<edge id=":B_c0" function="crossing"><lane id=":B_c0_0" speed="1" length="5" shape="1,1 2,2"/></edge>\n'
    )
    links = [
        ("AB", 0, "BC", 0, "s"),
        ("AB", 0, "BC2", 0, "r"),
        ("AB", 1, "BD", 0, "l"),
        ("AB", 1, "BA", 0, "t"),
        ("BC", 0, "CB", 0, "t"),
        ("BC", 0, "CE", 0, "s"),
        ("BC2", 0, "CB", 0, "l"),
        ("CB", 0, "BA", 0, "s"),
        ("CB", 0, "BD", 0, "r"),
        ("CB", 0, "BC", 0, "t"),
        ("BD", 0, "DB", 0, "t"),
        ("DB", 0, "BA", 0, "r"),
        ("DB", 0, "BC", 0, "l"),
        ("DB", 0, "BC2", 1, "l"),
        ("BA", 0, "AB", 0, "t"),
    ]
    connections = "".join(
        f'<connection from="{a}" to="{b}" fromLane="{i}" toLane="{j}" dir="{way}" state="M"/>\n'
        for a, i, b, j, way in links
    )
    nodes = "".join(f'<junction id="{n}" type="priority" x="{x}" y="{y}"/>\n' for n, (x, y) in JUNCTIONS.items())
    body = [
        location,
        '<type id="highway.primary" priority="9"/>',
        inside,
        road("AB", lanes=2, more='type="highway.primary_link"', lane_more='disallow="tram rail"'),
        *(road(name) for name in ("BA", "BC", "CB", "BD", "DB")),
        road("CE", lane_more='allow="bus tram"'),
        parallel,
        roads,
        nodes,
        '<junction id=":B_1_0" type="internal" x="200" y="0"/>',
        junctions,
        connections,
        '<connection from=":B_0" to="BC" fromLane="0" toLane="0" dir="s" state="M"/>',
    ]
    return f'{HEAD}<net version="1.20">\n' + "\n".join(body) + "</net>\n"


Interval = tuple[float, float, Mapping[str, float]]


def edge_xml(intervals: Iterable[Interval], *, attribute: str = "left", name: str = "e") -> str:
    def edges(left: Mapping[str, float]) -> str:
        return "\n".join(
            f'<edge id="{road}" sampledSeconds="1.00" departed="0" arrived="7" entered="3" {attribute}="{n}"/>'
            for road, n in left.items()
        )

    return (
        f"{HEAD}<meandata>\n"
        + "\n".join(
            f'<interval begin="{a}" end="{b}" id="{name}">\n{edges(left)}\n</interval>' for a, b, left in intervals
        )
        + "\n</meandata>\n"
    )


LOOPS = {"ab0": ("AB_0", -10), "ab1": ("AB_1", -10), "ab0early": ("AB_0", 5), "db": ("DB_0", 3), "bus": ("CE_0", 3)}


def loops_xml(loops: Mapping[str, tuple[str, float]] = LOOPS) -> str:
    return (
        f'{HEAD}<additional>\n<edgeData id="e" file="x.xml"/>\n'
        + "\n".join(
            f'<inductionLoop id="{loop}" lane="{lane}" pos="{pos}" period="300" file="e1.xml"/>'
            for loop, (lane, pos) in loops.items()
        )
        + "\n</additional>\n"
    )


def loop_output_xml(intervals: Iterable[Interval]) -> str:
    return (
        f"{HEAD}<detector>\n"
        + "\n".join(
            f'<interval begin="{a}" end="{b}" id="{loop}" nVehContrib="{n}" flow="1.00" nVehEntered="{n + 1}"/>'
            for a, b, counts in intervals
            for loop, n in counts.items()
        )
        + "\n</detector>\n"
    )


def all_roads(n: float = 0) -> dict[str, float]:
    return dict.fromkeys((*ROADS, "CE"), n)


def small_files(folder: Path) -> dict[str, Path]:
    """Tiny valid inputs of every kind, for other tests to damage."""
    texts = {
        "net": ("town.net.xml", net_xml()),
        "edgedata": ("edge.xml", edge_xml([(0, 300, all_roads(2)), (300, 600, all_roads(5))])),
        "loops": ("loops.add.xml", loops_xml()),
        "loop_output": ("e1.xml", loop_output_xml([(0, 300, dict.fromkeys(LOOPS, 4))])),
    }
    paths = {}
    for kind, (name, text) in texts.items():
        paths[kind] = folder / name
        paths[kind].write_text(text, encoding="utf-8")
        paths[f"{kind}_gz"] = folder / f"{name}.gz"
        paths[f"{kind}_gz"].write_bytes(gzip.compress(text.encode()))
    return paths
