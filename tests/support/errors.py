"""Checks an error by its class and by what its message names, not by its wording."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from frigate.errors import FrigateError

Kind = type[FrigateError] | tuple[type[FrigateError], ...]


@contextmanager
def raises(kind: Kind, *named: str) -> Iterator[pytest.ExceptionInfo[FrigateError]]:
    """Exactly this kind of error, not a subclass, whose message names the place and then the values, in any order."""
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.type in (kind if isinstance(kind, tuple) else (kind,))
    message = str(caught.value)
    assert [word for word in named if not names(message, word)] == [], message


def names(message: str, word: str) -> bool:
    """Whether a message has a word or phrase as a whole: "line 5" is not in "line 53", nor "1" in "1.5" or "2,001"."""
    before = r"(?<!\w)(?<!\d[.,])" if word[0].isalnum() else ""
    after = r"(?!\w|[.,]\d)" if word[-1].isalnum() else ""
    return re.search(before + re.escape(word) + after, message) is not None
