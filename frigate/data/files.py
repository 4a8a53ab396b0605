"""Files and folders written whole or not at all, and errors of reading them in our words.

What is new is written to a folder beside, `.NAME.frigate-...`, and renamed into place. That folder is locked while its
process lives: one that is not locked was left by a killed process, and is cleared away by the next that comes.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from frigate.errors import CityError, FrigateError

MARKER = ".frigate.json"  # in a folder that Frigate wrote: its files, with size and digest
BESIDE = ".frigate-"


@contextmanager
def file_errors() -> Iterator[None]:
    """Turn what the system says about a file into an error that names it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        if isinstance(error, FileNotFoundError):
            raise CityError(f"{error.filename}: there is no such file") from None
        raise CityError(f"{Path(error.filename).name} cannot be read: {error.strerror}") from None


@contextmanager
def parsing(path: Path) -> Iterator[None]:
    """Turn whatever a parser stumbles over in a damaged file into an error that names the file."""
    import numpy as np

    try:
        with np.errstate(all="ignore"):  # numpy multiplies the sizes that a damaged header claims
            yield
    except (FrigateError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        detail = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise CityError(f"{path.name} is damaged or cut short: {detail}. Save or fetch it again") from None


def check_regular(path: Path) -> None:
    """Refuse a pipe, which may never begin, and a device, which may never end."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise CityError(f"{path} is a pipe or a device. Save what it gives to a file first")


def digest(path: Path) -> list[Any]:
    """Size and digest of a file."""
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def sync(path: Path) -> None:
    """Return when a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_replaceable(folder: Path, is_ours: Callable[[Path], bool], what: str, *, overwrite: bool) -> None:
    """Refuse to replace what Frigate did not write.

    Parameters
    ----------
    folder
        What is to be replaced; it need not exist.
    is_ours
        Whether something in the folder may be a part of `what`. Anything else is never replaced.
    what
        What is written there, such as "a city".
    overwrite
        Whether to replace parts that Frigate did not write, or that have changed since.
    """
    clear_leftovers(folder)
    if folder.exists() and not folder.is_dir():
        raise CityError(f"{folder} is a file. Name a folder")
    there = sorted(path for path in folder.iterdir() if path.name != MARKER) if folder.exists() else []
    there = [path for path in there if not (path.name.startswith(".") and BESIDE in path.name)]
    foreign = [path.name for path in there if not is_ours(path)]
    if foreign:
        raise CityError(f"{folder} holds more than {what} ({', '.join(foreign[:3])}). Name another folder")
    written = _marked(folder)
    others = [path.name for path in there if path.is_file() and written.get(path.name) != digest(path)]
    if others and not overwrite:
        raise CityError(
            f"{folder}: not written by Frigate, or changed since: {', '.join(others)}. "
            "Name another folder, or replace it with --overwrite"
        )


def _marked(folder: Path) -> dict[str, Any]:
    """By name, size and digest of the files that Frigate wrote to a folder."""
    try:
        files = json.loads((folder / MARKER).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return files if isinstance(files, dict) else {}


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """A file of the same name to write to, which takes the place of `path` when the block ends well."""
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path  # a pipe or a device, such as /dev/stdout: there is nothing to replace
        return
    path = path.resolve()  # a link stays one
    with _beside(path) as new:
        yield new / path.name
        sync(new / path.name)
        os.replace(new / path.name, path)


def write_file(path: Path, content: str | bytes) -> None:
    """Write text as UTF-8, or bytes."""
    with replacing_file(path) as new:
        new.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def replacing_folder(folder: Path, *, lasting: bool = True, keep: Sequence[str] = ()) -> Iterator[Path]:
    """A new folder beside `folder` that takes its place when the block ends well; the old one stays until then.

    A lasting one is marked as Frigate's and is on the disk before the old one goes. A cache needs neither. What is
    named in `keep` moves from the old folder to the new one.
    """
    with _beside(folder) as new:
        yield new
        if lasting:
            files = {path.name: digest(path) for path in sorted(new.iterdir())}
            (new / MARKER).write_text(json.dumps({"files": files}, indent=1), encoding="utf-8")
            for path in (*new.iterdir(), new):
                sync(path)
        if folder.exists():
            os.rename(folder, new.parent / "old")
        os.rename(new, folder)
        for name in keep:
            if (new.parent / "old" / name).exists():
                os.rename(new.parent / "old" / name, folder / name)
        if lasting:
            sync(folder.parent)


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """An empty folder to write to, with room for `old` beside it, which comes back where nothing took its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(path)
    work, lock = _locked_folder(path)
    try:
        (work / "new").mkdir()
        yield work / "new"
    finally:
        try:
            _clear(work, path)
        finally:
            os.close(lock)


def _locked_folder(path: Path) -> tuple[Path, int]:
    while True:
        work = Path(tempfile.mkdtemp(prefix=f".{path.name}{BESIDE}", dir=path.parent))
        lock = os.open(work, os.O_RDONLY)
        with suppress(OSError):  # where the file system has no locks, nobody takes it for a leftover either
            fcntl.flock(lock, fcntl.LOCK_EX)
        if work.exists():
            return work, lock
        os.close(lock)  # cleared away by another process before it was locked


def clear_leftovers(path: Path) -> None:
    """Clear away what killed processes left beside `path`; what one had put aside, but not replaced, comes back."""
    for work in path.parent.glob(f".{glob.escape(path.name)}{BESIDE}*"):
        with suppress(OSError):
            lock = os.open(work, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _clear(work, path)
            finally:
                os.close(lock)


def _clear(work: Path, path: Path) -> None:
    if (work / "old").exists() and not path.exists():
        os.rename(work / "old", path)
    shutil.rmtree(work, ignore_errors=True)
