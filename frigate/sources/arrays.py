"""Arrays in .npy, .npz and HDF5 files, by name. Each is read on demand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.errors import CityError, MissingExtraError, did_you_mean
from frigate.reading.files import parsing
from frigate.reading.sandbox import reading

Arrays = Mapping[str, Callable[[], NDArray[Any]]]

HDF5 = (".h5", ".hdf5")
SUFFIXES = (".npz", ".npy", *HDF5)


@contextmanager
def open_arrays(path: Path) -> Iterator[Arrays]:
    """The arrays of a file. A .npy file has one, called "array"."""
    reading(path)
    if path.suffix in HDF5:
        with open_hdf5(path) as file:
            yield _datasets(path, file)
        return
    with _parsing_numpy(path):
        # Memory-mapped, so that a false size in the header allocates nothing. An .npz cannot be mapped.
        opened = np.load(path, allow_pickle=False, mmap_mode="r" if path.suffix == ".npy" else None)
    if isinstance(opened, np.ndarray):
        if path.suffix == ".npz":
            raise CityError(f"{path.name} is a single array. Name it .npy")
        yield {"array": partial(np.asarray, opened)}
        return
    with opened as archive:
        if path.suffix == ".npy":
            raise CityError(f"{path.name} holds several arrays. Name it .npz")
        yield {name: partial(_member, path, archive, name) for name in archive.files}


@contextmanager
def _parsing_numpy(path: Path) -> Iterator[None]:
    with parsing(path), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Reading `.npy` or `.npz` file required", UserWarning)  # harmless
        yield


def _member(path: Path, archive: Any, name: str) -> NDArray[Any]:
    with _parsing_numpy(path):
        array = archive[name]
        if not isinstance(array, np.ndarray):
            raise CityError(f'{path.name}: "{name}" is damaged, not an array. Save it again')
        return array


@contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    try:
        import h5py
    except ImportError:
        raise MissingExtraError("h5py", "h5") from None
    reading(path)
    with parsing(path):
        file = h5py.File(path, "r")
    with file:
        yield file


def _datasets(path: Path, file: Any) -> Arrays:
    found: dict[str, Callable[[], NDArray[Any]]] = {}

    def visit(name: str, item: Any) -> None:
        if hasattr(item, "shape"):
            found[name] = partial(read_dataset, path, item)

    with parsing(path):
        file.visititems(visit)
    return found


def read_dataset(path: Path, item: Any) -> NDArray[Any]:
    """Read a dataset of an HDF5 file. One that links to another file is refused: that could be any file."""
    with parsing(path):
        if item.external or item.is_virtual or item.file.filename != str(path):
            raise CityError(f'{path.name}: "{item.name}" stores its values in another file. Save them in this one')
        whole = np.asarray(item[()])
        return whole.astype(np.bytes_) if whole.dtype.kind == "O" else whole  # variable-length text


def read_array(path: Path, arrays: Arrays, name: str) -> NDArray[Any]:
    """Read the array of this name."""
    if name not in arrays:
        there = ", ".join(arrays) or "none"
        raise CityError(f'{path.name} has no array "{name}"{did_you_mean(name, list(arrays))}. Its arrays: {there}')
    return arrays[name]()
