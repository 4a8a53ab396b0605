"""The map page as one file that opens without internet: a network, layers to choose from, and panels.

The page is `page/src/offline.ts`, built into `frigate/pages/static/offline.html`; this module inserts its data.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.errors import SettingsError
from frigate.pages.layers import Array, Band, Layer, Packing, Unit
from frigate.pages.panels import Block, Panel
from frigate.pages.wire import encode
from frigate.reading.files import write_file

FORM = Path(__file__).parent / "static" / "offline.html"
PLACEHOLDER = "<!-- containers -->"


@dataclass(frozen=True)
class HistoryLine:
    """A line of the chart of a node."""

    name: str
    style: str  # forecast, observed or other
    of: Array  # [F,N], or [F,V] with `at`
    at: NDArray[np.int64] | None = None  # [V] rows of nodes that have values


@dataclass(frozen=True)
class History:
    """The chart of a node: its frames are those of a layer."""

    title: str
    unit: Unit
    lines: tuple[HistoryLine, ...]
    times: Sequence[str] = ()
    kinds: Sequence[str] = ()
    compare: bool = False  # say by how much the second line exceeds the first
    band: Band | None = None  # of the first line


@dataclass(frozen=True)
class MainSensors:
    """The sensors that each node's forecast rests on."""

    nodes: NDArray[np.int32]  # [N,M] rows; -1: none
    near: NDArray[np.float32]  # [N,M] share of the node's vehicles that pass the sensor, or metres by road
    is_share: bool


@dataclass(frozen=True)
class Place:
    """The panel about a selected road or node."""

    intro: tuple[Block, ...]  # while nothing is selected
    history: History | None = None
    main_sensors: MainSensors | None = None
    remarks: Mapping[int, Sequence[str]] = field(default_factory=dict)  # row of a node -> sentences about it
    trips: Mapping[str, Any] | None = None  # through the selected place: `Trips` in page/src/service.ts


@dataclass(frozen=True)
class MapPage:
    """All that a file shows."""

    title: str
    network: bytes  # of `network_container`
    layers: tuple[Layer, ...]
    panels: tuple[Panel, ...]
    place: Place
    open_layer: str = ""  # key of the layer shown when the page opens; "": the first
    open_frame: int = 0  # and its frame
    closed_sets: Sequence[Sequence[int]] = ()  # rows of roads; a layer's `closed` says which set holds when
    place_first: bool = False  # whether the panel about a place comes before the others
    select: Mapping[str, int] | None = None  # row of a "road" or "node" that is selected when the page opens


def form() -> str:
    """The empty page. Ask before the work that fills it, so that a missing page is told at once."""
    try:
        page = FORM.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SettingsError(f"{FORM}: the map page is not built. Run `make page`, or install a wheel") from None
    if PLACEHOLDER not in page:
        raise SettingsError(f"{FORM}: the map page is from another version. Run `make page`")
    return page


def write_map_page(path: str | Path, page: MapPage) -> Path:
    """Write the file.

    Parameters
    ----------
    path
        File to write; its folder is created.
    page
        What it shows.

    Returns
    -------
    Path
        The file.
    """
    path = Path(path)
    blocks = [
        f'<script type="application/octet-stream" id="{name}">{_packed(each)}</script>'
        for name, each in (("network", page.network), ("page", _container(page)))
    ]
    write_file(path, form().replace(PLACEHOLDER, "\n".join(blocks), 1))
    return path


def _packed(container: bytes) -> str:
    return base64.b64encode(gzip.compress(container, 6, mtime=0)).decode()


def _container(page: MapPage) -> bytes:
    packing = Packing()
    meta = {
        "title": page.title,
        "layers": [packing.layer(layer) for layer in page.layers],
        "panels": [panel.meta() for panel in page.panels],
        "place": _place(page.place, packing),
        "closed_sets": [list(rows) for rows in page.closed_sets],
        "place_first": page.place_first,
        "open": {"layer": page.open_layer or page.layers[0].key, "frame": page.open_frame},
        "select": None if page.select is None else dict(page.select),
    }
    return encode(meta, packing.arrays)


def _place(place: Place, packing: Packing) -> dict[str, Any]:
    history = place.history
    main = place.main_sensors
    return {
        "intro": list(place.intro),
        "history": None
        if history is None
        else {
            "title": history.title,
            "unit": history.unit.meta(),
            "times": list(history.times),
            "kinds": list(history.kinds),
            "compare": history.compare,
            "band": packing.band(history.band, "history.band"),
            "lines": [
                {
                    "name": line.name,
                    "style": line.style,
                    "of": packing.put(line.of, f"history.{line.name}"),
                    "at": packing.put(
                        None if line.at is None else line.at.astype(np.uint32), f"history.{line.name}.at"
                    ),
                }
                for line in history.lines
            ],
        },
        "main_sensors": None
        if main is None
        else {
            "nodes": packing.put(main.nodes, "main_sensors"),
            "near": packing.put(main.near, "main_sensors.near"),
            "is_share": main.is_share,
        },
        "remarks": {str(row): list(sentences) for row, sentences in place.remarks.items()},
        "trips": None if place.trips is None else dict(place.trips),
    }
