"""A file of the map page, as the page itself reads it."""

from __future__ import annotations

import base64
import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.pages.wire import decode

Array = NDArray[Any]


class MapFile:
    """The network, layers and panels in a file."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        self.network_meta, self.network = self._container("network")
        self.meta, self.arrays = self._container("page")
        self.layers: dict[str, dict[str, Any]] = {layer["key"]: layer for layer in self.meta["layers"]}

    def _container(self, name: str) -> tuple[dict[str, Any], dict[str, Array]]:
        (found,) = re.findall(f'<script type="application/octet-stream" id="{name}">(.*?)</script>', self.text, re.S)
        return decode(gzip.decompress(base64.b64decode(found)))

    def values(self, key: str, of: str = "nodes") -> Array:
        """[F,N] or [F,E] the values of a layer, NaN where there are none."""
        about = self.layers[key][of]
        stored = self.arrays[about["of"]]
        if about["minus"] is not None:
            stored = stored - self.arrays[about["minus"]]
        return self._spread(stored, about["at"])

    def history(self, name: str) -> Array:
        """[F,N] a line of the charts of nodes."""
        (line,) = [each for each in self.meta["place"]["history"]["lines"] if each["name"] == name]
        return self._spread(self.arrays[line["of"]], line["at"])

    def _spread(self, stored: Array, at: str | None) -> Array:
        if at is None:
            return stored
        wide = np.full((len(stored), len(self.network_meta["node_ids"])), np.nan)
        wide[:, self.arrays[at]] = stored
        return wide

    def rows(self, key: str, of: str) -> list[int]:
        """Rows that a layer marks: crossed, crossed_roads or planned."""
        name = self.layers[key][of]
        return [] if name is None else [int(row) for row in self.arrays[name]]

    def blocks(self, panel: str, kind: str = "") -> list[dict[str, Any]]:
        """The blocks of a panel, of one kind or of all, those inside others too."""
        if panel == "place":
            blocks = self.meta["place"]["intro"]
        else:
            (blocks,) = [each["blocks"] for each in self.meta["panels"] if each["key"] == panel]
        return [block for block in _every(blocks) if kind in ("", block["kind"])]

    def said(self, panel: str) -> str:
        """All words of a panel."""
        return "\n".join(_words(self.blocks(panel)))


def _every(blocks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for block in blocks:
        yield block
        yield from _every(block.get("blocks", []))


def _words(thing: Any) -> Iterator[str]:
    if isinstance(thing, str):
        yield thing
    elif isinstance(thing, dict):
        for each in thing.values():
            yield from _words(each)
    elif isinstance(thing, list | tuple):
        for each in thing:
            yield from _words(each)
