"""Find the files of a benchmark data set by their usual names, and read frames that pandas wrote to HDF5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from frigate.errors import CityError
from frigate.reading.files import parsing
from frigate.sources.arrays import open_hdf5, read_dataset
from frigate.sources.benchmarks.unpickle import Frame

Files = str | Path | Mapping[str, str | Path]

DEPTH = 3  # levels of subfolders to search


@dataclass(frozen=True)
class Options:
    """The arguments of `import_benchmark`. None: the data set's own rule."""

    kind: str
    files: Files
    name: str | None
    feature: str | None
    timezone: str | None
    length_unit: str | None
    zeros: str | None


@dataclass(frozen=True)
class DataFile:
    """A file of a data set, and its usual names: case does not matter, `*` matches anything."""

    names: tuple[str, ...]
    needed: bool = True


def find_files(files: Files, parts: Mapping[str, DataFile]) -> dict[str, Path]:
    """The files of a data set by part, found in a folder or given as a mapping."""
    if isinstance(files, Mapping):
        unknown = [part for part in files if part not in parts]
        if unknown:
            raise CityError(f'files: "{unknown[0]}" is not a part of this data set. Its parts: {", ".join(parts)}')
        found = {part: Path(path) for part, path in files.items()}
        for part, path in found.items():
            if not path.is_file():
                raise CityError(f"{part} {path}: no such file")
    else:
        folder = Path(files)
        if not folder.is_dir():
            raise CityError(f"{folder}: no such folder. Give the folder with the files of the data set")
        there = _files_below(folder)
        hits = {part: _named(there, kind.names) for part, kind in parts.items()}
        found = {part: hit for part, hit in hits.items() if hit is not None}
    for part, kind in parts.items():
        if kind.needed and part not in found:
            where = "" if isinstance(files, Mapping) else f" in {files}"
            raise CityError(f"No file with {part}{where}. Looked for: {', '.join(kind.names)}")
    return found


def _files_below(folder: Path, depth: int = DEPTH) -> list[Path]:
    """All files below a folder, top levels first."""
    inside = sorted(folder.iterdir())
    below = [p for p in inside if p.is_dir() and not p.name.startswith(".")] if depth else []
    return [p for p in inside if p.is_file()] + [path for f in below for path in _files_below(f, depth - 1)]


def _named(there: Sequence[Path], names: Sequence[str]) -> Path | None:
    for name in names:
        hits = [path for path in there if fnmatch(path.name.lower(), name.lower())]
        if "*" in name and len(hits) > 1:
            raise CityError(f"{len(hits)} files are named {name}: {', '.join(h.name for h in hits[:4])}. Name one")
        if hits:
            return hits[0]
    return None


# Arrays


def read_h5_frame(path: Path) -> Frame:
    """Read a frame that pandas wrote in its fixed format: axis0, axis1 and block0_values of one group."""
    with open_hdf5(path) as file, parsing(path):
        groups = [n for n, item in file.items() if hasattr(item, "items") and "block0_values" in item]
        if not groups:
            there = ", ".join(list(file)[:5]) or "nothing"
            raise CityError(f"{path.name} has no pandas frame in the fixed format. It has: {there}")
        group = file[groups[0]]
        if "block1_values" in group:
            raise CityError(f"{path.name}: the frame has columns of several types. Save it as one numeric type")
        names = ("axis0", "axis1", "block0_values", "block0_items")
        arrays = {name: read_dataset(path, group[name]) for name in names}
        kind = group["axis1"].attrs.get("kind", b"")
        kind = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    values = arrays["block0_values"]
    columns = arrays["block0_items"]
    index = arrays["axis1"]
    if values.ndim != 2 or values.shape != (*index.shape, *columns.shape) or columns.shape != arrays["axis0"].shape:
        raise CityError(f"{path.name}: values {values.shape} for {len(index)} rows and {len(columns)} columns")
    if not kind.startswith("datetime64") or index.dtype.kind != "i":
        raise CityError(f'{path.name}: the rows of the frame are "{kind}". Times are expected')
    unit = kind[len("datetime64") :].strip("[]") or "ns"
    if unit not in ("s", "ms", "us", "ns"):
        raise CityError(f'{path.name}: the times of the frame are in "{unit}". Seconds or smaller units are expected')
    return Frame(values, index.astype(np.int64).view(f"datetime64[{unit}]"), columns)
