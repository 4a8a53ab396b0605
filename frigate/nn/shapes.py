"""The tensors that a batch and a topology hold: what a field's annotation says of its shape, for all who ask.

B windows, T past snapshots, H future steps, N nodes, E roads, P pairs of neighbours, C parts of a local time,
K anchors, R road features, M near sensors, D columns of demand at a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_type_hints


@dataclass(frozen=True)
class Shape:
    """A letter for each dimension."""

    letters: str
    read: bool = True  # by a model; not targets, nor what only faster kernels need
    on_device: bool = True  # and not always on the CPU


def shapes_in(holder: type) -> dict[str, Shape]:
    """The shapes of a dataclass's tensors, from their annotations, in the order of its fields."""
    hints = get_type_hints(holder, include_extras=True)
    said = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: shape for name, told in said.items() for shape in told if isinstance(shape, Shape)}
