"""The cache of a city: what was read from its tables, as .npy files and one JSON file in `CITY/cache`.

It needs only numpy to open. Network arrays are checked against their digests. Values and the observed mask are
memory-mapped. Networks share one table of roads where they can, and differ in which are open.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.city.city import City, file_digests, find_sources
from frigate.city.detectors import Detectors
from frigate.city.network import Edges, RoadNetwork
from frigate.city.reading_options import ReadingOptions
from frigate.city.stream import RoadNetworkStream
from frigate.errors import CityError
from frigate.reading.files import digest, replacing_folder

CACHE_FORMAT = 7  # before it, nodes had no names of their own
MAPPED = ("values", "observed")  # memory-mapped and without a digest, which would read all of them
ARRAYS = (
    "values",
    "observed",
    "topology_of",
    "utc_offset_s",
    "later_s",
    "later",
    "node_ids",
    "lon",
    "lat",
    "present",
    "passable",
    "table_of",
    "roads",
    "roads_end",
    "is_open",
    "geometry_end",
    "lines",
    "lines_end",
    "names",
    "forbidden_turns",
    *(f.name for f in fields(Edges)),
)
FILES = {"cache.json", *(f"{name}.npy" for name in ARRAYS)}
DERIVED = re.compile(r"\.?[0-9a-f]{16}-")  # start of the names of derived files; with a dot while one is being written


def open_cache(path: str | Path) -> City:
    """Open the cache of a city, using only numpy. `path` is the city folder or the cache folder itself."""
    folder = Path(path)
    inside = folder / "cache"
    if not (folder / "cache.json").is_file() and not (inside / "cache.json").is_file():
        raise CityError(f"{folder} has no city cache. Make one with: frigate check {folder}")
    if (folder / "cache.json").is_file():
        home = folder.parent if (folder.parent / "city.toml").is_file() else folder
        return replace(load_cache(folder)[0], folder=home.resolve())
    city, digests = load_cache(inside)
    if (folder / "city.toml").is_file() and digests != file_digests(find_sources(folder)):
        raise CityError(f"{folder} has changed since its cache was made. Make it again with: frigate check {folder}")
    return replace(city, folder=folder.resolve())


def cache_folder(folder: Path | None) -> Path | None:
    """The cache folder of a city, or the folder itself if it is a cache; None if there is no cache."""
    if folder is None:
        return None
    return next((path for path in (folder, folder / "cache") if (path / "cache.json").is_file()), None)


def is_cache(folder: Path) -> bool:
    """Whether a folder holds only a cache, or nothing, and so can be replaced."""
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()}
    return not names or ("cache.json" in names and all(name in FILES or DERIVED.match(name) for name in names))


def derived_prefix(network: RoadNetwork) -> str:
    """Prefix of the files derived from a network. They stay valid when only readings change."""
    return f"{network.fingerprint[:16]}-"


# Saving


def save_cache(city: City, folder: Path, digests: dict[str, list[Any]]) -> None:
    """Write a city to its cache, with the digests of the files it was read from."""
    stream = city.stream
    facts = {
        "format": CACHE_FORMAT,
        "tables": digests,
        "name": city.name,
        "notices": city.notices,
        "places": city.places,
        "start_s": stream.start_s,
        "step_s": stream.step_s,
        "timezone": stream.timezone,
        "quantity": stream.quantity,
        "unit": stream.unit,
        "detectors": city.detectors.rows(),
        "imported": city.imported,
        "read_as": city.read_as.to_json(),
    }
    with replacing_folder(folder, lasting=False) as new:
        arrays = _arrays(stream) | {"forbidden_turns": city.forbidden_turns}
        for name, array in arrays.items():
            np.save(new / f"{name}.npy", array, allow_pickle=False)
        files = {name: digest(new / f"{name}.npy") for name in arrays if name not in MAPPED}
        facts |= {"files": files, "mapped": {name: _layout(arrays[name]) for name in MAPPED}}
        networks = [*stream.networks, stream.usual_network()]
        known = {derived_prefix(each) for network in networks for each in (network, network.map)}
        for derived in folder.iterdir() if folder.is_dir() else ():  # slow to make, and still valid
            if any(derived.name.startswith(prefix) for prefix in known):
                shutil.copy2(derived, new / derived.name)
        facts["digest"] = _facts_digest(facts)
        (new / "cache.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")


def _layout(array: NDArray[Any]) -> list[Any]:
    return [array.dtype.str, *array.shape]


def _facts_digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _arrays(stream: RoadNetworkStream) -> dict[str, NDArray[Any]]:
    tables = list({id(network.roads): network.roads for network in stream.networks}.values())
    table_of = {id(table): k for k, table in enumerate(tables)}
    every = tables[0] if len(tables) == 1 else _joined(tables)
    rows = np.arange(len(every))
    pool = every
    if len(tables) > 1:
        codes = [np.unique(getattr(every, f.name), return_inverse=True)[1] for f in fields(Edges)]
        _, first, rows = np.unique(np.stack(codes, axis=1), axis=0, return_index=True, return_inverse=True)
        pool = every.take(first)
    is_open = [network.is_open for network in stream.networks]
    return {f.name: getattr(pool, f.name) for f in fields(Edges) if f.name != "geometry"} | {
        "values": stream.values,
        "observed": stream.observed,
        "topology_of": stream.network_of,  # the name of its file since format 1
        "utc_offset_s": stream.utc_offset_s,
        "later_s": stream.later_s,
        "later": stream.later,
        "node_ids": stream.node_ids,
        "lon": stream.network.lon,
        "lat": stream.network.lat,
        "present": np.stack([network.present for network in stream.networks]),
        "passable": np.stack([network.passable for network in stream.networks]),
        "table_of": np.array([table_of[id(network.roads)] for network in stream.networks], np.int64),
        "roads": rows.reshape(-1),  # rows of the pool in each table
        "roads_end": np.cumsum([len(table) for table in tables]),
        "is_open": np.packbits(np.concatenate(is_open)),
        "geometry": np.frombuffer(b"".join(pool.geometry.tolist()), np.uint8),
        "geometry_end": np.cumsum([len(g) for g in pool.geometry.tolist()], dtype=np.int64),
        "lines": np.frombuffer(b"".join(stream.network.lines.tolist()), np.uint8),
        "lines_end": np.cumsum([len(line) for line in stream.network.lines.tolist()], dtype=np.int64),
        "names": stream.network.names,
    }


def _joined(tables: Sequence[Edges]) -> Edges:
    return Edges(*(np.concatenate([getattr(table, f.name) for table in tables]) for f in fields(Edges)))


# Loading


def load_cache(folder: Path) -> tuple[City, dict[str, list[Any]]]:
    """The city in a cache folder, and the digests of the files it was read from."""
    try:
        facts = json.loads((folder / "cache.json").read_text(encoding="utf-8"))
        if facts["format"] != CACHE_FORMAT:
            raise CityError(f"{folder} is a cache of another version. Delete it, then run: frigate check CITY")
        if facts.pop("digest") != _facts_digest(facts):
            raise ValueError("cache.json has changed since it was written")
        changed = [name for name, known in facts["files"].items() if digest(folder / f"{name}.npy") != known]
        if changed:
            raise ValueError(f"{changed[0]}.npy has changed since it was written")
        return _loaded(folder, facts), facts["tables"]
    except CityError:
        raise
    except Exception as error:  # a damaged header or a missing array can raise anything
        raise CityError(f"{folder} is a damaged cache ({error}). Delete it, then run: frigate check CITY") from None


def _loaded(folder: Path, facts: dict[str, Any]) -> City:
    def mapped(name: str) -> NDArray[Any]:
        whole = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        if _layout(whole) != facts["mapped"][name]:
            raise ValueError(f"{name}.npy has changed since it was written")
        return np.asarray(whole)  # a plain array, still backed by the file

    networks = _networks(folder)
    stream = RoadNetworkStream(
        mapped("values"),
        mapped("observed"),
        networks,
        _array(folder, "topology_of"),
        int(facts["start_s"]),
        int(facts["step_s"]),
        _array(folder, "utc_offset_s"),
        str(facts["timezone"]),
        str(facts["quantity"]),
        str(facts["unit"]),
        _array(folder, "later_s"),
        _array(folder, "later"),
    )
    return City(
        str(facts["name"]),
        stream,
        tuple(facts["notices"]),
        folder,
        places={notice: tuple(where) for notice, where in facts.get("places", {}).items()},
        forbidden_turns=_array(folder, "forbidden_turns"),
        detectors=Detectors.of_rows(facts.get("detectors", [])),
        imported={notice: tuple(where) for notice, where in facts.get("imported", {}).items()},
        read_as=ReadingOptions.of(facts.get("read_as", {}), where="cache.json"),
    )


def _array(folder: Path, name: str) -> NDArray[Any]:
    return np.asarray(np.load(folder / f"{name}.npy", allow_pickle=False))


def _byte_strings(folder: Path, name: str) -> NDArray[np.object_]:
    blob = _array(folder, name).tobytes()
    ends = [0, *_array(folder, f"{name}_end").tolist()]
    strings = np.full(len(ends) - 1, b"", np.object_)
    strings[:] = [blob[a:b] for a, b in pairwise(ends)]
    return strings


def _networks(folder: Path) -> tuple[RoadNetwork, ...]:
    geometry, lines = (_byte_strings(folder, name) for name in ("geometry", "lines"))
    columns: dict[str, Any] = {
        f.name: geometry if f.name == "geometry" else _array(folder, f.name) for f in fields(Edges)
    }
    pool = Edges(**columns)
    tables = [pool.take(rows) for rows in np.split(_array(folder, "roads"), _array(folder, "roads_end")[:-1])]
    table_of = _array(folder, "table_of").tolist()
    sizes = np.cumsum([len(tables[k]) for k in table_of])
    is_open = np.split(np.unpackbits(_array(folder, "is_open"), count=int(sizes[-1])).astype(bool), sizes[:-1])
    node_ids, lon, lat = (_array(folder, name) for name in ("node_ids", "lon", "lat"))
    first = RoadNetwork(node_ids, lon, lat, tables[0], lines=lines, names=_array(folder, "names"))
    masks = zip(_array(folder, "present"), _array(folder, "passable"), is_open, strict=True)
    return tuple(
        first.unchecked(roads=tables[k], present=present, passable=passable, is_open=of_roads)
        for k, (present, passable, of_roads) in zip(table_of, masks, strict=True)
    )
