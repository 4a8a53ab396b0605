"""Readings that the user leaves out: those of a sensor, of a period, or of a sensor in a period.

    "4411"                           all readings of node 4411, or of the detector with that name
    "2024-03-11/2024-03-15"          all readings of these five days; a single day or two times work too
    "4411@2024-03-11T06:00/2024-03-11T20:00"

They are listed in city.toml, as readings = [...] under [exclude], or given with --exclude.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from frigate.city.detectors import Detectors
from frigate.city.periods import parse_period, snapshots_in
from frigate.city.stream import RoadNetworkStream
from frigate.errors import CityError, SettingsError, did_you_mean
from frigate.reading.notices import Notices


def without_excluded(
    stream: RoadNetworkStream, exclude: Sequence[str], *, detectors: Detectors, where: str, notices: Notices
) -> RoadNetworkStream:
    """The stream with the excluded readings marked as not observed.

    Parameters
    ----------
    stream
        The stream.
    exclude
        What to leave out: a node id, a period, or both as "ID@PERIOD".
    detectors
        A detector that is the only one at its node can be named instead of the node.
    where
        The place to name in errors and notices, such as "--exclude".
    notices
        Collects how many readings each entry leaves out.
    """
    if not exclude:
        return stream
    observed = stream.observed.copy()
    row_of = detectors.alone() | {str(node_id): row for row, node_id in enumerate(stream.node_ids.tolist())}
    for text in exclude:
        rows, first, stop = _cells(stream, row_of, text.strip(), where)
        lost = int(observed[first:stop, rows].sum())
        observed[first:stop, rows] = False
        notices.add(f"Readings left out by {where}, {text.strip()}", lost)
        notices.add(f"Entries of {where} that match no reading ({text.strip()})", int(lost == 0))
    return replace(stream, values=np.where(observed, stream.values, np.float32(0)), observed=observed)


def _cells(stream: RoadNetworkStream, row_of: dict[str, int], text: str, where: str) -> tuple[slice, int, int]:
    """The nodes, and the first and stop snapshot, that an entry leaves out."""
    if text in row_of:
        return slice(row_of[text], row_of[text] + 1), 0, stream.num_snapshots
    node, at, period = text.rpartition("@")
    if at and node not in row_of:
        raise CityError(f'{where} "{text}": node "{node}" is not in the network{did_you_mean(node, [*row_of])}')
    try:
        seconds = parse_period(period, stream.timezone, where=where)
    except SettingsError as error:
        if at or "/" in text:
            raise CityError(str(error)) from None
        hint = did_you_mean(text, [*row_of])
        raise CityError(
            f'{where} "{text}": neither a node of the network{hint} nor a period such as 2024-03-11/2024-03-15'
        ) from None
    nodes = slice(row_of[node], row_of[node] + 1) if at else slice(None)
    # Includes the snapshot in which the period begins, even if only part of it is in the period.
    return nodes, max(0, stream.snapshot_at(seconds[0])), max(0, snapshots_in(stream, seconds)[1])
