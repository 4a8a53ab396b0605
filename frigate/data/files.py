"""Files and folders written whole or not at all, and errors of reading them in our words."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from frigate.errors import CityError, FrigateError


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


def check_replaceable(folder: Path, is_ours: Callable[[str], bool], what: str) -> None:
    """Refuse to replace a file, or a folder that holds more than `what`, which names of files show."""
    if folder.exists() and not folder.is_dir():
        raise CityError(f"{folder} is a file. Name a folder")
    foreign = sorted(p.name for p in folder.iterdir() if not is_ours(p.name)) if folder.exists() else []
    if foreign:
        raise CityError(f"{folder} holds more than {what} ({', '.join(foreign[:3])}). Name another folder")


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """A file of the same name to write to, which takes the place of `path` when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        yield Path(folder) / path.name
        os.replace(Path(folder) / path.name, path)


def write_file(path: Path, content: str | bytes) -> None:
    """Write text as UTF-8, or bytes."""
    with replacing_file(path) as new:
        new.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder` that takes its place when the block ends well."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        (work / "new").mkdir()
        yield work / "new"
        if folder.exists():
            os.rename(folder, work / "old")
        os.rename(work / "new", folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
