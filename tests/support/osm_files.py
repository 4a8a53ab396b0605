"""Small OpenStreetMap files in every format."""

from __future__ import annotations

import bz2
import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import quoteattr

import osmium

from frigate.reading.notices import Notices
from frigate.sources.osm.importer import DRIVABLE
from frigate.sources.osm.tags import road_kind

SORTS = {"n": "node", "w": "way"}


Member = tuple[str, str, int]  # role, "n" | "w", id


@dataclass
class Map:
    """A map to be written in any format."""

    nodes: dict[int, tuple[float, float]]  # lon, lat
    ways: list[tuple[int, list[int], dict[str, str]]]
    relations: list[tuple[int, list[Member], dict[str, str]]] = field(default_factory=list)

    def xml(self) -> str:
        def tags(of: dict[str, str]) -> str:
            return "".join(f"<tag k={quoteattr(k)} v={quoteattr(v)}/>" for k, v in of.items())

        nodes = "".join(f'<node id="{i}" lon="{x}" lat="{y}"/>' for i, (x, y) in self.nodes.items())
        ways = "".join(
            f'<way id="{i}">' + "".join(f'<nd ref="{r}"/>' for r in refs) + tags(t) + "</way>"
            for i, refs, t in self.ways
        )
        relations = "".join(
            f'<relation id="{i}">'
            + "".join(f'<member type="{SORTS[k]}" ref="{r}" role="{role}"/>' for role, k, r in m)
            + tags(t)
            + "</relation>"
            for i, m, t in self.relations
        )
        return f'<?xml version="1.0" encoding="UTF-8"?>\n<osm version="0.6">{nodes}{ways}{relations}</osm>\n'

    def write_pbf(self, path: Path) -> None:
        with osmium.SimpleWriter(str(path), overwrite=True) as writer:
            for i, place in self.nodes.items():
                writer.add_node(osmium.osm.mutable.Node(id=i, location=place))
            for i, refs, tags in self.ways:
                writer.add_way(osmium.osm.mutable.Way(id=i, nodes=refs, tags=tags))
            for i, members, tags in self.relations:
                turned = [(kind, ref, role) for role, kind, ref in members]
                writer.add_relation(osmium.osm.mutable.Relation(id=i, members=turned, tags=tags))

    def overpass(self, *, geom: bool) -> str:
        elements: list[dict[str, object]] = []
        if not geom:
            elements += [{"type": "node", "id": i, "lon": x, "lat": y} for i, (x, y) in self.nodes.items()]
        for i, refs, tags in self.ways:
            way: dict[str, object] = {"type": "way", "id": i, "nodes": refs, "tags": tags}
            if geom:
                places = [self.nodes.get(r) for r in refs]
                way["geometry"] = [None if p is None else {"lon": p[0], "lat": p[1]} for p in places]
            elements.append(way)
        for i, members, tags in self.relations:
            listed = [{"role": role, "type": SORTS[k], "ref": r} for role, k, r in members]
            elements.append({"type": "relation", "id": i, "members": listed, "tags": tags})
        return json.dumps({"version": 0.6, "generator": "Overpass API", "elements": elements})

    def graphml(self) -> str:
        """As OSMnx saves it: an edge for each direction of each way, its inner nodes in its geometry."""
        names = ["x", "y", "osmid", "highway", "oneway", "reversed", "length", "geometry", "lanes", "maxspeed", "name"]
        keys = "".join(f'<key id="d{i}" for="all" attr.name="{n}" attr.type="string"/>' for i, n in enumerate(names))

        def data(**values: object) -> str:
            return "".join(f'<data key="d{names.index(k)}">{v}</data>' for k, v in values.items())

        nodes = "".join(f'<node id="{i}">{data(x=x, y=y)}</node>' for i, (x, y) in self.nodes.items())
        edges = ""
        for i, refs, tags in self.ways:
            kind = road_kind(tags, highways=DRIVABLE, notices=Notices())
            assert kind is not None
            rest = {k: v for k, v in tags.items() if k in names}
            for there, line in ((kind.forward, refs), (kind.backward, refs[::-1])):
                if there:
                    points = ", ".join(f"{self.nodes[r][0]!r} {self.nodes[r][1]!r}" for r in line)
                    said = rest | {"osmid": str(i), "oneway": str(not (kind.forward and kind.backward))}
                    said |= {"reversed": str(line is not refs), "geometry": f"LINESTRING ({points})"}
                    edges += f'<edge source="{line[0]}" target="{line[-1]}" id="0">{data(**said)}</edge>'
        return (
            "<?xml version='1.0' encoding='utf-8'?>\n<graphml xmlns=\"http://graphml.graphdrawing.org/xmlns\">"
            f'{keys}<graph edgedefault="directed">{nodes}{edges}</graph></graphml>'
        )


def crossing() -> Map:
    """Two streets that cross at 5, a one-way way round, a turn restriction, and a bend at 9."""
    places = {1: (6.10, 49.60), 2: (6.12, 49.60), 3: (6.11, 49.59), 4: (6.11, 49.61), 5: (6.11, 49.60)}
    places |= {9: (6.121, 49.608)}
    return Map(
        places,
        [
            (11, [1, 5], {"highway": "primary", "lanes": "3", "maxspeed": "30 mph", "name": "Rue à l'Eau"}),
            (12, [5, 2], {"highway": "primary", "maxspeed": "50"}),
            (13, [3, 5], {"highway": "residential"}),
            (14, [5, 4], {"highway": "residential"}),
            (15, [2, 9, 4], {"highway": "tertiary", "oneway": "yes", "lanes": "2"}),
        ],
        [
            (
                21,
                [("from", "w", 11), ("via", "n", 5), ("to", "w", 14)],
                {"type": "restriction", "restriction": "no_left_turn"},
            )
        ],
    )


def small_files(folder: Path) -> dict[str, Path]:
    """A tiny valid file of each format, by its name: what the fuzz harness mutates."""
    town = crossing()
    kinds = {
        "osm": town.xml().encode(),
        "osm.gz": gzip.compress(town.xml().encode(), mtime=0),
        "osm.bz2": bz2.compress(town.xml().encode()),
        "overpass-body.json": town.overpass(geom=False).encode(),
        "overpass-geom.json": town.overpass(geom=True).encode(),
        "overpass.json.gz": gzip.compress(town.overpass(geom=True).encode(), mtime=0),
        "graphml": town.graphml().encode(),
    }
    files = {kind: folder / f"town.{kind}" for kind in kinds}
    for kind, path in files.items():
        path.write_bytes(kinds[kind])
    files["osm.pbf"] = folder / "town.osm.pbf"
    town.write_pbf(files["osm.pbf"])
    files["plain.osm.pbf"] = folder / "town.plain.osm.pbf"  # not compressed: mutations reach what is inside
    uncompressed(files["osm.pbf"], files["plain.osm.pbf"])
    return files


def uncompressed(pbf: Path, to: Path) -> None:
    with osmium.SimpleWriter(osmium.io.File(str(to), "pbf,pbf_compression=none"), overwrite=True) as writer:
        for item in osmium.FileProcessor(str(pbf)):
            writer.add(item)
