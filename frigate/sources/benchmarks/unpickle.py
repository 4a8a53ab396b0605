"""Pickles without running them: a pickle is a program, and this reads one as data.

Nothing that a pickle names is ever imported or called. Its opcodes are followed here, every name in it must be one of
those admitted (`pickled`), and any other is refused by name.

Memory is bounded by the file: an array is no larger than its bytes in it, and a .gz may not expand a thousandfold.
"""

from __future__ import annotations

import gzip
import pickletools
import struct
import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from frigate.errors import CityError
from frigate.sources.benchmarks.pickle_types import (
    Frame,
    Made,
    Named,
    RefusedError,
    Settle,
    admitted,
    bytes_array,
    dtype_of,
)

__all__ = ["Frame", "unpickle"]

MAX_EXPANSION = 500  # times the size of the .gz: deflate reaches 1,032 on nothing but zeros
MIN_LIMIT = 1 << 24  # small files may expand to this much whatever the factor

_MARK = object()


def unpickle(path: Path) -> Any:
    """What is in a pickle (protocols 0 to 5, Python 2 or 3, plain or .gz), or CityError."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            size = path.stat().st_size
            limit = max(MIN_LIMIT, MAX_EXPANSION * size) if zipped else size
            if not zipped:
                return Settle().settle(_run(_Bounded(raw, limit)))
            with gzip.GzipFile(fileobj=raw) as unzipped:
                return Settle().settle(_run(_Bounded(unzipped, limit)))
    except RefusedError as why:
        raise CityError(f"{path.name}: {why}") from None
    except OSError as error:
        raise CityError(f"{path.name} cannot be read: {error.strerror or error}") from None
    except (
        *(ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError),
        *(EOFError, zlib.error, struct.error, RecursionError, MemoryError),
    ) as error:
        # Not one of them is ours: a pickle cut short or altered can go wrong at any opcode.
        detail = (str(error).splitlines() or [""])[0][:100]
        raise CityError(
            f"{path.name} is not a whole pickle ({type(error).__name__}: {detail}). Save it again"
        ) from None


class _Bounded:
    """A file that may give so many bytes and no more."""

    def __init__(self, file: BinaryIO | gzip.GzipFile, limit: int) -> None:
        self._file, self._left, self._limit = file, limit, limit

    def read(self, count: int) -> bytes:
        held = self._file.read(max(0, min(count, self._left + 1)))
        return self._counted(held)

    def readline(self) -> bytes:
        return self._counted(self._file.readline(self._left + 1))

    def _counted(self, held: bytes) -> bytes:
        self._left -= len(held)
        if self._left < 0:
            raise RefusedError(
                f"it expands to more than {self._limit:,} bytes. Unpack it, if you trust it, and give that"
            )
        return held


# The opcodes


_LITERAL = frozenset(
    (
        *("INT", "LONG", "LONG1", "LONG4", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    )
)
_CONSTANT = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_SHORT_TUPLE = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _run(file: _Bounded) -> Any:
    """Follow the opcodes of a pickle to its one result."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # odd escapes of a damaged text are no news
        opcodes = list(pickletools.genops(cast(IO[bytes], file)))
    for op, operand, _ in opcodes:
        arg: Any = operand
        name = op.name
        if name in _LITERAL:
            stack.append(arg)
        elif name in _CONSTANT:
            stack.append(_CONSTANT[name])
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[arg] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[arg])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("POP", "POP_MARK"):
            if name == "POP_MARK":
                _to_mark(stack)
            else:
                stack.pop()
        elif name == "DUP":
            stack.append(stack[-1])
        elif name == "STOP":
            break
        elif name not in ("PROTO", "FRAME") and not _container(name, stack):
            _make(name, arg, stack)
    if len(stack) != 1:
        raise ValueError("it does not end in one object")
    return stack[0]


def _to_mark(stack: list[Any]) -> list[Any]:
    held: list[Any] = []
    while (top := stack.pop()) is not _MARK:
        held.append(top)
    return held[::-1]


def _container(name: str, stack: list[Any]) -> bool:
    """Opcodes of tuples, lists, dicts and sets; False where it is none of them."""
    if name in _SHORT_TUPLE:
        count = _SHORT_TUPLE[name]
        held = [stack.pop() for _ in range(count)][::-1]
        stack.append(tuple(held))
    elif name in ("TUPLE", "LIST", "FROZENSET"):
        held = _to_mark(stack)
        stack.append(tuple(held) if name == "TUPLE" else held if name == "LIST" else _key_set(held))
    elif name in ("EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET"):
        stack.append({"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}[name]())
    elif name in ("APPEND", "APPENDS"):
        more = _to_mark(stack) if name == "APPENDS" else [stack.pop()]
        list.extend(stack[-1], more)  # a list, or TypeError
    elif name == "ADDITEMS":
        more = _to_mark(stack)
        set.update(stack[-1], _key_set(more))
    elif name in ("SETITEM", "SETITEMS", "DICT"):
        pairs = [stack.pop(), stack.pop()][::-1] if name == "SETITEM" else _to_mark(stack)
        if name == "DICT":
            stack.append({})
        dict.update(stack[-1], zip(map(_key, pairs[::2]), pairs[1::2], strict=True))
    else:
        return False
    return True


def _key(key: Any) -> Any:
    """A key of a dict. Tuples in tuples would take for ever to hash."""
    parts = key if isinstance(key, tuple) else (key,)
    if not all(isinstance(part, str | bytes | int | float | None) for part in parts):
        raise RefusedError(f"a {type(key).__name__} as a key of a dict or a set is not admitted")
    return key


def _key_set(items: Iterable[Any]) -> set[Any]:
    return {_key(item) for item in items}


def _make(name: str, arg: Any, stack: list[Any]) -> None:
    """Opcodes that name things and would call them."""
    if name == "GLOBAL":
        stack.append(admitted(*arg.split(" ", 1)))
    elif name == "STACK_GLOBAL":
        word, module = stack.pop(), stack.pop()
        stack.append(admitted(module, word))
    elif name == "BUILD":
        state, made = stack.pop(), stack[-1]
        if not isinstance(made, Made):
            raise TypeError(f"a state for a {type(made).__name__}")
        made.state = state
    elif name in ("REDUCE", "NEWOBJ", "NEWOBJ_EX"):
        if name == "NEWOBJ_EX" and stack.pop():
            raise RefusedError("an object made with keywords is not admitted")
        args, called = stack.pop(), stack.pop()
        if not isinstance(called, Named) or not isinstance(args, tuple):
            raise TypeError(f"a {type(called).__name__} is called")
        stack.append(_called(called, args))
    else:
        raise RefusedError(f"the opcode {name} is not admitted")


def _called(name: Named, args: tuple[Any, ...]) -> Any:
    """What needs no state is made at once, so that it can be a key."""
    if name.role == "dict":
        return {}
    if name.role == "set":
        return _key_set(args[0] if args else ())
    if name.role == "bytes":
        return b"".join(args)  # none, or the bytes themselves; a number of them would be a TypeError
    if name.role == "encode":
        return args[0].encode("latin-1")
    if name.role == "slice":
        return slice(*args)
    if name.role == "scalar":
        return bytes_array(args[1], dtype_of(args[0]), ()).item()
    if name.role == "new":
        return Made(args[0], ())
    return Made(name, args)
