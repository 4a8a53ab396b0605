"""A city, and the files in its folder. Imports only numpy, so that a cache opens on a machine without polars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.city.detectors import Detectors
from frigate.city.network import RoadNetwork
from frigate.city.reading_options import ReadingOptions
from frigate.city.stream import RoadNetworkStream
from frigate.errors import CityError
from frigate.notebook import card, sketch
from frigate.reading.files import check_regular, clear_leftovers, digest, file_errors
from frigate.reading.notices import Notices

TABLES = ("nodes", "edges", "readings", "changes", "turns", "sensors")
IMPORT_NOTICES = "notices.json"  # what the import reported


def empty_turns() -> NDArray[np.int64]:
    """An empty table of forbidden turns."""
    return np.zeros((0, 3), np.int64)


@dataclass(frozen=True)
class City:
    """A road network stream with a name, and the notices from reading it."""

    name: str
    stream: RoadNetworkStream
    notices: tuple[str, ...] = ()  # sentences with a count
    folder: Path | None = None  # where it was read from: a city folder, or a cache on its own
    road_features: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)  # [N,R] raw, by fingerprint
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # notice -> its first places
    forbidden_turns: NDArray[np.int64] = field(default_factory=empty_turns)  # [K,3] rows of nodes: from, via, to
    excluded: tuple[str, ...] = ()  # entries of `exclude` given on opening, besides those in city.toml
    detectors: Detectors = field(default_factory=Detectors)
    imported: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # notices of the import -> places
    read_as: ReadingOptions = field(default_factory=ReadingOptions)  # how its readings were imported

    def __repr__(self) -> str:
        notices = f", {len(self.notices)} notices" if self.notices else ""
        return f"<City {self.name!r}: {self.stream.summary()}{notices}>"

    def _repr_html_(self) -> str:
        stream = self.stream
        network = self.network
        shown = {
            "network": f"{network.num_nodes:,} nodes, {network.num_edges:,} roads",
            "readings": stream.record_summary(),
            "notices": len(self.notices),
        }
        roads = sketch(network.lon, network.lat, network.senders, network.receivers, stream.sensors)
        return card(f"City {self.name}", shown, roads)

    @staticmethod
    def reported(
        name: str, stream: RoadNetworkStream, notices: Notices, *, forbidden_turns: NDArray[np.int64] | None = None
    ) -> City:
        """A new city with the notices of its import."""
        places = notices.sentences()
        turns = empty_turns() if forbidden_turns is None else forbidden_turns
        return City(name, stream, tuple(places), places=places, forbidden_turns=turns)

    @property
    def reports(self) -> dict[str, tuple[str, ...]]:
        """All notices, of the import and of reading, with their first places."""
        return {**self.imported, **{notice: self.places.get(notice, ()) for notice in self.notices}}

    @property
    def network(self) -> RoadNetwork:
        """The network at the last snapshot."""
        return self.stream.network


def city_folder(path: Path) -> Path:
    """The folder as a Path, if it can be a city."""
    if not path.exists():
        clear_leftovers(path.resolve())  # a killed import may have moved it away
    if not path.exists():
        raise CityError(f"{path}: no such folder")
    if not path.is_dir():
        raise CityError(f"{path} is a file. A city is a folder with a city.toml")
    if not (path / "city.toml").is_file():
        raise CityError(f'{path} has no city.toml. Write one with at least: step = "5min"')
    return path.resolve()


def find_sources(folder: Path) -> dict[str, Path]:
    """The existing files of a city (city.toml, tables, notices), by name without suffix."""
    found = {stem: _find_table(folder, stem) for stem in TABLES}
    for stem in ("nodes", "edges"):
        if found[stem] is None:
            raise CityError(f"{folder} has no {stem}.parquet and no {stem}.csv. A city needs one of them")
    notices = {"notices": folder / IMPORT_NOTICES} if (folder / IMPORT_NOTICES).is_file() else {}
    return {"city": folder / "city.toml", **{stem: path for stem, path in found.items() if path is not None}, **notices}


def _find_table(folder: Path, stem: str) -> Path | None:
    there = [p for p in (folder / f"{stem}.parquet", folder / f"{stem}.csv") if p.exists()]
    if len(there) > 1:
        raise CityError(f"{folder.name} has both {stem}.parquet and {stem}.csv. Take one away")
    for path in there:
        check_regular(path)
    return there[0] if there else None


def file_digests(sources: Mapping[str, Path]) -> dict[str, list[Any]]:
    """Names, sizes and digests of the files. A cache is out of date if they differ."""
    digests: dict[str, list[Any]] = {}
    for path in sources.values():
        with file_errors():
            digests[path.name] = digest(path)
    return digests
