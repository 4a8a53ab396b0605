"""What can go wrong, in one small tree.

FrigateError
├── CityError          a table, folder or argument describes no valid city; names place, value and remedy
├── SettingsError      a setting is out of its range or does not fit the city
├── CheckpointError    a run folder is missing, cut short, or from another version
├── ServiceError       the service, its store or a message of it; names what it found and the remedy
└── MissingExtraError  an optional package is needed; names the extra that installs it
"""

from collections.abc import Sequence
from difflib import get_close_matches


class FrigateError(Exception):
    """Every error that a user can cause and can mend. The message says where, what and how to mend it."""


class CityError(FrigateError):
    """A table, folder or argument describes no valid city."""


class SettingsError(FrigateError):
    """A setting is out of its range or does not fit the city."""


class CheckpointError(FrigateError):
    """A run folder is missing, cut short, or from another version."""


class ServiceError(FrigateError):
    """The service, its store or a message of it is not as it should be."""


class MissingExtraError(FrigateError):
    """A package is not installed; without an `extra` that installs it, the package itself is named."""

    def __init__(self, package: str, extra: str = "") -> None:
        wanted = f"'frigate-forecast[{extra}]'" if extra else package
        super().__init__(f"{package} is not installed. Run: pip install {wanted}")


FEW = 300  # words that are compared letter by letter, which is slow
MAX_WORD = 100  # characters


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The hint that stands after a misspelt word, such as ` (did you mean "length_m"?)`; "" where nothing is near."""
    near = near_word(word, known)
    return "" if near is None else f' (did you mean "{near}"?)'


def near_word(word: str, known: Sequence[str]) -> str | None:
    """The word that was perhaps meant.

    Of many, such as the ids of a city, one that differs in a single letter or in case: that takes a look at each.
    """
    if len(word) > MAX_WORD:
        return None
    if len(known) > FEW:
        return _one_letter_apart(word, known)
    return next(iter(get_close_matches(word, known, n=1) or get_close_matches(word.lower(), known, n=1)), None)


def _one_letter_apart(word: str, known: Sequence[str]) -> str | None:
    half, size, lower = len(word) // 2, len(word), word.lower()
    head, tail = word[:half], word[half + 1 :]  # a single slip leaves one of them as it is
    for name in known:
        if -2 < len(name) - size < 2 and (name.startswith(head) or name.endswith(tail)):
            at = next((i for i, (x, y) in enumerate(zip(word, name, strict=False)) if x != y), min(size, len(name)))
            if word[at + 1 :] in (name[at + 1 :], name[at:]) or word[at:] == name[at + 1 :]:
                return name
    return next((name for name in known if name.lower() == lower), None)
