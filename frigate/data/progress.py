"""Progress of long-running work."""

import sys
import time
from collections.abc import Callable

PLAIN_PROGRESS_S = 15.0  # between two lines

Progress = Callable[[int, int, str], None]  # done, total, and what is being done ("" if obvious)


def plain_progress(title: str, say: Callable[[str], None]) -> Progress:
    """Progress as an occasional line with the time left."""
    last, first = time.monotonic(), None  # time left counts from the first update, after any preparation

    def update(done: int, total: int, words: str) -> None:
        nonlocal last, first
        now = time.monotonic()
        first = first or (now, done)
        if now - last < PLAIN_PROGRESS_S or not first[1] < done < total:
            return
        last, left_s = now, (now - first[0]) * (total - done) / (done - first[1])
        say(f"{title} {words}".strip() + f": {done / total:.0%}, {left_s / 60:.0f} min left")

    return update


def print_line(text: str) -> None:
    """Print a line of progress to stderr, which keeps stdout for results."""
    print(text, file=sys.stderr, flush=True)
