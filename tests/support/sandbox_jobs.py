"""Functions that the tests of the sandbox run in a worker: well-behaved ones, and one for each way to die."""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from frigate.errors import CityError, MissingExtraError
from frigate.reading import sandbox
from frigate.reading.sandbox import in_sandbox, reading, sandboxed


def same(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return (*args, kwargs) if kwargs else args


def process_id() -> int:
    return os.getpid()


def surroundings() -> tuple[str, str | None]:
    return os.getcwd(), os.environ.get("FRIGATE_TEST")


def refuse(path: Path) -> None:
    raise CityError(f"{path.name} line 3: no")


def lack() -> None:
    raise MissingExtraError("h5py", "h5")


def slip() -> None:
    raise KeyError("deep inside")


class OddError(Exception):
    def __init__(self, held: Any) -> None:
        super().__init__("odd")
        self.held = held


def odd() -> None:
    raise OddError(lambda: None)


def warn() -> int:
    warnings.warn("mind the gap", UserWarning, stacklevel=1)
    return 7


def meet(folder: Path, many: int) -> int:
    """Wait until so many processes are in here at once."""
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < many:
        time.sleep(0.01)
    return os.getpid()


@sandboxed
def decorated(depth: int) -> list[int]:
    """The processes that the function and those it calls run in."""
    return [os.getpid(), *(decorated(depth - 1) if depth else [in_sandbox(process_id)])]


def crash(path: Path) -> None:
    reading(path)
    ctypes.string_at(0)


class PanicException(BaseException):
    """As a reader in Rust raises it."""


def panic(path: Path) -> None:
    reading(path)
    raise PanicException("not what was expected")


def abort(path: Path) -> None:
    os.abort()


def greed(path: Path) -> int:
    return len(np.ones(1 << 26))


def hang(path: Path) -> None:
    while True:
        pass


def wait(path: Path) -> None:
    path.write_text(str(os.getpid()))
    time.sleep(600)


def crash_with_a_scratch_folder(folder: Path) -> None:
    with sandbox.scratch_folder() as scratch:
        Path(scratch, "copy.csv").write_text("a copy")
        (folder / "there").write_text(str(Path(scratch).parent == folder))
        os.abort()


def hoard() -> int:
    """Keep more memory beyond the call than a worker may, here a tenth of what is allowed in use."""
    sandbox.RETIRE_GB /= 10
    globals()["hoarded"] = np.ones(15_000_000)
    return os.getpid()


def fill() -> Any:
    """A large result, in a process whose temporary files are always full."""
    tempfile.TemporaryFile = lambda: open("/dev/full", "wb")  # type: ignore[assignment]  # noqa: SIM115
    return np.ones(100_000)


def write(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)
