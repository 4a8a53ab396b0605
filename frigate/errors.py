"""The exception tree.

FrigateError
├── CityError          a table, folder or argument does not describe a valid city; gives place, value and remedy
├── SettingsError      a setting is out of range or does not fit the city
├── CheckpointError    a run folder is missing, truncated, or from another version
├── ServiceError       a problem with the service, its store or a message; says what was found and the remedy
└── MissingExtraError  an optional package is needed; names the extra that installs it
"""

from collections.abc import Sequence
from difflib import get_close_matches


class FrigateError(Exception):
    """Base class of all errors a user can cause and fix. The message says where, what, and how to fix it."""


class CityError(FrigateError):
    """A table, folder or argument does not describe a valid city."""


class SettingsError(FrigateError):
    """A setting is out of range or does not fit the city."""


class CheckpointError(FrigateError):
    """A run folder is missing, truncated, or from another version."""


class ServiceError(FrigateError):
    """A problem with the service, its store or a message."""


class MissingExtraError(FrigateError):
    """A package is not installed; the message names the extra to install or, if there is none, the package."""

    def __init__(self, package: str, extra: str = "") -> None:
        wanted = f"'frigate-forecast[{extra}]'" if extra else package
        super().__init__(f"{package} is not installed. Run: pip install {wanted}")


FEW = 300  # up to this many words, use fuzzy matching, which is slow
MAX_WORD = 100  # characters


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The hint for a misspelt word, such as ` (did you mean "length_m"?)`; "" if no known word is close."""
    near = near_word(word, known)
    return "" if near is None else f' (did you mean "{near}"?)'


def near_word(word: str, known: Sequence[str]) -> str | None:
    """The known word that was probably meant.

    With many words, such as a city's node ids, only one that differs in a single letter or in case, which is fast.
    """
    if len(word) > MAX_WORD:
        return None
    if len(known) > FEW:
        return _one_letter_apart(word, known)
    return next(iter(get_close_matches(word, known, n=1) or get_close_matches(word.lower(), known, n=1)), None)


def _one_letter_apart(word: str, known: Sequence[str]) -> str | None:
    half = len(word) // 2
    size = len(word)
    lower = word.lower()
    head = word[:half]  # a single typo leaves one of the halves intact
    tail = word[half + 1 :]
    for name in known:
        if -2 < len(name) - size < 2 and (name.startswith(head) or name.endswith(tail)):
            at = next((i for i, (x, y) in enumerate(zip(word, name, strict=False)) if x != y), min(size, len(name)))
            if word[at + 1 :] in (name[at + 1 :], name[at:]) or word[at:] == name[at + 1 :]:
                return name
    return next((name for name in known if name.lower() == lower), None)
