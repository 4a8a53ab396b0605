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


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The hint that stands after a misspelt word, such as ` (did you mean "length_m"?)`; "" where nothing is near."""
    near = get_close_matches(word, known, n=1) or get_close_matches(word.lower(), known, n=1)
    return f' (did you mean "{near[0]}"?)' if near else ""
