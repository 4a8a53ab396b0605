"""The field's own data sets, as their publishers give them, made into cities.

    metr-la, pems-bay       metr-la.h5 or pems-bay.h5 as pandas writes it (needs the extra h5), the sensors' locations
                            (.csv) and their distances (.csv), or adj_mx.pkl in place of or beside them
    pems03, 04, 07, 08      PEMS04.npz, "data" [time, sensor, feature], and PEMS04.csv: from, to, cost
    libcity                 NAME.geo, NAME.rel, NAME.dyna, config.json: see `libcity`
    frigate                 traffic_df.pkl.gz, adj_mx.pkl and seen_*.npy, the layout of the paper's authors

What a 0 means, which pairs are roads, the unit of lengths and the time zone differ between them. Each rule is stated in
the notices of the city. Pickles are read as data, never run: see `unpickle`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.data.bucketing import bucket_matrix, usual_step_s
from frigate.data.city import City
from frigate.data.network import NodeId, RoadNetwork
from frigate.data.notices import Notices
from frigate.data.sandbox import sandboxed
from frigate.data.stream import zone
from frigate.data.times import Clock, array_times_us
from frigate.errors import CityError, did_you_mean
from frigate.sources.arrays import open_arrays, read_array
from frigate.sources.benchmarks.files import DataFile, find_files, read_h5_frame
from frigate.sources.benchmarks.libcity import import_libcity
from frigate.sources.benchmarks.sensor_graph import (
    Pairs,
    adjacency,
    id_array,
    in_metres,
    labels,
    near_pairs,
    read_locations,
    read_pairs,
    sensor_network,
    with_lengths,
)
from frigate.sources.benchmarks.unpickle import Frame, unpickle

Files = str | Path | Mapping[str, str | Path]

CALIFORNIA = "America/Los_Angeles"
AUTHORS_ZONE = "Asia/Shanghai"  # Beijing, Chengdu and Harbin
STEP_S = 300

LOOPS = {
    "metr-la": {
        "readings": DataFile(("metr-la.h5", "metr_la.h5")),
        "locations": DataFile(("graph_sensor_locations.csv",)),
        "distances": DataFile(("distances_la_2012.csv",), needed=False),
        "adjacency": DataFile(("adj_mx.pkl", "adj_mx_la.pkl"), needed=False),
    },
    "pems-bay": {
        "readings": DataFile(("pems-bay.h5", "pems_bay.h5")),
        "locations": DataFile(("graph_sensor_locations_bay.csv", "graph_sensor_locations_pems_bay.csv")),
        "distances": DataFile(("distances_bay_2017.csv",), needed=False),
        "adjacency": DataFile(("adj_mx_bay.pkl",), needed=False),
    },
}


@dataclass(frozen=True)
class _Pems:
    start: str  # local time of the first row
    length_unit: str


# The publishers give no times. The dates are those in their papers; 03 and 07 give differences of postmiles.
PEMS = {
    "pems03": _Pems("2018-09-01", "mi"),
    "pems04": _Pems("2018-01-01", "m"),
    "pems07": _Pems("2017-05-01", "mi"),
    "pems08": _Pems("2016-07-01", "m"),
}
FEATURES = ("flow", "occupancy", "speed")  # in the order of the last axis
PEMS_MEASURES = {
    "flow": ("count", "vehicles", False, "no vehicle passed, for the publishers have filled the gaps"),
    "occupancy": ("occupancy", "", False, "no vehicle stood there, for the publishers have filled the gaps"),
    "speed": ("speed", "mph", True, "a speed of 0 means that nothing was measured"),
}

AUTHORS = {
    "readings": DataFile(("traffic_df.pkl.gz", "traffic_df.pkl")),
    "adjacency": DataFile(("adj_mx.pkl",)),
}

KINDS = (*LOOPS, *PEMS, "libcity", "frigate")


@sandboxed
def import_benchmark(
    kind: str,
    *,
    files: Files,
    name: str | None = None,
    feature: str | None = None,
    timezone: str | None = None,
    length_unit: str | None = None,
    zeros: str | None = None,
) -> City:
    """Make a city from one of the field's data sets.

    Parameters
    ----------
    kind
        metr-la, pems-bay, pems03, pems04, pems07, pems08, libcity or frigate.
    files
        The folder that holds them under their usual names, or a mapping from their parts (readings, locations,
        distances, adjacency, ids) to paths.
    name
        Of the city; default: the kind.
    feature
        One of several: flow, occupancy or speed of PEMS04 and 08, or a column of LibCity's .dyna.
    timezone
        Default: that of the data set's city.
    length_unit
        m, km or mi; default: the data set's own.
    zeros
        "missing" or "kept"; default: the data set's own rule.
    """
    wanted = kind.strip().lower().replace("_", "-").replace("pemsd", "pems0").replace("pems-0", "pems0")
    if wanted not in KINDS:
        raise CityError(f'"{kind}" is no kind of data set{did_you_mean(wanted, KINDS)}. Kinds: {", ".join(KINDS)}')
    if zeros not in (None, "missing", "kept"):
        raise CityError(f'zeros "{zeros}" is not understood. Give "missing" or "kept"')
    if feature is not None and wanted not in PEMS and wanted != "libcity":
        raise CityError(f"feature {feature}: {wanted} has one feature only. Leave it out")
    if wanted == "libcity":
        return import_libcity(
            files, name=name, feature=feature, timezone=timezone, length_unit=length_unit, zeros=zeros
        )
    options = _Options(wanted, name, feature, timezone, length_unit, zeros)
    if wanted in LOOPS:
        return _loops(files, options)
    return _pems(files, options) if wanted in PEMS else _authors(files, options)


@dataclass(frozen=True)
class _Options:
    """The kind, and what replaces its own rules."""

    kind: str
    name: str | None
    feature: str | None
    timezone: str | None
    length_unit: str | None
    zeros: str | None

    def measure(self, quantity: str, unit: str, timezone: str, *, zeros_missing: bool, why: str) -> Measure:
        if self.zeros is not None:
            zeros_missing, why = self.zeros == "missing", "asked for"
        return Measure(quantity, unit, self.timezone or timezone, zeros_missing, why)


@dataclass(frozen=True)
class Measure:
    """What the numbers are and how they are read."""

    quantity: str
    unit: str
    timezone: str
    zeros_missing: bool
    zeros_why: str  # the reason, for the notice about zeros


def _city(
    path: Path,
    values: NDArray[np.generic],
    times: NDArray[np.datetime64],
    network: RoadNetwork,
    *,
    name: str,
    measure: Measure,
    notices: Notices,
) -> City:
    """A city from a matrix [rows, N] and the local time of each row."""
    if values.shape != (len(times), network.num_nodes) or not values.size:
        expected = (len(times), network.num_nodes)
        raise CityError(f"{path.name}: its values are {values.shape}. {expected}, times and nodes, is expected")
    if values.dtype.kind not in "biuf":
        raise CityError(f"{path.name}: its values are {values.dtype}. Numbers are expected")
    time_us = array_times_us(path, times, clock=Clock(zone(measure.timezone), ""), notices=notices)
    snapshots, zeros = bucket_matrix(
        values,
        time_us,
        network,
        step_s=usual_step_s(np.diff(np.unique(time_us)), where=path.name),
        timezone=measure.timezone,
        quantity=measure.quantity,
        notices=notices,
        zeros_missing=measure.zeros_missing,
    )
    rule = "taken as not observed" if measure.zeros_missing else "kept as readings of 0"
    notices.counts[f"Zeros {rule}: {measure.zeros_why}"] = zeros  # reported even when there are none: it is a choice
    if not snapshots.observed.any():
        raise CityError(f"{path.name} has no reading: every cell is missing")
    stream = snapshots.stream(network, timezone=measure.timezone, quantity=measure.quantity, unit=measure.unit)
    return City.reported(name, stream, notices)


# METR-LA and PEMS-BAY


def _loops(files: Files, options: _Options) -> City:
    found = find_files(files, LOOPS[options.kind])
    notices = Notices()
    frame = read_h5_frame(found["readings"])
    ids = labels(frame.columns)
    node_ids = id_array(found["readings"], ids)
    places = read_locations(found["locations"], ids, notices)
    pairs, path = _loop_pairs(found, options, ids, places, notices)
    network = sensor_network(node_ids, pairs, path, notices, places=places)
    why = f"in {options.kind.upper()} a speed of 0 means missing"
    measure = options.measure("speed", "mph", CALIFORNIA, zeros_missing=True, why=why)
    return _city(
        found["readings"],
        frame.values,
        frame.index,
        network,
        name=options.name or options.kind,
        measure=measure,
        notices=notices,
    )


def _loop_pairs(
    found: Mapping[str, Path],
    options: _Options,
    ids: list[str],
    places: tuple[NDArray[np.float64], NDArray[np.float64]],
    notices: Notices,
) -> tuple[Pairs, Path]:
    """Which pairs are roads: those of the matrix where it is given, else those near enough."""
    measured = None
    if "distances" in found:
        measured = read_pairs(found["distances"], ids, notices)
        measured = in_metres(measured, found["distances"], options.length_unit, notices)
    if "adjacency" in found:
        chosen = adjacency(found["adjacency"], ids)
        notices.add(f"Pairs taken as roads because {found['adjacency'].name} has them", len(chosen.senders))
        return with_lengths(chosen, measured, *places, notices), found["adjacency"]
    if measured is None:
        names = [*LOOPS[options.kind]["distances"].names, *LOOPS[options.kind]["adjacency"].names]
        raise CityError(f"There is no file of distances or adjacency. Looked for: {', '.join(names)}")
    return near_pairs(measured, found["distances"], notices), found["distances"]


# PEMS03, 04, 07, 08


def _pems(files: Files, options: _Options) -> City:
    kind, facts = options.kind, PEMS[options.kind]
    stems = (kind, kind.replace("0", "d"))
    wanted = {
        "readings": DataFile((*(f"{s}.npz" for s in stems), "data.npz")),
        "distances": DataFile((*(f"{s}.csv" for s in stems), "distance.csv", "distances.csv")),
        "ids": DataFile((*(f"{s}.txt" for s in stems), "index.txt"), needed=False),
    }
    found = find_files(files, wanted)
    notices = Notices()
    values, feature = _pems_values(found["readings"], options.feature)
    N = values.shape[1]
    ids = [str(i) for i in range(N)]
    if "ids" in found:
        ids = _id_lines(found["ids"])
        if len(ids) != N:
            raise CityError(f"{found['ids'].name} names {len(ids)} sensors, but {found['readings'].name} has {N}")
    node_ids = id_array(found.get("ids", found["readings"]), ids)
    pairs = in_metres(
        read_pairs(found["distances"], ids, notices),
        found["distances"],
        options.length_unit or facts.length_unit,
        notices,
    )
    network = sensor_network(node_ids, pairs, found["distances"], notices, places=None)
    start = np.datetime64(facts.start, "s")
    notices.add(f"Rows without a time, taken to be 5 minutes apart from {facts.start} on", len(values))
    quantity, unit, missing, why = PEMS_MEASURES[feature]
    return _city(
        found["readings"],
        values,
        start + np.arange(len(values)) * np.timedelta64(STEP_S, "s"),
        network,
        name=options.name or kind,
        measure=options.measure(quantity, unit, CALIFORNIA, zeros_missing=missing, why=f"in {kind.upper()} {why}"),
        notices=notices,
    )


def _pems_values(path: Path, feature: str | None) -> tuple[NDArray[np.generic], str]:
    with open_arrays(path) as arrays:
        values = read_array(path, arrays, "data")
    if values.ndim == 2:
        values = values[:, :, None]
    if values.ndim != 3 or not values.size or values.shape[2] not in (1, 3):
        raise CityError(
            f'{path.name}: "data" is {values.shape}. [time, sensor, feature] with 1 or 3 features is expected'
        )
    there = FEATURES[: values.shape[2]]
    wanted = {"occupy": "occupancy", None: "flow"}.get(feature, feature)
    if wanted not in there:
        raise CityError(f'{path.name} has no feature "{feature}". It has: {", ".join(there)}')
    return values[:, :, there.index(wanted)], wanted


def _id_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").replace(",", " ").split()
    except UnicodeDecodeError:
        raise CityError(f"{path.name} is not UTF-8 text. One sensor a line is expected") from None
    except OSError as error:
        raise CityError(f"{path.name} cannot be read: {error.strerror}") from None


# The authors' layout


def _authors(files: Files, options: _Options) -> City:
    found = find_files(files, AUTHORS)
    notices = Notices()
    path = found["readings"]
    frame = unpickle(path)
    if not isinstance(frame, Frame) or frame.index.dtype.kind != "M":
        raise CityError(f"{path.name} holds no frame with a row for each time. Save it with DataFrame.to_pickle")
    ids = labels(frame.columns)
    node_ids = id_array(path, ids)
    pairs = _authors_pairs(found["adjacency"], len(ids))
    pairs = in_metres(pairs, found["adjacency"], options.length_unit, notices)
    network = sensor_network(node_ids, pairs, found["adjacency"], notices, places=None)
    why = "the authors store a missing reading as 0 as well, and the two cannot be distinguished"
    if not isinstance(files, Mapping):
        splits = sorted(p.name for p in path.parent.glob("seen_*.npy"))
        what = f"Splits beside the data, which are no part of a city ({', '.join(splits[:5])}); see read_seen"
        notices.add(what, len(splits))
    return _city(
        path,
        frame.values,
        frame.index,
        network,
        name=options.name or path.resolve().parent.name,
        measure=options.measure("count", "vehicles", AUTHORS_ZONE, zeros_missing=False, why=why),
        notices=notices,
    )


def _authors_pairs(path: Path, num_nodes: int) -> Pairs:
    """adj_mx.pkl: {"v": distances [E], "ij": rows and columns [2,E], "shape": (N, N)}."""
    stored = unpickle(path)
    if not isinstance(stored, dict) or not {"v", "ij", "shape"} <= stored.keys():
        raise CityError(f'{path.name} is not the authors\' matrix. A dict of "v", "ij" and "shape" is expected')
    try:
        distance = np.asarray(stored["v"], np.float64)
        ends = np.asarray(stored["ij"], np.int64)
        shape = tuple(int(n) for n in stored["shape"])
    except (TypeError, ValueError, OverflowError):
        raise CityError(f"{path.name}: its v, ij or shape are no numbers") from None
    if shape != (num_nodes, num_nodes) or ends.shape != (2, len(distance.reshape(-1))) or distance.ndim != 1:
        raise CityError(f"{path.name}: a matrix {shape} of {ends.shape} ends, but the readings have {num_nodes} nodes")
    if distance.size and (ends.min() < 0 or ends.max() >= num_nodes):
        raise CityError(f"{path.name}: row {int(ends.max())} of {num_nodes} nodes is named")
    if not (np.isfinite(distance) & (distance >= 0)).all():
        raise CityError(f"{path.name}: a distance is negative or no number")
    return Pairs(ends[0], ends[1], distance).take(distance > 0)


def read_seen(path: str | Path, city: City) -> list[NodeId]:
    """The ids of the nodes that one of the authors' seen_*.npy names by their rows: a split to train on."""
    if not Path(path).is_file():
        raise CityError(f"{path}: there is no such file")
    with open_arrays(Path(path)) as arrays:
        rows = read_array(Path(path), arrays, "array")
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise CityError(f"{Path(path).name} holds {rows.dtype} of shape {rows.shape}. Rows of nodes are expected")
    N = city.network.num_nodes
    if rows.size and (int(rows.min()) < 0 or int(rows.max()) >= N):
        raise CityError(f"{Path(path).name} names row {int(rows.max())}, but the city has {N} nodes")
    picked: list[NodeId] = city.stream.node_ids[np.unique(rows)].tolist()
    return picked
