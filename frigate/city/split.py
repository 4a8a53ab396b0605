"""Which nodes are sensors and which are only scored; which times train, validate and test.

Everything comes from one seed and is kept with a run. Nothing here looks at a reading's value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from frigate.city.detectors import Detectors
from frigate.city.network import NodeId, RoadNetwork
from frigate.city.stream import RoadNetworkStream
from frigate.coordinates import haversine_m
from frigate.draws import Draw, generator
from frigate.errors import CityError, SettingsError
from frigate.reading.files import check_regular

DEFAULT_SHARE = 0.8  # of the sensors are seen by default
MIN_SEEN = 3  # one for validation, two to learn each from the other
NODES = ("seen", "validation", "unseen", "left_out")  # of a Split
PERIODS = ("train", "validate", "test")

Seen = float | Literal["all"] | Iterable[NodeId] | None
Period = tuple[int, int]  # snapshots [first, stop)


@dataclass(frozen=True)
class Split:
    """Seen and unseen nodes, and three periods. A node that is neither seen nor unseen is forecast but never scored.

    Nodes that share a detector, which measures both directions of a road, are never apart: they have the same readings.
    """

    seen: NDArray[np.bool_]  # [N] sensors that the model may use
    validation: NDArray[np.bool_]  # [N] the seen nodes held out for validation
    unseen: NDArray[np.bool_]  # [N] nodes with readings that are only scored
    train: Period
    validate: Period
    test: Period
    left_out: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))  # [N] sensors that are never read

    def __post_init__(self) -> None:
        if not len(self.left_out):
            object.__setattr__(self, "left_out", np.zeros(len(self.seen), bool))

    def leaving_out(self, sensors: NDArray[np.bool_]) -> Split:
        """The split without these of its seen sensors [N]."""
        gone = self.seen & sensors
        return replace(self, seen=self.seen & ~gone, validation=self.validation & ~gone, left_out=self.left_out | gone)

    @property
    def training(self) -> NDArray[np.bool_]:
        """[N] the seen nodes used in training, as input and in the loss."""
        return self.seen & ~self.validation

    def to_json(self, node_ids: NDArray[np.generic]) -> dict[str, Any]:
        nodes = {name: node_ids[getattr(self, name)].tolist() for name in NODES}
        return nodes | {name: list(getattr(self, name)) for name in PERIODS}

    @classmethod
    def from_json(cls, data: dict[str, Any], node_ids: NDArray[np.generic]) -> Split:
        row_of = {node_id: row for row, node_id in enumerate(node_ids.tolist())}

        def mask(name: str) -> NDArray[np.bool_]:
            missing = [node_id for node_id in data[name] if node_id not in row_of]
            if missing:
                raise CityError(
                    f'{len(missing)} {name} nodes of the split are not in the city, first "{missing[0]}". '
                    "Use the city that the split was made for"
                )
            chosen = np.zeros(len(node_ids), bool)
            chosen[[row_of[node_id] for node_id in data[name]]] = True
            return chosen

        def period(name: str) -> Period:
            first, stop = data[name]
            return int(first), int(stop)

        data = {"left_out": []} | data  # runs of 0.1.0 read every sensor
        seen, validation, unseen, left_out = (mask(name) for name in NODES)
        train, validate, test = (period(name) for name in PERIODS)
        return cls(seen, validation, unseen, train, validate, test, left_out)


def make_split(
    stream: RoadNetworkStream,
    *,
    seen: Seen = None,
    seed: int = 0,
    validation_share: float = 0.2,
    mode: str = "random",
    past: int = 12,
    horizon: int = 12,
    detectors: Detectors | None = None,
) -> Split:
    """Split a stream's sensors and times.

    `seen` is a share of the sensors (nodes that ever have a reading), a list of node ids, "all" (nothing is left to
    score), or None for 80 %. A listed node without a reading is not a sensor and is left out; one that shares a
    detector (in `detectors`) with a listed node is not scored. `mode` "region" puts the unseen nodes in one contiguous
    area. With a `validation_share` of 0, all seen nodes are used for training.
    """
    sensors = stream.sensors
    if not sensors.any():
        raise CityError("no node has a reading. To train or evaluate, a city needs readings at some of its nodes")
    train, validate, test = _periods(stream.num_snapshots, past=past, horizon=horizon)
    rng = generator(seed, Draw.SPLIT)
    together = (detectors or Detectors()).together(stream.num_nodes)
    chosen = _choose_seen(stream, seen, mode=mode, together=together, rng=rng)
    unseen = sensors & ~np.isin(together, together[chosen])
    first, stop = train
    if not stream.observed[first:stop, chosen].any():
        raise CityError(
            f"none of the {int(chosen.sum())} seen nodes has a reading in the training period "
            f"(the first {stop} of {stream.num_snapshots} snapshots). Give a record that starts later"
        )
    if validation_share == 0:
        return Split(chosen, np.zeros(stream.num_nodes, bool), unseen, train, validate, test)
    # A node without a reading in the validation period cannot be a target there.
    target = chosen & stream.observed[slice(*validate)].any(axis=0)
    if not target.any():
        raise CityError(
            f"none of the {int(chosen.sum())} seen nodes has a reading in the validation period "
            f"(snapshots {validate[0]} to {validate[1] - 1}). Give a record without that gap"
        )
    wanted = min(max(1, round(validation_share * int(chosen.sum()))), int(target.sum()), int(chosen.sum()) - 2)
    validation = _first_of(rng.permutation(np.flatnonzero(target)), wanted, chosen, together, leave=2)
    if not validation.any():
        raise CityError(
            f"the {int(chosen.sum())} seen nodes share too few detectors to hold one out for validation. "
            "Use more sensors"
        )
    if not stream.observed[first:stop, chosen & ~validation].any():
        raise CityError(
            f"besides the {int(validation.sum())} validation nodes, no seen node has a reading in the training period. "
            "Use more sensors, or another --seed"
        )
    return Split(chosen, validation, unseen, train, validate, test)


def _first_of(
    order: NDArray[np.int64], count: int, of: NDArray[np.bool_], together: NDArray[np.int64], *, leave: int
) -> NDArray[np.bool_]:
    """[N] the first `count` nodes in this order and those together with them; at least `leave` of `of` [N] remain."""
    place = np.full(len(of), len(of))  # in the order, of the first of each group
    np.minimum.at(place, together[order], np.arange(len(order)))
    place = place[together]
    rows = np.flatnonzero(of & (place < len(of)))
    rows = rows[np.argsort(place[rows], kind="stable")]
    ends = np.concatenate([[0], np.flatnonzero(np.diff(place[rows], append=-1)) + 1])  # of the groups
    ends = ends[ends <= max(0, int(of.sum()) - leave)]
    chosen = np.zeros(len(of), bool)
    chosen[rows[: ends[: np.searchsorted(ends, count) + 1].max()]] = True
    return chosen


def windows_in(period: Period, *, past: int, horizon: int, stride: int = 1) -> NDArray[np.int64]:
    """The last past snapshot of every window whose past and horizon both lie inside the period."""
    first, stop = period
    return np.arange(first + past - 1, stop - horizon, stride, dtype=np.int64)


def parse_seen(text: str) -> float | Literal["all"] | Path:
    """Parse --seen: "30%", "0.3", "all" or a file of node ids."""
    word = text.strip()
    if word.lower() == "all":
        return "all"
    if Path(word).is_file():
        return Path(word)
    try:
        share = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        raise SettingsError(
            f'--seen "{text}" is neither a share nor a file. Give 30%, 0.3, all, or a file of node ids'
        ) from None
    if not 0 < share <= 1:
        hint = f". Did you mean {word}%?" if 1 < share <= 100 and not word.endswith("%") else ""
        raise SettingsError(f'--seen "{text}": give a share above 0 and at most 1 (100%){hint}')
    return share


def read_seen_file(path: str | Path, network: RoadNetwork) -> list[NodeId]:
    """The node ids in a file, one per line. Empty lines are skipped."""
    check_regular(Path(path))
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise CityError(f"{path}: {error.strerror}. Give a text file with one node id per line") from None
    except UnicodeDecodeError:
        raise CityError(f"{path}: not a text file. Give one node id per line, in UTF-8") from None
    line_of: dict[int, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = network.row_of(line.strip())
        except CityError as error:
            raise CityError(f"{path} line {number}: {error}. Give one node id per line") from None
        if row in line_of:
            raise CityError(
                f'{path} line {number}: node "{line.strip()}" is already on line {line_of[row]}. Remove one'
            )
        line_of[row] = number
    if not line_of:
        raise CityError(f"{path}: it has no node id. Give one id per line")
    node_ids: list[NodeId] = network.node_ids[list(line_of)].tolist()
    return node_ids


def _periods(num_snapshots: int, *, past: int, horizon: int) -> tuple[Period, Period, Period]:
    ends = (0, num_snapshots * 7 // 10, num_snapshots * 9 // 10, num_snapshots)
    train, validate, test = ((ends[i], ends[i + 1]) for i in range(3))
    for name, (first, stop) in (("training", train), ("validation", validate), ("test", test)):
        if stop - first < past + horizon:
            raise SettingsError(
                f"the {name} period has {stop - first} of the record's {num_snapshots} snapshots (70/20/10), "
                f"but a window takes {past} past + {horizon} ahead = {past + horizon}. "
                f"Use fewer --past or --horizon, or at least {10 * (past + horizon)} snapshots"
            )
    return train, validate, test


def _choose_seen(
    stream: RoadNetworkStream, seen: Seen, *, mode: str, together: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.bool_]:
    sensors = stream.sensors
    share = DEFAULT_SHARE if seen is None else 1.0 if isinstance(seen, str) and seen == "all" else seen
    if isinstance(share, str):
        raise SettingsError(f'seen = "{share}": give a share such as 0.3, "all", or a list of node ids')
    if mode not in ("random", "region"):
        raise SettingsError(f'mode = "{mode}": choose "random" or "region"')
    if isinstance(share, int | float):
        chosen = _by_share(stream, float(share), given=seen is not None, mode=mode, together=together, rng=rng)
    elif mode == "region":
        raise SettingsError('a list of seen nodes fixes where the sensors are: leave out mode = "region"')
    else:
        chosen = np.zeros(stream.num_nodes, bool)
        listed = stream.network.rows_of(share)
        chosen[listed] = True
        chosen &= sensors
        if chosen.sum() < MIN_SEEN:
            raise SettingsError(
                f"only {int(chosen.sum())} of the {len(listed)} listed nodes have a reading; "
                f"training needs at least {MIN_SEEN}. List more of the city's {int(sensors.sum())} sensors"
            )
    return chosen


def _by_share(
    stream: RoadNetworkStream,
    share: float,
    *,
    given: bool,
    mode: str,
    together: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.bool_]:
    if not 0 < share <= 1:
        raise SettingsError(f"seen = {share}: give a share of the sensors above 0 and at most 1")
    sensors = np.flatnonzero(stream.sensors)
    count = len(sensors)
    if share == 1 and mode == "region":
        raise SettingsError('mode = "region" leaves an area without sensors: give a share below 1 as seen')
    order = rng.permutation(sensors) if mode == "random" else _inwards(stream, sensors, rng)
    chosen = _first_of(order, round(share * count), stream.sensors, together, leave=int(share < 1))
    kept = int(chosen.sum())
    if kept < MIN_SEEN:
        if count <= MIN_SEEN:
            remedy = "Use --seen all" if count == MIN_SEEN else "Add readings of more nodes"
        else:
            remedy = "Give a larger share with --seen" if given else "Use --seen all"
        raise SettingsError(
            f"{share:.0%} of the city's {count} sensors (nodes with a reading) leaves {kept} seen; "
            f"training needs at least {MIN_SEEN}. {remedy}"
        )
    return chosen


def _inwards(stream: RoadNetworkStream, sensors: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """The sensors sorted by road distance from a random one of them: unreachable ones first, then farthest first."""
    network = stream.network
    centre = int(rng.choice(sensors))
    N = network.num_nodes
    roads = csr_array((network.length_m, (network.senders, network.receivers)), shape=(N, N))
    by_road = np.asarray(dijkstra(roads, directed=False, indices=[centre]))[0]
    by_air = haversine_m(network.lon, network.lat, network.lon[[centre]], network.lat[[centre]])
    nearest_first = np.lexsort((by_air, by_road))
    inwards = nearest_first[::-1]
    return inwards[np.isin(inwards, sensors)]
