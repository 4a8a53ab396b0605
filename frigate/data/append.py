"""Add the readings of an import to a city that is there: for every day's file, the same command with --append.

A reading that is there already is replaced by the new one, so that the same file can be added twice. All other tables
stay as they are, and the old folder stays until the new one is complete.
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

from frigate.data.bucketing import Readings
from frigate.data.city import City, is_of_city, read_city, write_import_notices
from frigate.data.city_toml import CityFile, read_city_file, step_text
from frigate.data.detectors import Detectors
from frigate.data.files import check_replaceable
from frigate.data.folder import find_sources
from frigate.data.notices import Notices
from frigate.data.readings import read_readings, write_rows
from frigate.data.sandbox import in_sandbox
from frigate.data.sensor_table import detector_frame
from frigate.data.stream import Steps
from frigate.data.tables import city_table, write_table, writing
from frigate.data.times import utc_text
from frigate.errors import CityError


def append_readings(city: City, path: str | Path) -> tuple[str, ...]:
    """Add a city's readings to those of a city folder: all of them, or none.

    Parameters
    ----------
    city
        With the network, step, time zone and quantity of the one in the folder.
    path
        A city folder.

    Returns
    -------
    What to report.
    """
    folder = Path(path).resolve()
    with _alone(folder):
        check_replaceable(folder, is_of_city, "a city", overwrite=True)
        there, settings = read_city(folder), read_city_file(folder)
        _refuse_another(city, there, folder)
        notices = Notices()
        sources = find_sources(folder)
        old = in_sandbox(_read_rows, folder, sources.get("readings"), there)
        _refuse_within_steps(old, there, folder)
        rows = _joined(old, _rows_of(city, there), there, notices)
        if len(rows) == len(old) and not notices.counts:
            return ("Nothing is new: every reading is there already.",)
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
    notices.add(f"Readings added to the {len(old):,} of {settings.name}", len(rows) - len(old))
    return tuple(notices.sentences())


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process adds to the folder."""
    while True:
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.fstat(handle).st_ino == os.stat(folder).st_ino:  # else another has replaced it meanwhile
                yield
                return
        finally:
            os.close(handle)


def _refuse_another(new: City, there: City, folder: Path) -> None:
    """Refuse readings that are not of the same city, in the same steps and of the same kind."""
    a, b = new.stream, there.stream
    for name in ("quantity", "step_s", "timezone"):
        theirs, ours = getattr(a, name), getattr(b, name)
        if theirs != ours:
            shown = [step_text(x) if name == "step_s" else f'"{x}"' for x in (ours, theirs)]
            what = name.removesuffix("_s")
            raise CityError(
                f"{folder.name}: its {what} is {shown[0]}, that of the new readings {shown[1]}. Pass --{what}"
            )
    same = np.array_equal(a.node_ids.astype(str), b.node_ids.astype(str))
    if not same or a.network.fingerprint not in {network.fingerprint for network in b.topologies}:
        sizes = [f"{x.num_nodes:,} nodes, {x.network.num_edges:,} roads" for x in (b, a)]
        raise CityError(
            f"{folder.name} has another network ({sizes[0]}) than the new readings ({sizes[1]}). "
            f"Import them on it with --network {folder.name}"
        )


def _read_rows(folder: Path, path: Path | None, there: City) -> Readings:
    """The readings in the folder, by row of the node."""
    if path is None:
        return Readings.none()
    settings: CityFile = read_city_file(folder)
    table = city_table(path, ("time", "node_id", "value"), notices=Notices())
    read = read_readings(
        table.batches(), there.stream.topologies[0], clock=settings.clock, quantity=settings.quantity, notices=Notices()
    )
    return Readings.join([Readings.none(), *read.parts])


def _refuse_within_steps(old: Readings, there: City, folder: Path) -> None:
    """Refuse readings between the starts of snapshots: new ones would be added to them, not replace them."""
    if not len(old):
        return
    times_s = np.unique(old.time_us) // 1_000_000
    steps = Steps.from_midnight(int(times_s[0]), there.stream.step_s, there.stream.timezone)
    number = steps.snapshot_at(times_s)
    starts_s = steps.times_s(int(number[0]), int(number[-1]) + 1)[number - number[0]]
    if (starts_s != times_s).any() or (old.time_us % 1_000_000).any():
        first = utc_text(int(times_s[int(np.argmax(starts_s != times_s))]) * 1_000_000)
        raise CityError(
            f"{folder.name}: its readings are not one a step (first: {first}), so that new ones cannot be told from "
            "them. Import the city anew"
        )


def _rows_of(city: City, there: City) -> Readings:
    stream = city.stream
    snapshot, node = np.nonzero(stream.observed)
    return Readings(stream.times_s[snapshot] * 1_000_000, node.astype(np.int32), stream.values[snapshot, node])


def _joined(old: Readings, new: Readings, there: City, notices: Notices) -> Readings:
    """Both, by time and then by node; of two at one time and node the new one."""
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
    """Those of the folder, and those that are new."""
    known = {(name, node) for name, node, *_ in there.detectors.rows()}
    more = [row for row in new.detectors.rows() if (row[0], row[1]) not in known]
    return Detectors.of_rows([*there.detectors.rows(), *more])
