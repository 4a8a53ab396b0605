"""Kill or signal a process at an exact moment: when it is about to do something to a file. No sleeping, no luck.

    python -m tests.support.crash_points SIGKILL PART COUNT COMMAND...    `frigate COMMAND`, killed at file event COUNT

A file event is an opening, renaming, making or removing of a path that has PART in it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"}


def at_file_event(part: str, count: int, then: Callable[[], None]) -> Callable[[], None]:
    """Call `then` in this process just before its file event number `count`, from 1 on, unless disarmed."""
    left = count

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal left
        if event in EVENTS and any(isinstance(path, str | os.PathLike) and part in str(path) for path in args[:2]):
            left -= 1
            if left == 0:
                then()

    def disarm() -> None:
        nonlocal left
        left = 0

    sys.addaudithook(hook)
    return disarm


def frigate_signalled(number: signal.Signals, part: str, count: int, *words: str) -> subprocess.CompletedProcess[str]:
    """`frigate WORDS` in a process that gets the signal just before its file event number `count`."""
    command = [sys.executable, "-m", "tests.support.crash_points", number.name, part, str(count), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    from frigate.cli.main import main

    number = signal.Signals[sys.argv[1]]
    (part, count) = sys.argv[2:4]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have ignored Ctrl-C, which children inherit
    at_file_event(part, int(count), lambda: os.kill(os.getpid(), number))
    sys.exit(main(sys.argv[4:]))
