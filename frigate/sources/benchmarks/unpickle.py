"""Read pickles of arrays, pandas frames, sparse matrices and plain containers without running what they name.

A pickle is a program that names classes and functions, and calls them. Python's own unpickler runs it here, but every
name is looked up in a short list of stand-ins, which only record their arguments. Nothing else is imported or called.
Arrays are then built from what was recorded, each from exactly the bytes that the file has for it.

Benchmarks are imported in the sandbox, which stops a pickle that takes too much memory or time.
"""

from __future__ import annotations

import gzip
import math
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csc_array, csr_array

from frigate.errors import CityError
from frigate.reading.files import parsing
from frigate.reading.sandbox import reading

__all__ = ["Frame", "unpickle"]

MAX_DEPTH = 50  # of nested containers
UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns")


@dataclass(frozen=True)
class Frame:
    """A pandas frame, as arrays. A series has one column."""

    values: NDArray[Any]  # [rows, columns]
    index: NDArray[Any]  # [rows]
    columns: NDArray[Any]  # [columns]


class _UnreadablePickleError(Exception):
    """Why a pickle is not read."""


def unpickle(path: Path) -> Any:
    """Read a pickle (protocols 0 to 5, Python 2 or 3, plain or .gz). CityError if it is damaged or refused."""
    reading(path)
    with parsing(path), path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        file = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if zipped else raw
        try:
            return _Finish().finish(_Unpickler(file, encoding="latin-1").load())
        except _UnreadablePickleError as why:
            raise CityError(f"{path.name}: {why}") from None


# Stand-ins: what a pickle may call. They are classes, so that a pickle can only set the state of their own objects.


class _StandIn:
    """Records the arguments of the class or function that it stands for."""

    role = "class"  # default: only passed to other stand-ins, or of no use
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> Any:
        made = object.__new__(cls)
        made.args = args
        made.state = None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _stand_in(role: str) -> type[_StandIn]:
    return type(role, (_StandIn,), {"role": role})


class _Dtype(_StandIn):
    def real(self) -> np.dtype[Any]:
        """The numpy dtype: numbers, times, text or objects."""
        code = _text(self.args[0])
        state: tuple[Any, ...] = self.state or (3, "|")
        if not re.fullmatch(r"[<>|=]?([biuf][1248]|[SU]\d{1,6}|O8?|[mM]8(\[\w+\])?)", code):
            raise _UnreadablePickleError(f"an array of {code!a} is not read")
        if len(state) > 8 and state[8] is not None and code.endswith("8"):
            unit = _text(state[8][1][0])
            count = state[8][1][1]
            if unit not in UNITS or count != 1:
                raise _UnreadablePickleError(f"times in units of {count} {unit!r} are not read")
            code = f"{code}[{unit}]"
        dtype: np.dtype[Any] = np.dtype(code)
        order = _text(state[1])
        return np.dtype(order + dtype.str[1:]) if order in ("<", ">") else dtype


class _Scalar(_StandIn):
    def __new__(cls, dtype: Any, raw: Any) -> Any:
        return _from_bytes(raw, dtype.real(), ()).item()


class _Dict(_StandIn):
    def __new__(cls, *_: Any) -> Any:
        return {}


class _Encode(_StandIn):
    def __new__(cls, text: str, _: Any = None) -> Any:
        return text.encode("latin-1")


class _New(_StandIn):
    def __new__(cls, kind: Any, *_: Any) -> Any:
        return kind()


_NAMES = {
    "numpy.ndarray": _StandIn,
    "numpy.matrix": _StandIn,
    "numpy.matrixlib.defmatrix.matrix": _StandIn,
    "numpy.dtype": _Dtype,
    **{f"numpy.{core}.multiarray._reconstruct": _stand_in("array") for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": _Scalar for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": _stand_in("buffer") for core in ("core", "_core")},
    "collections.OrderedDict": _Dict,
    "collections.defaultdict": _Dict,
    "_codecs.encode": _Encode,
    "copyreg._reconstructor": _New,
    "copy_reg._reconstructor": _New,
    **{
        f"{python}.{kind.__name__}": kind if kind in (set, frozenset, bytes, bytearray, slice) else _StandIn
        for python in ("builtins", "__builtin__")
        for kind in (set, frozenset, bytes, bytearray, slice, object, list, dict, tuple, int, float, str, bool)
    },
}
# By name without module, because pandas and scipy have moved them over the years.
_PANDAS = {
    **dict.fromkeys(("DataFrame", "Series"), _stand_in("frame")),
    **dict.fromkeys(("BlockManager", "SingleBlockManager", "_unpickle_block"), _stand_in("blocks")),
    **dict.fromkeys(("_new_Index", "_new_DatetimeIndex"), _stand_in("index")),
    "__pyx_unpickle_NDArrayBacked": _stand_in("backed"),
    **dict.fromkeys(("Index", "RangeIndex", "Int64Index", "UInt64Index", "Float64Index", "DatetimeIndex"), _StandIn),
    **dict.fromkeys(("DatetimeArray", "StringArray", "StringDtype", "Day", "Hour", "Minute", "Second"), _StandIn),
}
_SPARSE = {f"{form}_{kind}": _stand_in(form) for form in ("coo", "csr", "csc") for kind in ("array", "matrix")}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        found: Any = _NAMES.get(full)
        if re.fullmatch(r"pandas(\.[a-z_]+)*", module):
            found = _PANDAS.get(name)
        elif re.fullmatch(r"scipy\.sparse(\.[a-z_]+)*", module):
            found = _SPARSE.get(name)
        if found is None:
            shown = full if len(full) <= 120 and full.isprintable() else ascii(full[:120])
            raise _UnreadablePickleError(
                f"{shown} is not allowed. Only arrays, frames and plain containers are read from a pickle"
            )
        return found


# From stand-ins to arrays


class _Finish:
    """Turns stand-ins into arrays, frames and matrices. Objects shared in the pickle stay shared."""

    def __init__(self) -> None:
        self._done: dict[int, Any] = {}
        self._open: set[int] = set()

    def finish(self, thing: Any) -> Any:
        if thing is None or isinstance(thing, str | bytes | bytearray | int | float | slice | set | frozenset):
            return thing
        if id(thing) in self._done:
            return self._done[id(thing)]
        if id(thing) in self._open or len(self._open) >= MAX_DEPTH:
            raise _UnreadablePickleError(f"containers that contain themselves, or over {MAX_DEPTH} deep, are not read")
        self._open.add(id(thing))
        made = self._made(thing)
        self._open.remove(id(thing))
        self._done[id(thing)] = made
        return made

    def _made(self, thing: Any) -> Any:
        match thing:
            case list() | tuple():
                return type(thing)(self.finish(x) for x in thing)
            case dict():
                return {key: self.finish(x) for key, x in thing.items()}
            case _StandIn(role="array", state=(*_, shape, _Dtype() as dtype, fortran, raw)):  # a version may come first
                return self._array(raw, dtype.real(), shape, fortran=bool(fortran))
            case _StandIn(role="buffer", args=(raw, _Dtype() as dtype, shape, order)):
                return self._array(raw, dtype.real(), shape, fortran=order == "F")
            case _StandIn(role="index", args=(_, {"data": data})):
                return self._one_array(data)
            case _StandIn(role="index", args=(_, {"start": start, "stop": stop, "step": step})):
                return range(start, stop, step)
            case _StandIn(role="backed"):
                state = thing.args[2] if thing.state is None else thing.state
                return self._one_array(next(x for x in state if getattr(x, "role", "") in ("array", "buffer")))
            case _StandIn(role="frame", state={"_mgr": manager} | {"_data": manager}):
                return self._frame(manager)
            case _StandIn(role="coo" | "csr" | "csc"):
                return self._sparse(thing)
        kind = "class" if isinstance(thing, type) else getattr(thing, "role", type(thing).__name__)
        raise _UnreadablePickleError(f"it holds a {kind}, which is not data")

    def _array(self, raw: Any, dtype: np.dtype[Any], shape: Any, *, fortran: bool) -> NDArray[Any]:
        if dtype.kind != "O":
            return _from_bytes(raw, dtype, shape, fortran=fortran)
        if not isinstance(raw, list) or len(raw) != _size(shape):
            raise ValueError("an array of objects without its objects")
        held = np.empty(len(raw), np.object_)
        held[:] = [self.finish(x) for x in raw]
        return held.reshape(shape, order="F" if fortran else "C")

    def _one_array(self, thing: Any) -> NDArray[Any]:
        made = self.finish(thing)
        if not isinstance(made, np.ndarray):
            raise TypeError(f"a {type(made).__name__} in place of an array")
        return made

    def _frame(self, manager: _StandIn) -> Frame:
        if manager.args:
            blocks, axes = manager.args
            parts = [block.args[:2] for block in blocks]
        else:  # pandas before 1.3
            facts = manager.state[3]["0.14.1"]
            axes = facts["axes"]
            parts = [(block["values"], block["mgr_locs"]) for block in facts["blocks"]]
        columns, index = [range(1)] * (len(axes) == 1) + [self.finish(axis) for axis in axes]
        # Expand a range only after checking its length against the values: a file may claim a huge one.
        values = self._joined(parts, len(columns), len(index))
        return Frame(values, np.asarray(index), np.asarray(columns))

    def _joined(self, parts: list[Any], width: int, height: int) -> NDArray[Any]:
        blocks = [np.atleast_2d(self._one_array(values)) for values, _ in parts]
        for block in blocks:
            if block.dtype.kind not in "biuf":
                raise _UnreadablePickleError(f"a column of the frame holds {block.dtype}. Numbers are expected")
        if sum(len(block) for block in blocks) != width or any(block.shape[1:] != (height,) for block in blocks):
            raise ValueError("a frame whose blocks do not match its axes")
        joined = np.empty((width, height), np.result_type(*blocks))
        for block, (_, placement) in zip(blocks, parts, strict=True):
            joined[placement if isinstance(placement, slice) else self._one_array(placement)] = block
        return joined.T

    def _sparse(self, thing: _StandIn) -> coo_array[Any, tuple[int, int]]:
        state = thing.state
        rows, columns = (int(n) for n in state["_shape"])
        data = self._one_array(state["data"])
        if thing.role == "coo":
            pair = state["coords"] if "coords" in state else (state["row"], state["col"])
            i, j = (self._one_array(x).astype(np.int64) for x in pair)
            return coo_array((data, (i, j)), shape=(rows, columns))
        indices, starts = (self._one_array(state[name]).astype(np.int64) for name in ("indices", "indptr"))
        made = (csr_array if thing.role == "csr" else csc_array)((data, indices, starts), shape=(rows, columns))
        made.check_format()  # row lengths may not match the data
        return made.tocoo()


def _text(value: Any) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else str(value)


def _size(shape: Any) -> int:
    if not isinstance(shape, tuple) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise TypeError("an invalid shape")
    return math.prod(shape)


def _from_bytes(raw: Any, dtype: np.dtype[Any], shape: Any, *, fortran: bool = False) -> NDArray[Any]:
    """An array of exactly these bytes."""
    held = raw.encode("latin-1") if isinstance(raw, str) else raw  # Python 2's bytes
    if not isinstance(held, bytes | bytearray):
        raise TypeError(f"a {type(raw).__name__} in place of bytes")
    size = _size(shape)
    if size * dtype.itemsize != len(held) or (size and not dtype.itemsize):
        raise ValueError(f"an array of {size:,} {dtype} in {len(held):,} bytes")
    return np.frombuffer(held, dtype).reshape(shape, order="F" if fortran else "C")
