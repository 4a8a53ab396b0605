"""Split a map into areas of nearly equal size, for work that is done one area at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def split_into_areas(lon: NDArray[np.float64], lat: NDArray[np.float64], count: int) -> list[NDArray[np.int64]]:
    """Rows of `count` areas with nearly equal numbers of places, made by repeatedly cutting across the longer side.

    No area is empty: with fewer places than `count`, each place is an area.
    """
    x = np.nan_to_num(lon) * np.cos(np.radians(np.nan_to_num(lat).mean() if len(lat) else 0.0))
    y = np.nan_to_num(lat)
    todo = [(np.arange(len(x)), min(count, len(x)))]
    areas = []
    while todo:
        rows, parts = todo.pop()
        if parts <= 1:
            areas.append(rows)
            continue
        wide = np.ptp(x[rows]) >= np.ptp(y[rows])
        along = rows[np.argsort((x if wide else y)[rows], kind="stable")]
        cut = len(rows) * (parts // 2) // parts
        todo += [(np.sort(along[cut:]), parts - parts // 2), (np.sort(along[:cut]), parts // 2)]
    return areas
