"""Atomic writes of files and folders, and clear errors for files that cannot be read.

New content is written to a temporary folder next to the target, `.NAME.frigate-...`, and renamed into place. The
process that writes it holds a lock: a folder without one was left by a killed process, and the next process removes it.
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

MARKER = ".frigate.json"  # lists the files that Frigate wrote to a folder, with size and digest
TEMPORARY = ".frigate-"


@contextmanager
def file_errors() -> Iterator[None]:
    """Turn an OSError into a CityError that names the file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        if isinstance(error, FileNotFoundError):
            raise CityError(f"{error.filename}: no such file") from None
        raise CityError(f"{Path(error.filename).name} cannot be read: {error.strerror}") from None


@contextmanager
def parsing(path: Path) -> Iterator[None]:
    """Turn whatever a parser raises on a damaged file into a CityError that names the file."""
    import numpy as np

    try:
        with np.errstate(all="ignore"):  # sizes in a damaged header overflow
            yield
    except (FrigateError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        detail = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise CityError(f"{path.name} is damaged or cut short: {detail}. Save or download it again") from None


def check_regular(path: Path) -> None:
    """Refuse a pipe, which may block, and a device, which may be endless."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise CityError(f"{path} is a pipe or a device. Save its content to a file first")


def digest(path: Path) -> list[Any]:
    """Size and digest of a file."""
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def sync(path: Path) -> None:
    """Flush a file or folder to disk."""
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
        The folder to replace; it need not exist.
    is_ours
        Whether an entry of the folder can be part of `what`. Any other entry is never replaced.
    what
        What is written there, such as "a city".
    overwrite
        Whether to replace files that Frigate did not write, or that have changed since.
    """
    clear_leftovers(folder)
    if folder.exists() and not folder.is_dir():
        raise CityError(f"{folder} is a file. Name a folder")
    there = sorted(path for path in folder.iterdir() if path.name != MARKER) if folder.exists() else []
    there = [path for path in there if not (path.name.startswith(".") and TEMPORARY in path.name)]
    foreign = [path.name for path in there if not is_ours(path)]
    if foreign:
        raise CityError(f"{folder} holds other files than {what} ({', '.join(foreign[:3])}). Name another folder")
    written = _marked(folder)
    others = [path.name for path in there if path.is_file() and written.get(path.name) != digest(path)]
    if others and not overwrite:
        raise CityError(
            f"{folder}: not written by Frigate, or changed since: {', '.join(others)}. "
            "Name another folder, or replace it with --overwrite"
        )


def _marked(folder: Path) -> dict[str, Any]:
    """Size and digest of the files that Frigate wrote to a folder, by name."""
    try:
        files = json.loads((folder / MARKER).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return files if isinstance(files, dict) else {}


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Yield a file to write to, which replaces `path` if the block succeeds."""
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path  # a pipe or device such as /dev/stdout cannot be replaced
        return
    path = path.resolve()  # keep a symbolic link, and replace its target
    with _temporary_folder(path) as new:
        yield new / path.name
        sync(new / path.name)
        os.replace(new / path.name, path)


def write_file(path: Path, content: str | bytes) -> None:
    """Write text as UTF-8, or bytes."""
    with replacing_file(path) as new:
        new.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def replacing_folder(folder: Path, *, lasting: bool = True, keep: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a new folder that replaces `folder` if the block succeeds; until then the old one stays.

    If `lasting`, it is marked as Frigate's and flushed to disk before the old one is removed; a cache needs neither.
    Entries named in `keep` are moved from the old folder to the new one.
    """
    with _temporary_folder(folder) as new:
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
def _temporary_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder `new` to write to. If `path` was moved to `old` next to it and not replaced, restore it."""
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
        work = Path(tempfile.mkdtemp(prefix=f".{path.name}{TEMPORARY}", dir=path.parent))
        lock = os.open(work, os.O_RDONLY)
        with suppress(OSError):  # a file system without locks: nobody can take it for a leftover either
            fcntl.flock(lock, fcntl.LOCK_EX)
        if work.exists():
            return work, lock
        os.close(lock)  # another process removed it before it was locked


def clear_leftovers(path: Path) -> None:
    """Remove what killed processes left next to `path`, and restore an old version that was moved but not replaced."""
    for work in path.parent.glob(f".{glob.escape(path.name)}{TEMPORARY}*"):
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
