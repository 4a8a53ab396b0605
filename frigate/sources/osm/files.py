"""Recognise a map file by its content, never by its name; read PBF and XML with pyosmium.

A PBF or XML file is streamed twice: first ways and relations, then nodes. Only nodes on a kept road are kept, so memory
grows with the roads, not with the file. XML with a document type is refused before it is parsed.
"""

from __future__ import annotations

import bz2
import gzip
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
import osmium
from numpy.typing import NDArray

from frigate.errors import CityError
from frigate.reading.files import parsing
from frigate.sources.osm.tags import KEYS
from frigate.sources.osm.ways import Gathered, RawRoads, checked_places

HEAD = 1 << 20  # bytes; the first XML element must begin within them
LARGE_BYTES = 16 << 20  # of a PBF file; in a smaller one Python checks every node, which takes seconds
ID_SPAN_BITS = 30  # osmium's id set takes a bit per id in its span: 128 MiB, two at a time
MAX_ID_BITS = 40
NO_LOCATION = 2**31 - 1  # osmium's coordinate of a node without a location
PER_DEGREE = 1e7  # osmium keeps coordinates as whole numbers

PBF = "OSM PBF"
XML = "OSM XML"
XML_GZ = "OSM XML, gzip"
XML_BZ2 = "OSM XML, bzip2"
JSON = "JSON"
GRAPHML = "GraphML"
GZIP = b"\x1f\x8b"  # first bytes
BZIP2 = b"BZh"  # first bytes
OSMIUM = {PBF: "pbf", XML: "osm", XML_GZ: "osm.gz", XML_BZ2: "osm.bz2"}
NAMED = {
    ".osm.pbf": PBF,
    ".pbf": PBF,
    ".osm": XML,
    ".osm.xml": XML,
    ".xml": XML,
    ".osm.gz": XML_GZ,
    ".osm.xml.gz": XML_GZ,
    ".osm.bz2": XML_BZ2,
    ".json": JSON,
    ".json.gz": JSON,
    ".json.bz2": JSON,
    ".graphml": GRAPHML,
    ".graphml.gz": GRAPHML,
    ".graphml.bz2": GRAPHML,
}
FOREIGN = {
    b"PK\x03\x04": "a zip archive",
    b"\xfd7zXZ": "an xz archive",
    b"\x28\xb5\x2f\xfd": "a zstandard archive",
    b"7z\xbc\xaf": "a 7z archive",
    b"PAR1": "a Parquet table",
    b"\x89HDF": "an HDF5 file",
    b"SQLite format 3": "an SQLite or GeoPackage file",
    b"\xff\xe0\x04o5": "an o5m file",
    b"%PDF": "a PDF",
    b"\x80": "a Python pickle",
}
ROOTS = {"net": "a SUMO network", "gpx": "a GPX track", "kml": "a KML file", "html": "a web page", "svg": "a drawing"}
READ = "Give .osm.pbf, .osm, Overpass .json or OSMnx .graphml, plain or gzip"


@dataclass(frozen=True)
class MapFile:
    """A file and its format."""

    path: Path
    kind: str
    named: str | None  # the format its name suggests


def open_map(file: str | Path) -> MapFile:
    """Recognise the format of a map file, or refuse it."""
    path = Path(file)
    with path.open("rb") as opened:
        head = opened.read(HEAD)
    ending = next((e for e in sorted(NAMED, key=len, reverse=True) if path.name.lower().endswith(e)), None)
    return MapFile(path, _kind(path, head), None if ending is None else NAMED[ending])


def open_unpacked(path: Path) -> IO[bytes]:
    """Open a text file, decompressing it if needed."""
    with path.open("rb") as file:
        head = file.read(3)
    if head.startswith(GZIP):
        return cast(IO[bytes], gzip.open(path, "rb"))
    return bz2.open(path, "rb") if head == BZIP2 else path.open("rb")


def _kind(path: Path, head: bytes) -> str:
    if not head.strip(b"\0 \t\r\n"):
        raise CityError(f"{path.name} is empty. {READ}")
    if b"OSMHeader" in head[:64]:
        return PBF
    if head.startswith((GZIP, BZIP2)):
        with parsing(path), open_unpacked(path) as packed:
            inside = _text_kind(path, packed.read(HEAD))
        return inside if inside != XML else XML_GZ if head.startswith(GZIP) else XML_BZ2
    for start, what in FOREIGN.items():
        if head.startswith(start):
            raise CityError(f"{path.name} is {what}, not a map. {READ}")
    return _text_kind(path, head)


def _text_kind(path: Path, head: bytes) -> str:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or head[:2] in (b"<\0", b"\0<"):
        raise CityError(f"{path.name} is UTF-16 text. Save it as UTF-8")
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith((b"{", b"[")):
        return JSON
    if not text.startswith(b"<"):
        shown = head[:12].decode("latin-1")
        raise CityError(f"{path.name} is not a map: it begins with {shown!r}. {READ}")
    root = _root(path, text)
    if root == "graphml":
        return GRAPHML
    if root != "osm":
        what = ROOTS.get(root.lower(), f"XML that begins with <{root[:40]}>, where <osm> or <graphml> is expected")
        raise CityError(f"{path.name} is {what}, not a map. {READ}")
    return XML


def _root(path: Path, text: bytes) -> str:
    """The name of the first element. Comments and instructions may precede it, but no document type."""
    at = re.match(rb"(?:\s+|<\?.*?\?>|<!--.*?-->)*", text, re.DOTALL)
    rest = text[at.end() if at else 0 :]
    if re.match(rb"<!doctype\s+html", rest, re.IGNORECASE):
        return "html"
    if rest.startswith(b"<!"):
        raise CityError(
            f"{path.name} declares a document type or entities, which can fill the memory or read other files. "
            "No map needs them: remove the <!DOCTYPE ...>"
        )
    name = re.match(rb"<([A-Za-z_][\w.:-]{0,200})", rest)
    encoding = re.match(rb"<\?xml[^>]*encoding\s*=\s*[\"']([\w.-]+)", text)
    if encoding and encoding[1].lower() not in (b"utf-8", b"utf8", b"us-ascii", b"ascii", b"iso-8859-1"):
        raise CityError(f"{path.name} is in {encoding[1].decode()}. Save it as UTF-8")
    if not name:
        raise CityError(f"{path.name} is not complete XML: it has no first element. Download it again")
    return name[1].decode().rpartition(":")[2]


# Reading with pyosmium


def read_osmium(file: MapFile, gathered: Gathered, *, filtered: bool | None = None) -> RawRoads:
    """Read the roads of a PBF or XML file. `filtered`: osmium selects the nodes (default: for large PBF files)."""
    source = osmium.io.File(str(file.path.resolve()), OSMIUM[file.kind])
    with parsing(file.path):
        _read_ways(source, gathered)
        wanted = gathered.wanted()
        ordinary = not len(wanted) or (wanted[0] >= 0 and int(wanted[-1]).bit_length() <= MAX_ID_BITS)
        if filtered is None:
            filtered = file.kind == PBF and file.path.stat().st_size >= LARGE_BYTES
        x = np.full(len(wanted), NO_LOCATION, np.int32)
        y = np.full(len(wanted), NO_LOCATION, np.int32)
        again = 0
        for part in _node_passes(source, wanted, filtered=filtered and ordinary):
            again += _keep_places(part, wanted, x, y)
    gathered.notices.add("Nodes that occur more than once, the last kept", again)
    lon, lat = (np.where(c == NO_LOCATION, np.nan, c / PER_DEGREE) for c in (x, y))
    return gathered.roads(wanted, *checked_places(file.path, lon, lat, gathered.notices))


def _read_ways(source: osmium.io.File, gathered: Gathered) -> None:
    roads = osmium.filter.KeyFilter("highway")
    turns = osmium.filter.TagFilter(("type", "restriction"))
    roads.enable_for(osmium.osm.WAY)
    turns.enable_for(osmium.osm.RELATION)
    items = osmium.FileProcessor(source, osmium.osm.WAY | osmium.osm.RELATION).with_filter(roads).with_filter(turns)
    for item in items:
        if isinstance(item, osmium.osm.Way) and not item.deleted:
            gathered.add_way(item.id, [node.ref for node in item.nodes], _tags(item, KEYS, gathered))
        elif isinstance(item, osmium.osm.Relation) and not item.deleted:
            tags = _tags(item, ("restriction", "restriction:motorcar", "except"), gathered)
            gathered.add_turn(tags, [(m.role, m.type, m.ref) for m in item.members])


def _tags(item: osmium.osm.Way | osmium.osm.Relation, keys: tuple[str, ...], gathered: Gathered) -> dict[str, str]:
    found = {}
    for key in keys:
        try:
            value = item.tags.get(key)
        except UnicodeDecodeError:
            gathered.notices.add("Tags that are not UTF-8 text were ignored", 1)
            continue
        if value is not None:
            found[key] = value
    return found


def _node_passes(
    source: osmium.io.File, wanted: NDArray[np.int64], *, filtered: bool
) -> Iterator[osmium.FileProcessor]:
    """Passes over the file that cover every wanted node. If filtered, one per span of ids, to limit osmium's memory."""
    if not filtered:
        yield osmium.FileProcessor(source, osmium.osm.NODE)
        return
    span = wanted >> ID_SPAN_BITS
    for part in np.split(wanted, np.flatnonzero(np.diff(span)) + 1):
        id_filter = osmium.filter.IdFilter(array("q", part.tobytes()))  # not a list, which takes an object per id
        yield osmium.FileProcessor(source, osmium.osm.NODE).with_filter(id_filter)


def _keep_places(
    nodes: osmium.FileProcessor, wanted: NDArray[np.int64], x: NDArray[np.int32], y: NDArray[np.int32]
) -> int:
    """Fill in the coordinates of the wanted nodes; return how many occur more than once."""
    again = 0
    ids = array("q", wanted.tobytes())
    for node in nodes:
        if isinstance(node, osmium.osm.Node):
            row = bisect_left(ids, node.id)
            if row < len(ids) and ids[row] == node.id and not node.deleted:
                again += bool(x[row] != NO_LOCATION)
                place = node.location
                x[row] = place.x
                y[row] = place.y
    return again
