"""Kill or signal a process at an exact moment: when it is about to do something to a file. No sleeping, no luck.

    python -m tests.support.crash_points PART COUNT COMMAND...    `frigate COMMAND`, killed at file event COUNT

A file event is an opening, renaming, making or removing of a path that has PART in it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"}


def at_file_event(part: str, count: int, then: Callable[[], None]) -> None:
    """Call `then` in this process just before its file event number `count`, from 1 on."""
    left = count

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal left
        if event in EVENTS and any(isinstance(path, str | os.PathLike) and part in str(path) for path in args[:2]):
            left -= 1
            if left == 0:
                then()

    sys.addaudithook(hook)


if __name__ == "__main__":
    from frigate.cli.main import main

    at_file_event(sys.argv[1], int(sys.argv[2]), lambda: os.kill(os.getpid(), signal.SIGKILL))
    sys.exit(main(sys.argv[3:]))
