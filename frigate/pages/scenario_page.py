"""The page of scenarios: a map of each scenario's change, and the numbers beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import local_iso, utc_iso
from frigate.city.city import City
from frigate.forecasting.scenarios import LISTED, Increase, Outcome, ScenarioStudy
from frigate.pages import panels
from frigate.pages.layers import Colours, Layer, Unit, Values
from frigate.pages.map_data import network_container
from frigate.pages.map_page import History, HistoryLine, MapPage, Place, form, write_map_page
from frigate.pages.panels import Block, Panel
from frigate.pages.wire import rounded

MAX_FRAMES = 48
DROPPED_BITS = 13  # of the 23 bits of a float32 mantissa: values are within 0.05 %
MEASURES = ("scenario", "vehicle-km", "another way", "no way")

Floats = NDArray[np.floating]


def write_scenarios(path: str | Path, study: ScenarioStudy, city: City) -> Path:
    """Write the page.

    Parameters
    ----------
    path
        File to write.
    study
        The scenarios.
    city
        That they were forecast for.
    """
    form()
    base = study.base
    shown = slice(None, None, -(-base.horizon // MAX_FRAMES))
    times = [utc_iso(time_s) for time_s in base.times_s[shown].tolist()]
    unit = Unit.of(city.stream)
    usual = _rounded(study.base_flow[shown]), _rounded(base.values[shown])
    layers = []
    lines = [HistoryLine("no change", "other", usual[1])]
    for k, outcome in enumerate(study.outcomes):
        made = _rounded(outcome.road_flow[shown]), _rounded(outcome.forecast.values[shown])
        layers += _layers(k, outcome, made, usual, unit, times)
        lines.append(HistoryLine(outcome.scenario.name, "forecast", made[1]))
    flow = Colours("flow", group="flow")
    layers.append(Layer("base", "No change", Values(usual[0], unit, flow), Values(usual[1], unit, flow), times))
    busiest = int(np.nansum(usual[1], axis=1).argmax())
    page = MapPage(
        title="scenarios",
        network=_network(study, city),
        layers=tuple(layers),
        panels=(Panel("scenarios", "Scenarios", tuple(_blocks(study))),),
        place=Place(
            intro=(panels.heading("A place in every scenario"), panels.words("Click an intersection or a road.")),
            history=History("Forecast", unit, tuple(lines), times),
        ),
        open_frame=busiest,
    )
    return write_map_page(path, page)


def _layers(
    k: int, outcome: Outcome, made: tuple[Floats, Floats], usual: tuple[Floats, Floats], unit: Unit, times: list[str]
) -> list[Layer]:
    change = Colours("change", group="change")
    flow = Colours("flow", group="flow")
    planned = np.flatnonzero(outcome.closed)
    roads, nodes = (Values(after, unit, change, minus=before) for after, before in zip(made, usual, strict=True))
    name = outcome.scenario.name
    on_roads, at_nodes = (Values(each, unit, flow) for each in made)
    return [
        Layer(f"change-{k}", f"{name}: change", roads, nodes, times, planned=planned),
        Layer(f"after-{k}", f"{name}: traffic", on_roads, at_nodes, times, planned=planned),
    ]


def _blocks(study: ScenarioStudy) -> list[Block]:
    words = (
        f"{study.period}, {study.base.timezone}. Compared with no change, when {study.vehicle_km.value:,.0f} "
        "vehicle-km are driven. Nine of ten estimates of the trips lie in the ranges."
    )
    found = [
        panels.heading("Scenarios"),
        panels.words(words),
        panels.table("Scenarios", MEASURES, [_measures(outcome) for outcome in study.outcomes]),
    ]
    for k, outcome in enumerate(study.outcomes):
        found += _scenario(study, k, outcome)
    return found


def _measures(outcome: Outcome) -> list[str]:
    return [
        outcome.scenario.name,
        f"{outcome.vehicle_km.value:+,.0f}",
        f"{outcome.moved.value:,.0f}",
        f"{outcome.lost.value:,.0f}",
    ]


def _in_full(outcome: Outcome) -> Block:
    of_trips = {
        "more vehicle-km": outcome.vehicle_km,
        "vehicles that take another way": outcome.moved,
        "which is longer by (m)": outcome.detour_m,
        "vehicles with no way left": outcome.lost,
    }
    rows = [[name, f"{each.value:,.0f}", f"{each.low:,.0f} to {each.high:,.0f}"] for name, each in of_trips.items()]
    return panels.table(f"Trips: {outcome.scenario.name}", ("", "", "range"), rows)


def _scenario(study: ScenarioStudy, k: int, outcome: Outcome) -> list[Block]:
    found = [
        panels.heading(outcome.scenario.name, level=3),
        panels.layer_buttons({f"change-{k}": "change", f"after-{k}": "traffic", "base": "no change"}),
        _in_full(outcome),
        *(panels.words(text, style="note") for text in outcome.notices),
    ]
    if outcome.increases:
        rows = [_increase(study, each) for each in outcome.increases]
        columns = ("vehicles per hour", "before", "after", "range")
        found.append(panels.table(f"Largest increases: {outcome.scenario.name}", columns, rows))
    if outcome.over_maximum:
        ids = study.base.node_ids
        names = [
            (panels.node(f"{ids[each.row]} {study.base.street[each.row]}".strip(), each.row), _over(each))
            for each in outcome.over_maximum[:LISTED]
        ]
        more = len(outcome.over_maximum) - len(names)
        places = "place" if len(outcome.over_maximum) == 1 else "places"
        title = f"{len(outcome.over_maximum)} {places} over the usual maximum"
        found.append(panels.details(title, panels.items([*names, *([f"and {more} more"] if more else [])])))
    return found


def _over(each: Any) -> str:
    return f"{each.vehicles_per_hour:,.0f}, usually at most {each.usual_maximum:,.0f} vehicles/h"


def _increase(study: ScenarioStudy, each: Increase) -> list[Any]:
    link = panels.node if len(study.network.lines) else panels.road
    hour = local_iso(each.time_s, study.base.timezone)[11:16]
    return [
        link(f"{each.street}, {hour}", each.row),
        f"{each.before:,.0f}",
        f"{each.after:,.0f}",
        f"{each.low:,.0f} to {each.high:,.0f}",
    ]


def _network(study: ScenarioStudy, city: City) -> bytes:
    return network_container(
        study.network,
        city.stream,
        study.base.sensor,
        name=city.name,
        horizon=study.base.horizon,
        has_demand=False,  # the file contains no trips
        detectors=city.detectors,
    )


def _rounded(values: Floats) -> NDArray[np.float32]:
    return rounded(values.astype(np.float32), DROPPED_BITS)
