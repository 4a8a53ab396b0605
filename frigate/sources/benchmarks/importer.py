"""Make cities from public benchmark data sets, in the files of their publishers.

    metr-la, pems-bay       metr-la.h5 or pems-bay.h5 as pandas writes it (needs the extra h5), sensor locations (.csv),
                            and distances (.csv), adj_mx.pkl or both
    pems03, 04, 07, 08      PEMS04.npz, "data" [time, sensor, feature], and PEMS04.csv: from, to, cost
    libcity                 NAME.geo, NAME.rel, NAME.dyna, config.json: see `libcity`
    frigate                 traffic_df.pkl.gz, adj_mx.pkl and seen_*.npy, the layout of the paper's authors

What a 0 means, which pairs are roads, the unit of lengths and the time zone differ between them. The city's notices
state each rule. Pickles are read as data, never run: see `unpickle`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import zone
from frigate.city.bucketing import bucket_matrix, usual_step_s
from frigate.city.city import City
from frigate.city.network import Edges, NodeId, RoadNetwork
from frigate.errors import CityError, did_you_mean
from frigate.reading.notices import Notices
from frigate.reading.sandbox import in_sandbox, sandboxed
from frigate.reading.times import Clock, array_times_us
from frigate.sources.arrays import open_arrays, read_array
from frigate.sources.benchmarks.files import DataFile, Files, Options, find_files, read_h5_frame
from frigate.sources.benchmarks.libcity import libcity_city
from frigate.sources.benchmarks.sensor_graph import (
    adjacency,
    in_metres,
    labels,
    near_pairs,
    read_locations,
    read_pairs,
    sensor_ids,
    sensor_network,
    with_lengths,
)
from frigate.sources.benchmarks.unpickle import Frame, unpickle

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


# Local time of the first row, and the unit of lengths. The files have no times: the dates are from the publishers'
# papers. Lengths in 03 and 07 are differences of postmiles.
PEMS = {
    "pems03": ("2018-09-01", "mi"),
    "pems04": ("2018-01-01", "m"),
    "pems07": ("2017-05-01", "mi"),
    "pems08": ("2016-07-01", "m"),
}
FEATURES = ("flow", "occupancy", "speed")  # in the order of the last axis
PEMS_MEASURES = {
    "flow": ("count", "vehicles", False, "a flow of 0 is real, as the publishers have filled the gaps"),
    "occupancy": ("occupancy", "", False, "an occupancy of 0 is real, as the publishers have filled the gaps"),
    "speed": ("speed", "mph", True, "a speed of 0 means missing"),
}

AUTHORS = {"readings": DataFile(("traffic_df.pkl.gz", "traffic_df.pkl")), "adjacency": DataFile(("adj_mx.pkl",))}

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
    """Make a city from a public benchmark data set.

    Parameters
    ----------
    kind
        metr-la, pems-bay, pems03, pems04, pems07, pems08, libcity or frigate.
    files
        The folder with the files under their usual names, or a mapping from parts (readings, locations, distances,
        adjacency, ids) to paths.
    name
        Name of the city; default: the kind.
    feature
        Which feature to read: flow, occupancy or speed of PEMS04 and 08, or a column of LibCity's .dyna.
    timezone
        Default: that of the data set's city.
    length_unit
        m, km or mi; default: the data set's own.
    zeros
        "missing" or "kept"; default: the data set's own rule.
    """
    wanted = kind.strip().lower().replace("_", "-").replace("pemsd", "pems0").replace("pems-0", "pems0")
    if wanted not in KINDS:
        raise CityError(f'data set "{kind}" is not known{did_you_mean(wanted, KINDS)}. Known: {", ".join(KINDS)}')
    if zeros not in (None, "missing", "kept"):
        raise CityError(f'zeros "{zeros}" is not understood. Give "missing" or "kept"')
    if feature is not None and wanted not in PEMS and wanted != "libcity":
        raise CityError(f"feature {feature}: {wanted} has only one feature. Leave it out")
    options = Options(wanted, files, name, feature, timezone, length_unit, zeros)
    if wanted == "libcity":
        return libcity_city(options)
    notices = Notices()
    read = _loops if wanted in LOOPS else _pems if wanted in PEMS else _authors
    return _city(read(options, notices), options, notices)


@dataclass(frozen=True)
class _DataSet:
    """The readings of a data set as a matrix, and what its publishers say about them."""

    path: Path
    values: NDArray[np.generic]  # [rows, N]
    times: NDArray[np.datetime64]  # [rows] local time
    network: RoadNetwork
    quantity: str
    unit: str
    timezone: str
    zeros_missing: bool
    zeros_why: str  # the reason given in the notice about zeros
    name: str


def _city(read: _DataSet, options: Options, notices: Notices) -> City:
    path = read.path
    values = read.values
    network = read.network
    quantity = read.quantity
    if values.shape != (len(read.times), network.num_nodes) or not values.size:
        expected = (len(read.times), network.num_nodes)
        raise CityError(f"{path.name}: its values are {values.shape}. {expected}, times and nodes, is expected")
    if values.dtype.kind not in "biuf":
        raise CityError(f"{path.name}: its values are {values.dtype}. Numbers are expected")
    timezone = options.timezone or read.timezone
    time_us = array_times_us(path, read.times, clock=Clock(zone(timezone), ""), notices=notices)
    zeros_missing = read.zeros_missing if options.zeros is None else options.zeros == "missing"
    snapshots, zeros = bucket_matrix(
        values,
        time_us,
        network,
        step_s=usual_step_s(np.diff(np.unique(time_us)), where=path.name),
        timezone=timezone,
        quantity=quantity,
        notices=notices,
        zeros_missing=zeros_missing,
    )
    rule = "taken as not observed" if zeros_missing else "kept as readings of 0"
    why = read.zeros_why if options.zeros is None else "asked for"
    notices.counts[f"Zeros {rule}: {why}"] = zeros  # a choice, so reported even if there are none
    if not snapshots.observed.any():
        raise CityError(f"{path.name} has no reading: every cell is missing")
    stream = snapshots.stream(network, quantity=quantity, unit=read.unit)
    return City.reported(options.name or read.name, stream, notices)


# METR-LA and PEMS-BAY


def _loops(options: Options, notices: Notices) -> _DataSet:
    found = find_files(options.files, LOOPS[options.kind])
    path = found["readings"]
    frame = read_h5_frame(path)
    ids = labels(frame.columns)
    node_ids = sensor_ids(path, ids)
    places = read_locations(found["locations"], ids, notices)
    pairs, pairs_path = _loop_pairs(found, options, ids, places, notices)
    network = sensor_network(node_ids, pairs, pairs_path, notices, places=places)
    why = f"in {options.kind.upper()} a speed of 0 means missing"
    return _DataSet(path, frame.values, frame.index, network, "speed", "mph", CALIFORNIA, True, why, options.kind)


def _loop_pairs(
    found: Mapping[str, Path],
    options: Options,
    ids: list[str],
    places: tuple[NDArray[np.float64], NDArray[np.float64]],
    notices: Notices,
) -> tuple[Edges, Path]:
    """The pairs that are roads: those in the matrix if there is one, else those near enough."""
    measured = None
    if "distances" in found:
        measured = read_pairs(found["distances"], ids, notices)
        measured = in_metres(measured, found["distances"], options.length_unit, notices)
    if "adjacency" in found:
        chosen = adjacency(found["adjacency"], ids)
        notices.add(f"Pairs in {found['adjacency'].name}, taken as roads", len(chosen.senders))
        return with_lengths(chosen, measured, *places, notices), found["adjacency"]
    if measured is None:
        names = [*LOOPS[options.kind]["distances"].names, *LOOPS[options.kind]["adjacency"].names]
        raise CityError(f"No file with distances or adjacency. Looked for: {', '.join(names)}")
    return near_pairs(measured, found["distances"], notices), found["distances"]


# PEMS03, 04, 07, 08


def _pems(options: Options, notices: Notices) -> _DataSet:
    kind = options.kind
    begins, length_unit = PEMS[options.kind]
    stems = (kind, kind.replace("0", "d"))
    wanted = {
        "readings": DataFile((*(f"{s}.npz" for s in stems), "data.npz")),
        "distances": DataFile((*(f"{s}.csv" for s in stems), "distance.csv", "distances.csv")),
        "ids": DataFile((*(f"{s}.txt" for s in stems), "index.txt"), needed=False),
    }
    found = find_files(options.files, wanted)
    path = found["readings"]
    distances = found["distances"]
    values, feature = _pems_values(path, options.feature)
    N = values.shape[1]
    ids = [str(i) for i in range(N)]
    if "ids" in found:
        ids = _id_lines(found["ids"])
        if len(ids) != N:
            raise CityError(f"{found['ids'].name} lists {len(ids)} sensors, but {path.name} has {N}")
    node_ids = sensor_ids(found.get("ids", path), ids)
    pairs = read_pairs(distances, ids, notices)
    pairs = in_metres(pairs, distances, options.length_unit or length_unit, notices)
    network = sensor_network(node_ids, pairs, distances, notices, places=None)
    times = np.datetime64(begins, "s") + np.arange(len(values)) * np.timedelta64(STEP_S, "s")
    notices.add(f"Rows without a time, taken to be 5 minutes apart from {begins} on", len(values))
    quantity, unit, missing, why = PEMS_MEASURES[feature]
    why = f"in {kind.upper()} {why}"
    return _DataSet(path, values, times, network, quantity, unit, CALIFORNIA, missing, why, kind)


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
        raise CityError(f"{path.name} is not UTF-8 text. One sensor per line is expected") from None


# The authors' layout


def _authors(options: Options, notices: Notices) -> _DataSet:
    found = find_files(options.files, AUTHORS)
    path = found["readings"]
    matrix = found["adjacency"]
    frame = unpickle(path)
    if not isinstance(frame, Frame) or frame.index.dtype.kind != "M":
        raise CityError(f"{path.name} has no frame with one row per time. Save it with DataFrame.to_pickle")
    node_ids = sensor_ids(path, labels(frame.columns))
    pairs = in_metres(_authors_pairs(matrix, len(node_ids)), matrix, options.length_unit, notices)
    network = sensor_network(node_ids, pairs, matrix, notices, places=None)
    why = "the authors also store a missing reading as 0, and the two cannot be told apart"
    if not isinstance(options.files, Mapping):
        splits = sorted(p.name for p in path.parent.glob("seen_*.npy"))
        what = f"Split files next to the data, not part of the city ({', '.join(splits[:5])}); see read_seen"
        notices.add(what, len(splits))
    name = path.resolve().parent.name
    return _DataSet(path, frame.values, frame.index, network, "count", "vehicles", AUTHORS_ZONE, False, why, name)


def _authors_pairs(path: Path, num_nodes: int) -> Edges:
    """adj_mx.pkl: {"v": distances [E], "ij": rows and columns [2,E], "shape": (N, N)}."""
    stored = unpickle(path)
    if not isinstance(stored, dict) or not {"v", "ij", "shape"} <= stored.keys():
        raise CityError(f'{path.name} is not the authors\' matrix. A dict of "v", "ij" and "shape" is expected')
    try:
        distance = np.asarray(stored["v"], np.float64)
        ends = np.asarray(stored["ij"], np.int64)
        shape = tuple(int(n) for n in stored["shape"])
    except (TypeError, ValueError, OverflowError):
        raise CityError(f"{path.name}: its v, ij or shape are not numbers") from None
    if shape != (num_nodes, num_nodes) or ends.shape != (2, len(distance.reshape(-1))) or distance.ndim != 1:
        raise CityError(f"{path.name}: matrix {shape} with ij {ends.shape}, but the readings have {num_nodes} nodes")
    if distance.size and (ends.min() < 0 or ends.max() >= num_nodes):
        raise CityError(f"{path.name}: ij names node {int(ends.max())}, but there are only {num_nodes} nodes")
    if not (np.isfinite(distance) & (distance >= 0)).all():
        raise CityError(f"{path.name}: a distance is negative or not a number")
    return Edges.of(ends[0], ends[1], distance).take(distance > 0)


def read_seen(path: str | Path, city: City) -> list[NodeId]:
    """The node ids in one of the authors' seen_*.npy files, which list rows of nodes: a split to train on."""
    if not Path(path).is_file():
        raise CityError(f"{path}: no such file")
    rows = in_sandbox(_single_array, Path(path))
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise CityError(f"{Path(path).name} holds {rows.dtype} of shape {rows.shape}. Rows of nodes are expected")
    N = city.network.num_nodes
    if rows.size and (int(rows.min()) < 0 or int(rows.max()) >= N):
        raise CityError(f"{Path(path).name} names row {int(rows.max())}, but the city has {N} nodes")
    picked: list[NodeId] = city.stream.node_ids[np.unique(rows)].tolist()
    return picked


def _single_array(path: Path) -> NDArray[np.generic]:
    with open_arrays(path) as arrays:
        return np.array(read_array(path, arrays, "array"))
