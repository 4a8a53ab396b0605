"""Progress of long-running work."""

import sys
import time
from collections.abc import Callable

PLAIN_PROGRESS_S = 15.0  # between two lines

Progress = Callable[[int, int, str], None]  # done, total, and what is being done ("" if obvious)


def plain_progress(title: str, say: Callable[[str], None]) -> Progress:
    """Progress as an occasional line with the time left.

    Time left counts from the first update, after any preparation; a new total is a new piece of work.
    """
    last = time.monotonic()
    began_s = 0.0
    began_at = 0
    of = -1

    def update(done: int, total: int, words: str) -> None:
        nonlocal last, began_s, began_at, of
        now = time.monotonic()
        if total != of:
            began_s = now
            began_at = done
            of = total
        if now - last < PLAIN_PROGRESS_S or not began_at < done < total:
            return
        last = now
        left_s = (now - began_s) * (total - done) / (done - began_at)
        left = f"{left_s / 60:.0f} min" if left_s > 90 else f"{left_s:.0f} s"
        say(f"{title} {words}".strip() + f": {done / total:.0%}, {left} left")

    return update


def print_line(text: str) -> None:
    """Print a line of progress to stderr, which keeps stdout for results."""
    print(text, file=sys.stderr, flush=True)
