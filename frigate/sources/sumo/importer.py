"""Import from the SUMO traffic simulator: its network, and counts from edge data or induction loops (E1).

A junction's count is the number of vehicles that passed it in an interval: the sum of `left` over the roads for cars
that lead to it. A trip that ends on a road has `arrived` there and does not pass the junction. A road's count is its
own `left`. An induction loop counts the vehicles that passed it, `nVehContrib`. The loops on the lanes of a road are
summed, for the road or for the junction at its end. A sum is observed only if all its parts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import zone
from frigate.city.bucketing import Snapshots
from frigate.city.city import City, empty_turns
from frigate.city.city_toml import parse_step
from frigate.city.network import RoadNetwork, clean_edges
from frigate.city.network_tables import note_network
from frigate.errors import CityError
from frigate.reading.notices import Notices
from frigate.reading.sandbox import sandboxed
from frigate.reading.times import Clock
from frigate.roads.line_graph import dead_ends, every_turn
from frigate.roads.on_roads import on_roads
from frigate.sources.sumo.counts import Counts, counts_stream
from frigate.sources.sumo.net import SumoNet, read_net
from frigate.sources.sumo.xml import elements

DEFAULT_STEP = "5min"  # of a city without readings


@sandboxed
def import_sumo(
    net: str | Path,
    *,
    edgedata: Sequence[str | Path] = (),
    detectors: Sequence[str | Path] = (),
    on: str = "nodes",
    start: str | Sequence[str] = "2024-01-01T00:00",
    timezone: str = "UTC",
    step: str | None = None,
    origin: tuple[float, float] | None = None,
    name: str | None = None,
) -> City:
    """Make a city from a SUMO network and either edge data or induction loops; without either, it has no readings.

    Parameters
    ----------
    net
        The network, .net.xml or .net.xml.gz.
    edgedata
        Files of edge data (meandata), for counts on every road.
    detectors
        The additional files that define the induction loops, and the output files of the loops, in any order.
    on
        "nodes" (junctions) or "roads" (the line graph, with SUMO's own edges and connections).
    start
        Time of second 0 of the simulation, for all files or one per file; without a zone, it is local time.
    timezone
        IANA name of the city's time zone.
    step
        Default: the length of the intervals. A longer step sums them.
    origin
        Longitude and latitude of the point 0,0, for a network without a projection, such as one from netgenerate.
    name
        Name of the city; default: that of the network file.
    """
    if on not in ("nodes", "roads"):
        raise CityError(f'on "{on}" is not known. Choose "nodes" or "roads"')
    if edgedata and detectors:
        raise CityError("edge data and detectors count different things. Give one of the two, or import two cities")
    notices = Notices()
    clock = Clock(zone(timezone), "")
    step_s = None if step is None else parse_step(step, where="step")
    path = Path(net)
    sumo = read_net(path, notices=notices, origin=origin)
    network = _on_nodes(sumo, notices) if on == "nodes" else _on_roads(sumo, notices)
    note_network(network, notices)
    if files := [Path(p) for p in (edgedata or detectors)]:
        read = _edge_counts if edgedata else _loop_counts
        counts = read(files, sumo, on=on, start=start, clock=clock, notices=notices)
        target = counts.road if on == "roads" else sumo.roads.receivers[counts.road]
        stream = counts_stream(counts, target, network, step_s=step_s, timezone=timezone, notices=notices)
    else:
        none = Snapshots.none(network.num_nodes, step_s or parse_step(DEFAULT_STEP, where="step"), timezone)
        stream = none.stream(network, unit="vehicles")
        notices.add("Nodes without any reading: the city has no sensor and cannot be trained on", network.num_nodes)
    turns = _forbidden_turns(sumo, network) if on == "nodes" else None
    return City.reported(name or path.name.split(".")[0] or path.name, stream, notices, forbidden_turns=turns)


def _on_nodes(sumo: SumoNet, notices: Notices) -> RoadNetwork:
    """Junctions as nodes. Vehicles that leave a road count at its junction even if the road is not kept as an edge."""
    edges, cleaned = clean_edges(sumo.roads)
    counted = "their vehicles are still counted"
    notices.add(f"Roads from a junction to itself were left out; {counted}", int(cleaned.self_loops.sum()))
    notices.add(f"Parallel roads were left out, the shortest of each kept; {counted}", int(cleaned.parallel.sum()))
    if not len(edges):
        raise CityError("the network has no road between two junctions")
    return sumo.junctions.with_roads(edges)


def _forbidden_turns(sumo: SumoNet, network: RoadNetwork) -> NDArray[np.int64]:
    """[K,3] turns between roads of the junction network for which there is no connection.

    A road stands for all roads parallel to it: a turn is forbidden only if none of them allows it. U-turns are listed
    only at dead ends, the only place where they are otherwise allowed.
    """
    if sumo.turns is None:
        return empty_turns()
    edges = network.edges
    N = network.num_nodes
    E = network.num_edges
    ends, own = (roads.senders * N + roads.receivers for roads in (edges, sumo.roads))
    order = np.argsort(ends)
    nearest = order[np.minimum(np.searchsorted(ends[order], own), E - 1)]
    stands_for = np.where(ends[nearest] == own, nearest, -1)  # -1: a road from a junction to itself
    made = stands_for[sumo.turns]
    made = made[(made >= 0).all(axis=1)]
    left, entered = every_turn(edges.senders, edges.receivers)
    allowed = np.isin(left * E + entered, made[:, 0] * E + made[:, 1])
    back = edges.receivers[entered] == edges.senders[left]
    forbidden = ~allowed & (~back | dead_ends(left[allowed & ~back], E)[left])
    left = left[forbidden]
    entered = entered[forbidden]
    return np.stack([edges.senders[left], edges.receivers[left], edges.receivers[entered]], axis=1)


def _on_roads(sumo: SumoNet, notices: Notices) -> RoadNetwork:
    notices.add("Networks without connections: every turn but the U-turn is taken as allowed", int(sumo.turns is None))
    notices.add("U-turns left out because the road leads on", sumo.u_turns)
    network = on_roads(sumo.junctions, edges=sumo.roads, ids=sumo.road_ids, turns=sumo.turns, notices=notices)
    if not network.num_edges:
        raise CityError("the network has no turn from one road to another")
    return network


# Reading


def _starts_ms(files: Sequence[Path], given: str | Sequence[str], clock: Clock) -> list[int]:
    """Time of second 0 of each file, in milliseconds since 1970 UTC."""
    texts = [given] if isinstance(given, str) else list(given)
    if len(texts) not in (1, len(files)):
        raise CityError(f"{len(texts)} starts for {len(files)} files. Give one for all, or one for each")
    starts = [clock.read_option("start", text) // 1000 for text in texts]
    return starts * len(files) if len(starts) == 1 else starts


def _edge_counts(
    files: list[Path], sumo: SumoNet, *, on: str, start: str | Sequence[str], clock: Clock, notices: Notices
) -> Counts:
    counts = Counts(sumo.road_ids.tolist(), np.arange(len(sumo.road_ids)))
    row_of = {road: row for row, road in enumerate(counts.names)}
    unknown = _Unknown("Roads of the edge data that are not in the network, left out")
    total = 0
    for path, start_ms in zip(files, _starts_ms(files, start, clock), strict=True):
        interval = -1
        counted = len(counts.value)
        roads = total
        seen: set[str] = set()  # attributes of roads, and the elements inside them
        for element in elements(path, roots=["meandata"]):
            if element.name == "interval":
                interval = counts.interval_of(element, start_ms)
            elif element.name == "edge":
                road = element.text("id")
                total += 1
                seen |= set(element.attributes)
                if road in row_of and "left" in element.attributes:
                    counts.add(interval, row_of[road], element, "left")
                elif road not in row_of and road not in sumo.not_for_cars and not road.startswith(":"):
                    unknown.add(road)
            elif element.name == "lane":
                seen.add("<lane>")
        if len(counts.value) == counted and total > roads:
            unknown.check(total, path)
            raise _no_counts(path, seen)
    unknown.check(total, files[0])
    unknown.report(notices)
    if on == "nodes":
        reached = np.bincount(sumo.roads.receivers, minlength=sumo.junctions.num_nodes) > 0
        notices.add("Junctions that no road leads to, taken as not observed", int((~reached).sum()))
    return _listed(counts, notices)


def _no_counts(path: Path, seen: set[str]) -> CityError:
    """What edge data without counts is, by the attributes of its roads, and what to write instead."""
    what = f'{path.name}: no road of the network has the attribute "left", the number of vehicles that left it'
    known = ", ".join(sorted(seen - {"id", "<lane>"}))
    if "<lane>" in seen:
        return CityError(f"{what}: this is lane data. Write <edgeData> with SUMO, not <laneData>")
    if any(name.endswith(("_abs", "_normed", "_perVeh")) or name == "noise" for name in seen):
        return CityError(f"{what}: these are emissions ({known}). Write <edgeData> with SUMO without a type")
    if "count" in seen:
        return CityError(f"{what}: these are counts for routeSampler ({known}). Import the table they were made from")
    if not known:
        return CityError(f"{what}, nor any other. Write <edgeData> with SUMO, and add left to its writeAttributes")
    return CityError(f"{what}, only {known}. Add left to writeAttributes of <edgeData>, or leave writeAttributes out")


def _listed(counts: Counts, notices: Notices) -> Counts:
    """Fill in the zeros that SUMO left out. If intervals list different roads, it omitted empty ones (excludeEmpty)."""
    if not len(counts.value):
        return counts
    _, interval, sensor, _ = counts.arrays()
    ever = np.unique(sensor)
    sizes = np.bincount(interval, minlength=len(counts.index_of))
    if (sizes == len(ever)).all():
        notices.add("Roads that are not in the edge data, taken as not observed", len(counts.names) - len(ever))
        return counts
    zeros = len(counts.index_of) * len(counts.names) - len(interval)
    notices.add("Counts taken as 0 because an interval does not list the road (excludeEmpty)", zeros)
    return replace(counts, unlisted_are_zero=True)


def _loop_counts(
    files: list[Path], sumo: SumoNet, *, on: str, start: str | Sequence[str], clock: Clock, notices: Notices
) -> Counts:
    kinds = [next(elements(path, roots=["additional", "detector"])).name for path in files]
    placing, outputs = (
        [path for path, kind in zip(files, kinds, strict=True) if kind == wanted]
        for wanted in ("additional", "detector")
    )
    if not placing or not outputs:
        found = f"{len(placing)} additional files and {len(outputs)} output files"
        raise CityError(f"detectors: {found}. Give both: where the loops are, and what they counted")
    loops, left_out = _place_loops(placing, sumo, notices)
    counts = Counts(list(loops), np.array([sumo.lanes[lane].road for lane in loops.values()], np.int64))
    _note_coverage(counts, sumo, on, notices)
    row_of = {loop: row for row, loop in enumerate(counts.names)}
    unknown = _Unknown("Detectors in the output that are not in the additional files, left out")
    total = 0
    for path, start_ms in zip(outputs, _starts_ms(outputs, start, clock), strict=True):
        for element in elements(path, roots=["detector"]):
            if element.name != "interval":
                continue
            total += 1
            loop = element.text("id")
            if "nVehContrib" not in element.attributes:
                raise element.refuse("the interval has no nVehContrib. Output of E1 induction loops is expected")
            if loop in row_of:
                counts.add(counts.interval_of(element, start_ms), row_of[loop], element, "nVehContrib")
            elif loop not in left_out:
                unknown.add(loop)
    unknown.check(total, outputs[0])
    unknown.report(notices)
    return counts


def _place_loops(files: list[Path], sumo: SumoNet, notices: Notices) -> tuple[dict[str, str], set[str]]:
    """The lane of each loop, and the loops left out. If a lane has several, the one nearest to its end is kept."""
    found: dict[str, tuple[str, float]] = {}
    lost = _Unknown("Loops on lanes that are not in the network, left out")
    others = 0
    total = 0
    named: set[str] = set()
    for path in files:
        for element in elements(path, roots=["additional"]):
            if element.name not in ("inductionLoop", "e1Detector"):
                continue
            loop = element.text("id")
            lane = element.text("lane")
            total += 1
            if loop in named:
                raise element.refuse(f'loop "{loop}" is defined twice')
            named.add(loop)
            road = lane.rpartition("_")[0]
            if road in sumo.not_for_cars or (lane in sumo.lanes and not sumo.lanes[lane].for_cars):
                others += 1
            elif lane not in sumo.lanes:
                lost.add(lane)
            else:
                at_m = element.number("pos") if "pos" in element.attributes else 0.0
                found[loop] = (lane, at_m if at_m >= 0 else at_m + sumo.lanes[lane].length_m)
    if total:
        lost.check(total, files[0])
    if not found:
        raise CityError(f"{files[0].name} has no induction loop on a lane for cars")
    lost.report(notices)
    notices.add("Loops on lanes that passenger cars may not use, left out", others)
    last: dict[str, tuple[float, str]] = {}
    for loop, (lane, at_m) in found.items():
        last[lane] = max(last.get(lane, (-np.inf, "")), (at_m, loop))
    kept = {loop for _, loop in last.values()}
    notices.add("Loops upstream of another loop on the same lane, left out", len(found) - len(kept))
    return {loop: lane for loop, (lane, _) in found.items() if loop in kept}, named - kept


def _note_coverage(counts: Counts, sumo: SumoNet, on: str, notices: Notices) -> None:
    loops = np.bincount(counts.road, minlength=len(sumo.roads))
    partly = (loops > 0) & (loops < sumo.roads.lanes)
    what = "Roads with loops on only some of their lanes, so not all vehicles are counted"
    notices.add_rows(what, partly, lambda row: f'road "{sumo.road_ids[row]}"')
    if on == "nodes":
        reached = sumo.roads.receivers
        N = sumo.junctions.num_nodes
        roads = np.bincount(reached, minlength=N)
        counted = np.bincount(reached[loops > 0], minlength=N)
        what = "Junctions with loops on only some of the roads to them, so counts are partial; --on roads is exact"
        partly = (counted > 0) & (counted < roads)
        notices.add_rows(what, partly, lambda row: f'junction "{sumo.junctions.node_ids[row]}"')


class _Unknown:
    """Ids that are not in the network, in order of appearance."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0
        self._names: dict[str, None] = {}

    def add(self, name: str) -> None:
        self._count += 1
        self._names[name] = None

    def check(self, total: int, path: Path) -> None:
        if not total:
            raise CityError(f"{path.name} has no interval with a count")
        if self._count * 2 > total:
            most = f"The same holds for {self._count:,} of {total:,}: is it of another network?"
            raise CityError(f'{path.name}: id "{next(iter(self._names))}" is not known. {most}')

    def report(self, notices: Notices) -> None:
        names = list(self._names)
        notices.add_rows(self._what, np.ones(len(names), bool), lambda row: f'"{names[row]}"')
