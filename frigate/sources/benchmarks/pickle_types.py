"""What a pickle may hold, by name, and what becomes of it: arrays, frames as arrays, sparse matrices, containers.

None of the names is imported. An array is made of the bytes that the pickle holds for it, exactly.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

MAX_DEPTH = 50  # containers within containers
UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns")

_PLAIN = {
    "numpy.ndarray": "class",
    "numpy.matrixlib.defmatrix.matrix": "class",
    "numpy.matrix": "class",
    "numpy.dtype": "dtype",
    "collections.OrderedDict": "dict",
    "collections.defaultdict": "dict",
    **{f"{python}.{name}": "set" for python in ("builtins", "__builtin__") for name in ("set", "frozenset")},
    **{f"{python}.{name}": "bytes" for python in ("builtins", "__builtin__") for name in ("bytes", "bytearray")},
    "_codecs.encode": "encode",
    "copyreg._reconstructor": "new",
    "copy_reg._reconstructor": "new",
    **{f"numpy.{core}.multiarray._reconstruct": "array" for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": "scalar" for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": "buffer" for core in ("core", "_core")},
    **{f"{python}.slice": "slice" for python in ("builtins", "__builtin__")},
    **{
        f"{python}.{name}": "class"
        for python in ("builtins", "__builtin__")
        for name in ("object", "list", "dict", "tuple", "int", "float", "str", "bool")
    },
}
# By their last name: pandas and scipy have moved them between modules over the years, and none of them is imported.
_PANDAS = {
    **dict.fromkeys(("DataFrame", "Series"), "frame"),
    **dict.fromkeys(("BlockManager", "SingleBlockManager"), "blocks"),
    **dict.fromkeys(("_unpickle_block",), "block"),
    **dict.fromkeys(("_new_Index", "_new_DatetimeIndex"), "index"),
    **dict.fromkeys(("__pyx_unpickle_NDArrayBacked",), "backed"),
    **dict.fromkeys(("Index", "RangeIndex", "Int64Index", "UInt64Index", "Float64Index", "DatetimeIndex"), "class"),
    **dict.fromkeys(("DatetimeArray", "StringArray", "StringDtype"), "class"),
    **dict.fromkeys(("Day", "Hour", "Minute", "Second"), "class"),  # how far apart the times of an index are
}
_SPARSE = {f"{form}_{kind}" for form in ("coo", "csr", "csc") for kind in ("array", "matrix")}


@dataclass(frozen=True)
class Frame:
    """A pandas frame, as arrays. A series has one column."""

    values: NDArray[Any]  # [rows, columns]
    index: NDArray[Any]  # [rows]
    columns: NDArray[Any]  # [columns]


@dataclass(frozen=True)
class Named:
    """A class or function that the pickle names and that is admitted. It stands for itself alone."""

    full: str
    role: str


@dataclass
class Made:
    """What the pickle would have made with a class or function."""

    name: Named
    args: tuple[Any, ...]
    state: Any = None


class RefusedError(Exception):
    """Why a pickle is not read, to stand after its name."""


def admitted(module: Any, word: Any) -> Named:
    if not isinstance(module, str) or not isinstance(word, str):
        raise TypeError("a name that is no text")
    full = f"{module}.{word}"
    role = _PLAIN.get(full)
    if role is None and re.fullmatch(r"pandas(\.[a-z_]+)*", module):
        role = _PANDAS.get(word)
    if role is None and re.fullmatch(r"scipy\.sparse(\.[a-z_]+)*", module) and word in _SPARSE:
        role = "sparse"
    if role is None:
        shown = full if len(full) <= 120 and full.isprintable() else ascii(full[:120])
        raise RefusedError(f"{shown} is not admitted. Only arrays, frames and plain containers are read from a pickle")
    return Named(full, role)


class Settle:
    """Turns what was gathered into arrays, frames and containers. What is shared in the pickle stays shared."""

    def __init__(self) -> None:
        self._done: dict[int, Any] = {}
        self._open: set[int] = set()

    def settle(self, thing: Any) -> Any:
        if thing is None or isinstance(thing, str | bytes | int | float | slice):
            return thing
        if id(thing) in self._done:
            return self._done[id(thing)]
        if id(thing) in self._open or len(self._open) >= MAX_DEPTH:
            raise RefusedError(
                "containers that hold themselves, or more than 50 of them one in the other, are not read"
            )
        self._open.add(id(thing))
        settled = self._fresh(thing)
        self._open.remove(id(thing))
        self._done[id(thing)] = settled
        return settled

    def _fresh(self, thing: Any) -> Any:
        if isinstance(thing, list | tuple):
            return type(thing)(self.settle(x) for x in thing)
        if isinstance(thing, dict):
            return {key: self.settle(x) for key, x in thing.items()}
        if isinstance(thing, set | bytearray):
            return thing
        if not isinstance(thing, Made) or not isinstance(thing.name, Named):
            raise RefusedError(f"{getattr(thing, 'full', type(thing).__name__)} is named but not used as data")
        build = {
            "array": self._array,
            "buffer": self._array,
            "frame": self._frame,
            "index": self._index,
            "backed": self._backed,
            "sparse": self._sparse,
        }.get(thing.name.role)
        if build is None:
            raise RefusedError(f"{thing.name.full} is not data by itself")
        return build(thing)

    def _array(self, made: Made) -> NDArray[Any]:
        if made.name.role == "buffer":
            raw, kind, shape, order = made.args
            fortran = order == "F"
        else:
            *_, shape, kind, fortran, raw = made.state  # a version comes before them, or not
        dtype = dtype_of(kind)
        if dtype.kind != "O":
            return bytes_array(raw, dtype, shape, fortran=bool(fortran))
        if not isinstance(raw, list) or len(raw) != _size(shape):
            raise ValueError("an array of objects without its objects")
        held = np.empty(len(raw), np.object_)
        held[:] = [self.settle(x) for x in raw]
        return held.reshape(shape, order="F" if fortran else "C")

    def _backed(self, made: Made) -> NDArray[Any]:
        state = made.state if made.state is not None else made.args[2]
        arrays = [x for x in state if isinstance(x, Made) and x.name.role in ("array", "buffer")]
        return self._one_array(arrays[0])

    def _one_array(self, thing: Any) -> NDArray[Any]:
        settled = self.settle(thing)
        if not isinstance(settled, np.ndarray):
            raise TypeError(f"a {type(settled).__name__} in place of an array")
        return settled

    def _index(self, made: Made) -> NDArray[Any] | range:
        facts = made.args[1]
        if "data" in facts:
            return self._one_array(facts["data"])
        return range(facts["start"], facts["stop"], facts["step"])

    def _frame(self, made: Made) -> Frame:
        manager = made.state["_mgr"] if "_mgr" in made.state else made.state["_data"]
        if manager.args:
            blocks, axes = manager.args
            parts = [(block.args[0], block.args[1]) for block in blocks]
        else:  # as pandas wrote it until 1.2
            facts = manager.state[3]["0.14.1"]
            axes = facts["axes"]
            parts = [(block["values"], block["mgr_locs"]) for block in facts["blocks"]]
        named = [self.settle(axis) for axis in axes]
        if len(named) == 1:
            named = [range(1), *named]
        columns, index = named
        # The index is made, if it is only a range, once it is known to be as long as the values.
        values = self._joined(parts, len(columns), len(index))
        return Frame(values, np.asarray(index), np.asarray(columns))

    def _joined(self, parts: list[tuple[Any, Any]], width: int, height: int) -> NDArray[Any]:
        blocks = [np.atleast_2d(self._one_array(values)) for values, _ in parts]
        if any(block.dtype.kind not in "biuf" for block in blocks):
            wrong = next(str(block.dtype) for block in blocks if block.dtype.kind not in "biuf")
            raise RefusedError(f"a column of the frame holds {wrong}. Numbers are expected")
        if sum(len(block) for block in blocks) != width or any(block.shape[1:] != (height,) for block in blocks):
            raise ValueError("a frame whose blocks are not as large as its axes")
        if len(blocks) == 1:
            at = _placed(self.settle(parts[0][1]), width)
            return blocks[0][np.argsort(at)].T if (np.diff(at) != 1).any() else blocks[0].T
        joined = np.empty((width, height), np.result_type(*blocks))
        for block, (_, placement) in zip(blocks, parts, strict=True):
            joined[_placed(self.settle(placement), width)] = block
        return joined.T

    def _sparse(self, made: Made) -> coo_array[Any, tuple[int, int]]:
        state = made.state
        rows, columns = (int(n) for n in state["_shape"])
        data = self._one_array(state["data"])
        form = made.name.full.rpartition(".")[2][:3]
        if form == "coo":
            pair = state["coords"] if "coords" in state else (state["row"], state["col"])
            i, j = (self._one_array(x).astype(np.int64) for x in pair)
        else:
            ends = self._one_array(state["indptr"]).astype(np.int64)
            if len(ends) != (rows if form == "csr" else columns) + 1 or ends[0] or ends[-1] != len(data):
                raise ValueError("a sparse matrix whose rows are not as long as its data")
            i = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
            j = self._one_array(state["indices"]).astype(np.int64)
            i, j = (i, j) if form == "csr" else (j, i)
        return coo_array((data, (i, j)), shape=(rows, columns))


def _placed(placement: Any, width: int) -> NDArray[np.int64]:
    if isinstance(placement, slice):
        return np.arange(width)[placement]
    return np.asarray(placement, np.int64)


def _size(shape: Any) -> int:
    if not isinstance(shape, tuple) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise TypeError("a shape that is none")
    return math.prod(shape)


def dtype_of(made: Any) -> np.dtype[Any]:
    """A dtype of numbers, times, text or objects."""
    if not isinstance(made, Made) or made.name.role != "dtype":
        raise TypeError(f"a {type(made).__name__} in place of a dtype")
    code = made.args[0]
    if isinstance(code, bytes):
        code = code.decode("ascii")
    state: tuple[Any, ...] = made.state or (3, "|")
    if not re.fullmatch(r"[<>|=]?([biuf][1248]|[SU]\d{1,6}|O8?|[mM]8(\[\w+\])?)", code):
        raise RefusedError(f"an array of {code!a} is not admitted")
    if len(state) > 8 and state[8] is not None and code.endswith("8"):
        unit = state[8][1][0]
        unit = unit.decode("ascii") if isinstance(unit, bytes) else unit
        if unit not in UNITS or state[8][1][1] != 1:
            raise RefusedError(f"times in units of {unit!r} are not admitted")
        code = f"{code}[{unit}]"
    dtype: np.dtype[Any] = np.dtype(code)
    order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
    return np.dtype(order + dtype.str[1:]) if order in ("<", ">") else dtype


def bytes_array(raw: Any, dtype: np.dtype[Any], shape: Any, *, fortran: bool = False) -> NDArray[Any]:
    """An array of exactly these bytes."""
    held = raw.encode("latin-1") if isinstance(raw, str) else raw  # Python 2's bytes
    if not isinstance(held, bytes | bytearray):
        raise TypeError(f"a {type(raw).__name__} in place of bytes")
    size = _size(shape)
    if size * dtype.itemsize != len(held) or (size and not dtype.itemsize):
        raise ValueError(f"an array of {size:,} {dtype} in {len(held):,} bytes")
    return np.frombuffer(held, dtype).reshape(shape, order="F" if fortran else "C")
