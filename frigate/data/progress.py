"""How long work reports how far it is."""

from collections.abc import Callable

Progress = Callable[[int, int, str], None]  # done, total, and what is being done ("" where the caller knows)
