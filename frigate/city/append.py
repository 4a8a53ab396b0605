"""Add imported readings to an existing city (--append), for example one file each day.

A new reading replaces an existing one of the same node and time, so adding a file twice does no harm. All other tables
stay unchanged, and the old folder is kept until the new one is complete.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from frigate.calendar import Steps
from frigate.city.bucketing import Readings
from frigate.city.city import City, find_sources
from frigate.city.city_toml import CityFile, read_city_file, step_text
from frigate.city.detectors import Detectors
from frigate.city.folder import is_of_city, read_city, write_import_notices
from frigate.city.readings import read_readings, write_rows
from frigate.city.sensor_table import detector_frame
from frigate.errors import CityError
from frigate.reading.files import check_replaceable
from frigate.reading.notices import Notices
from frigate.reading.sandbox import in_sandbox
from frigate.reading.tables import city_table, write_table, writing
from frigate.reading.times import utc_text


def append_readings(city: City, path: str | Path) -> tuple[str, ...]:
    """Add a city's readings to a city folder: all of them, or none.

    Parameters
    ----------
    city
        The new readings. Network, step, time zone and quantity must match those of the folder.
    path
        A city folder.

    Returns
    -------
    Sentences that report what was added and replaced.
    """
    folder = Path(path).resolve()
    with _exclusive(folder):
        check_replaceable(folder, is_of_city, "a city", overwrite=True)
        there = read_city(folder)
        settings = read_city_file(folder)
        _check_same_city(city, there, folder)
        notices = Notices()
        sources = find_sources(folder)
        old = in_sandbox(_read_rows, folder, sources.get("readings"), there)
        _check_one_per_step(old, there, folder)
        rows = _joined(old, _rows_of(city), there, notices)
        if len(rows) == len(old) and not notices.counts:
            return ("Nothing to add: the city already has every reading.",)
        detectors = _joined_detectors(there, city)
        with writing(folder, keep=("cache",)) as new:
            csv = sources.get("readings", sources["nodes"]).suffix == ".csv"
            for stem in ("city", "nodes", "edges", "changes", "turns"):
                if stem in sources:
                    shutil.copyfile(sources[stem], new / sources[stem].name)
            write_rows(rows, there.stream.node_ids, new, csv=csv)
            if len(detectors):
                write_table(detector_frame(detectors, there.stream.node_ids), new, "sensors", csv=csv)
            known = sources.get("notices")
            first = {} if known is None else json.loads(known.read_text(encoding="utf-8"))["imported"]
            last = {notice: city.places.get(notice, ()) for notice in city.notices if notice not in first}
            write_import_notices(new, first, last)
    notices.add(f"Readings added to the {len(old):,} in {settings.name}", len(rows) - len(old))
    return tuple(notices.sentences())


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder, so that only one process appends to it at a time."""
    while True:
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.fstat(handle).st_ino == os.stat(folder).st_ino:  # else another process replaced it meanwhile
                yield
                return
        finally:
            os.close(handle)


def _check_same_city(new: City, there: City, folder: Path) -> None:
    """Refuse readings whose quantity, step, time zone or network differ from the city's."""
    a = new.stream
    b = there.stream
    for name in ("quantity", "step_s", "timezone"):
        theirs = getattr(a, name)
        ours = getattr(b, name)
        if theirs != ours:
            shown = [step_text(x) if name == "step_s" else f'"{x}"' for x in (ours, theirs)]
            what = name.removesuffix("_s")
            raise CityError(
                f"{folder.name}: its {what} is {shown[0]}, but the new readings have {shown[1]}. Pass --{what}"
            )
    same = np.array_equal(a.node_ids.astype(str), b.node_ids.astype(str))
    if not same or a.network.fingerprint not in {network.fingerprint for network in b.networks}:
        sizes = [f"{x.num_nodes:,} nodes, {x.network.num_edges:,} roads" for x in (b, a)]
        raise CityError(
            f"{folder.name}: its network ({sizes[0]}) is not that of the new readings ({sizes[1]}). "
            f"Import them on its network with --network {folder.name}"
        )


def _read_rows(folder: Path, path: Path | None, there: City) -> Readings:
    """The readings in the folder; each column is the row of a node."""
    if path is None:
        return Readings.none()
    settings: CityFile = read_city_file(folder)
    table = city_table(path, ("time", "node_id", "value"), notices=Notices())
    read = read_readings(
        table.batches(), there.stream.networks[0], clock=settings.clock, quantity=settings.quantity, notices=Notices()
    )
    return Readings.join([Readings.none(), *read.parts])


def _check_one_per_step(old: Readings, there: City, folder: Path) -> None:
    """Refuse a city with readings inside a step: a new reading would be added to them instead of replacing them."""
    if not len(old):
        return
    times_s = np.unique(old.time_us) // 1_000_000
    steps = Steps.from_midnight(int(times_s[0]), there.stream.step_s, there.stream.timezone)
    number = steps.snapshot_at(times_s)
    starts_s = steps.times_s(int(number[0]), int(number[-1]) + 1)[number - number[0]]
    if (starts_s != times_s).any() or (old.time_us % 1_000_000).any():
        first = utc_text(int(times_s[int(np.argmax(starts_s != times_s))]) * 1_000_000)
        raise CityError(
            f"{folder.name}: some of its readings are not at the start of a step (first: {first}), so new readings "
            "cannot replace them. Import the whole city again"
        )


def _rows_of(city: City) -> Readings:
    stream = city.stream
    snapshot, node = np.nonzero(stream.observed)
    return Readings(stream.times_s[snapshot] * 1_000_000, node.astype(np.int32), stream.values[snapshot, node])


def _joined(old: Readings, new: Readings, there: City, notices: Notices) -> Readings:
    """Old and new readings, sorted by time and node. A new one replaces an old one of the same time and node."""
    both = Readings.join([Readings(each.time_us, each.column, each.value) for each in (old, new)])
    order = np.lexsort((both.column, both.time_us))  # stable: an old reading comes before the new one
    both = both.take(order)
    again = (np.diff(both.time_us) == 0) & (np.diff(both.column) == 0)
    changed = again & (np.diff(both.value) != 0)
    ids = there.stream.node_ids

    def place(i: int) -> str:
        values = f"{both.value[i]:g} becomes {both.value[i + 1]:g}"
        return f'node "{ids[both.column[i]]}" at {utc_text(int(both.time_us[i]))}, {values}'

    notices.add_rows("Readings that replace other values", changed, place)
    return both.take(~np.append(again, False))


def _joined_detectors(there: City, new: City) -> Detectors:
    """The detectors in the folder, followed by the new ones."""
    known = {(name, node) for name, node, *_ in there.detectors.rows()}
    more = [row for row in new.detectors.rows() if (row[0], row[1]) not in known]
    return Detectors.of_rows([*there.detectors.rows(), *more])
