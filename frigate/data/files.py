"""Files and folders written whole or not at all: a reader finds the old one or the new one, never half of either."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
