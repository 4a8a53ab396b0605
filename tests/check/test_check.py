"""What `frigate check` says of a city, and the page it draws."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from frigate.check.city import CheckReport, check_city
from frigate.city.city import City
from frigate.city.folder import write_city
from frigate.city.network import Edges, RoadNetwork
from frigate.city.stream import RoadNetworkStream, make_stream
from frigate.pages import check_page
from frigate.pages.check_charts import road_changes, usual
from frigate.pages.check_page import write_check_page
from frigate.pages.gap_chart import MAX_COLUMNS, MAX_ROWS
from frigate.text import duration, percent
from tests.support.command_line import frigate
from tests.support.html_page import Page
from tests.support.towns import START_S, random_network, random_stream

FIVE_MIN = 300


def chain(num_nodes: int) -> RoadNetwork:
    """A street with a node every few metres, both ways."""
    rows = np.arange(num_nodes)
    ahead = Edges.of(rows[:-1], rows[1:], np.full(num_nodes - 1, 100.0))
    back = Edges.of(rows[1:], rows[:-1], np.full(num_nodes - 1, 100.0))
    ids = np.array([f"n{i}" for i in rows], np.str_)
    return RoadNetwork(ids, 6.1 + rows / 1000, np.full(num_nodes, 49.6), ahead.join(back))


def city_of(values: NDArray[np.floating], *, quantity: str = "speed", step_s: int = FIVE_MIN) -> City:
    """A chain with a column for each node; NaN is not observed."""
    network = chain(values.shape[1])
    return City("chain", make_stream(values, network, start_s=START_S, step_s=step_s, quantity=quantity))


def noise(snapshots: int, nodes: int = 2, *, quantity: str = "speed") -> NDArray[np.float64]:
    rng = np.random.default_rng(0)
    if quantity == "speed":
        return rng.normal(50, 5, (snapshots, nodes))
    return rng.poisson(9.0, (snapshots, nodes)).astype(np.float64) + 1


# Sensor by sensor


@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from([2, 30, 255, 300]))
@settings(max_examples=25)
def test_gaps_are_those_of_a_plain_count(seed: int, forms: int, snapshots: int) -> None:
    networks = [random_network(6, seed=seed)]
    for n in range(1, forms):
        networks.append(networks[0].remove_nodes([networks[0].node_ids[n].item()]))
    stream = random_stream(networks, seed=seed, snapshots=snapshots, missing=0.6)
    present = np.stack([n.present for n in networks])[stream.network_of]
    stream = replace(stream, observed=stream.observed & present, values=stream.values * (stream.observed & present))
    report = check_city(City("c", stream))
    found = {s.node_id: s for s in report.by_sensor}
    assert set(found) == set(stream.node_ids[stream.observed.any(axis=0)].tolist())
    for n, node_id in enumerate(stream.node_ids.tolist()):
        if node_id in found:
            state = [
                "absent" if not p else "read" if o else "gap"
                for p, o in zip(present[:, n], stream.observed[:, n], strict=True)
            ]
            runs = [(word, len(list(run))) for word, run in groupby(state)]
            assert found[node_id].longest_gap == max([length for word, length in runs if word == "gap"], default=0)
            due = sum(word != "absent" for word in state)
            assert found[node_id].missing_share == pytest.approx(state.count("gap") / due)
    shares = [s.missing_share for s in report.by_sensor]
    assert shares == sorted(shares, reverse=True)


def test_the_longest_gap_has_its_time() -> None:
    values = noise(600)
    values[250:270, 1] = np.nan  # across two of the parts that are walked through
    values[10:15, 1] = np.nan
    worst, fine = check_city(city_of(values)).by_sensor
    assert (worst.node_id, worst.longest_gap, worst.gap_from) == ("n1", 20, "2024-01-02T04:50:00+00:00")
    assert worst.missing_share == pytest.approx(25 / 600)
    assert (fine.longest_gap, fine.gap_from, fine.faults) == (0, None, ())


@pytest.mark.parametrize(
    ("quantity", "step_s", "needed"), [("speed", 300, 72), ("count", 300, 72), ("speed", 3600, 12), ("count", 3600, 24)]
)
def test_a_value_for_hours_is_stuck(quantity: str, step_s: int, needed: int) -> None:
    for length, stuck in ((needed, ("n1",)), (needed - 1, ())):
        values = noise(700, quantity=quantity)
        values[230 : 230 + length + 3, 1] = 41
        values[240:243, 1] = np.nan  # readings that are missing do not end it
        report = check_city(city_of(values, quantity=quantity, step_s=step_s))
        assert report.stuck == stuck
    whole = check_city(city_of(np.where(np.arange(2) == 1, 41.0, noise(20, quantity=quantity)), quantity=quantity))
    assert whole.stuck == ("n1",)  # nothing else was ever read


def test_a_stuck_sensor_is_told_with_its_times() -> None:
    values = noise(400)
    values[100:200, 1] = 61.5
    report = check_city(city_of(values))
    (sensor,) = [s for s in report.by_sensor if s.faults]
    assert sensor.stuck_snapshots == (100, 199)
    assert sensor.faults == (
        "read 61.5 100 times in a row, from 2024-01-01T16:20:00+00:00 to 2024-01-02T00:35:00+00:00",
    )
    assert any("n1: read 61.5 100 times" in line for line in report.lines())


def test_an_empty_road_is_no_stuck_sensor() -> None:
    day = 288
    values = noise(7 * day, 4, quantity="count")
    values[day : 2 * day - 1, 0] = 0  # all but a day
    values[day : 2 * day, 1] = 0  # a day, on a busy road
    values[:, 2] = np.arange(7 * day) % 400 == 0  # hardly anyone ever comes here
    values[:, 3] = 0
    report = check_city(city_of(values, quantity="count"))
    assert report.stuck == ("n1",)
    assert report.dead == ("n3",)
    gauge = check_city(city_of(values, quantity="speed"))
    assert set(gauge.stuck) == {"n0", "n1", "n2"}  # no traffic has no speed: a gauge at 0 is not told by its mean


def test_a_sensor_that_is_heard_no_more_is_silent() -> None:
    values = noise(400, 3)
    values[360:, 1] = np.nan
    values[361:, 2] = np.nan
    report = check_city(city_of(values))
    assert report.silent == ("n1",)
    assert report.by_sensor[0].faults == ("nothing since 2024-01-02T13:55:00+00:00",)
    short = noise(20)
    short[-11:, 1] = np.nan  # more than a tenth, but not long
    assert check_city(city_of(short)).silent == ()


# The network


def test_the_share_of_nodes_with_a_sensor_so_near() -> None:
    values = np.full((30, 16), np.nan)
    values[:, 0] = np.arange(30)
    city = city_of(values)
    cut = replace(city.stream, networks=(city.network.close([("n12", "n13"), ("n13", "n12")]),))
    report = check_city(replace(city, stream=cut))
    assert report.unseen == 15
    assert {h: round(15 * share) for h, share in report.unseen_within.items()} == {1: 1, 2: 2, 3: 3, 5: 5, 10: 10}
    assert report.unseen_apart == 3
    assert report.parts == 2
    line = next(line for line in report.lines() if line.startswith("Nodes without a sensor: 15"))
    assert "1: 6.7%, 2: 13.3%" in line
    assert line.endswith("not connected to any: 3")
    every = check_city(city_of(noise(30, 4)))
    assert (every.unseen, every.unseen_within) == (0, {})


def test_the_order_of_the_nodes_does_not_matter() -> None:
    network = random_network(12, seed=3)
    stream = random_stream([network], seed=3, snapshots=300)
    order = np.random.default_rng(1).permutation(12)
    back = np.argsort(order)
    edges = replace(network.edges, senders=back[network.senders], receivers=back[network.receivers])
    turned = RoadNetwork(network.node_ids[order], network.lon[order], network.lat[order], edges)
    other = replace(stream, values=stream.values[:, order], observed=stream.observed[:, order], networks=(turned,))
    a, b = (check_city(City("c", s)) for s in (stream, other))
    assert set(a.by_sensor) == set(b.by_sensor)
    assert (a.unseen_within, a.road_km, a.parts) == (b.unseen_within, b.road_km, b.parts)


def test_what_stands_in_the_way_of_training_is_said() -> None:
    assert any("learning the week" in words.lower() for words in check_city(city_of(noise(300))).advice)
    assert any("has 10 snapshots" in words for words in check_city(city_of(noise(100))).advice)
    assert check_city(city_of(noise(8 * 288))).advice == ()
    none = check_city(city_of(np.zeros((0, 3))))
    assert none.advice == ("there is nothing to learn from. Import readings",)
    assert "Before training: there is nothing to learn from. Import readings" in none.lines()


def test_times_and_shares_are_said_in_words() -> None:
    assert [duration(s) for s in (0, 300, 5400, 90_000, 86_460, 1_000_000_000)] == [
        "0 s",
        "5 min",
        "1 h 30 min",
        "1 day 1 h",
        "1 day",
        "11,574 days 1 h",
    ]
    assert [percent(x) for x in (0, 1e-5, 0.034, 0.5, 0.994, 0.99999, 1)] == [
        "0 %",
        "under 0.1 %",
        "3.4 %",
        "50 %",
        "99.4 %",
        "over 99.9 %",
        "100 %",
    ]


# The page


def spoilt(stream: RoadNetworkStream) -> RoadNetworkStream:
    """A third of the nodes with sensors, one of them dead, one stuck, one silent, one with a gap."""
    observed = stream.observed.copy()
    values = stream.values.copy()
    S, N = values.shape
    observed[:, N // 3 :] = False
    observed[:, : N // 3] = True
    values[:, 0], values[10:150, 1] = 0, 5
    observed[S // 2 :, 2], observed[20:90, 3] = False, False
    return replace(stream, values=np.where(observed, values, 0).astype(np.float32), observed=observed)


def page_of(city: City, folder: Path) -> tuple[Page, CheckReport]:
    report = check_city(city)
    return Page(write_check_page(folder / "made" / "check.html", city, report)), report


def test_the_page_shows_sensors_gaps_and_notices(tmp_path: Path) -> None:
    stream = spoilt(random_stream([random_network(40, seed=1)], seed=1, snapshots=300, silent=0, missing=0))
    told = ("Something <odd>: 2 (first: a.csv line 2).", "Another: 1.")
    city = City("Ville <b>", stream, told, places={told[0]: ("a.csv line 2", "a.csv line 9")})
    page, report = page_of(city, tmp_path)
    assert not re.search(r"https?://|//\w+\.|url\(|@import|fetch\(|XMLHttp", page.raw)
    assert not {"src", "href"} & {name for _, attributes in page.tags for name in attributes}
    assert not {"link", "img", "b>"} & {tag for tag, _ in page.tags}
    for words in (*told, "a.csv line 9", "Ville <b>", "nothing since", "read only 0", "times in a row"):
        assert words in page.text
    (sensors, hops) = page.data
    assert sum(sensors["sensor"]) == report.sensors == 13
    assert sum(sensors["sensor"]) == sum(hops["sensor"]) == 13
    drawn = [(a.get("class") or "", a.get("d") or "") for tag, a in page.tags if tag == "path"]
    assert sum(d.count("M") for css, d in drawn if css.startswith("q forecast")) == 13
    assert sum(d.count("M") for css, d in drawn if css.startswith("c error")) == report.unseen - report.unseen_apart
    crosses = next(a["d"] for tag, a in page.tags if a.get("class") == "fault")
    assert crosses is not None
    assert crosses.count("M") == len([s for s in report.by_sensor if s.faults]) == 3
    rows = [tag for tag, a in page.tags if a.get("class") == "row"]
    assert len(rows) == 13
    for word, share in (("all", 1.0), ("most", 0.7)):
        assert any(a.get("class") == f"cell {word}" for tag, a in page.tags), share
    assert len([1 for tag, a in page.tags if a.get("class") == "stuck" and tag == "path"]) == 1


def test_the_gap_chart_has_a_stroke_where_readings_are(tmp_path: Path) -> None:
    values = 50 + np.arange(200.0).reshape(100, 2)
    values[:50, 1] = np.nan
    page, _ = page_of(city_of(values), tmp_path)
    (d,) = [a["d"] for tag, a in page.tags if (a.get("class") or "").startswith("cell ") and tag == "path"]
    assert d is not None
    strokes = [tuple(map(float, m)) for m in re.findall(r"M([\d.]+) ([\d.]+)H([\d.]+)", d)]
    (late, top, end), (start, below, same_end) = strokes
    assert top < below  # the one that misses most comes first
    assert end == same_end
    assert late == pytest.approx((start + end) / 2, abs=0.11)


def test_the_page_draws_the_mean_of_each_sensor_and_the_usual_day(tmp_path: Path) -> None:
    hours = np.arange(14 * 24)
    local_hour = (hours + 4) % 24  # the record begins at 04:30 in St John's
    weekend = (hours + 4) // 24 % 7 >= 5  # on a Monday
    values = np.stack([10.0 * local_hour, np.where(weekend, 1.0, 3.0)], axis=1)
    network = chain(2)
    stream = make_stream(values, network, start_s=START_S, step_s=3600, timezone="America/St_Johns")
    means = usual(stream)
    np.testing.assert_allclose(means.of_node, values.mean(axis=0))
    for kind, other in ((0, 3.0), (1, 1.0)):
        np.testing.assert_allclose(means.of_day[kind], (10.0 * np.arange(24) + other) / 2)
    page, _ = page_of(City("two", stream), tmp_path)
    assert all(f"{mean:,.3g}" in tip for mean, tip in zip(values.mean(axis=0), page.data[0]["tips"], strict=True))
    assert "What does a typical day look like?" in page.text
    assert "Every sensor reported in every snapshot" in page.text
    assert "Which roads change?" not in page.text


def test_the_page_draws_the_roads_that_change(tmp_path: Path) -> None:
    base = chain(5)
    for_a_time = base.close([("n0", "n1")])
    lasting = base.close([("n3", "n4"), ("n4", "n3")])
    stream = make_stream(
        noise(30, 5),
        (base, for_a_time, lasting),
        start_s=START_S,
        step_s=3600,
        network_of=np.repeat([0, 1, 0, 2], [10, 5, 5, 10]),
    )
    changes = road_changes(stream)
    assert [(change.closed, change.opened) for change in changes] == [
        ([("n0", "n1")], []),
        ([], [("n0", "n1")]),
        ([("n3", "n4"), ("n4", "n3")], []),
    ]
    assert [change.time[11:16] for change in changes] == ["18:00", "23:00", "04:00"]
    page, _ = page_of(City("changing", stream), tmp_path)
    classes = [a.get("class") or "" for tag, a in page.tags if tag == "path"]
    drawn = [each for each in classes if each.startswith("changed")]
    assert sorted(drawn) == ["changed for-a-time", "changed lasting", "changed lasting"]
    assert "n0 → n1" in page.text


def lonely() -> City:
    network = RoadNetwork(np.array([7]), np.array([6.1]), np.array([49.6]), Edges.none())
    return City("one", make_stream(noise(30, 1), network, start_s=START_S, step_s=60))


def roadless() -> City:
    network = RoadNetwork(np.arange(5), 6.1 + np.arange(5) / 100, np.full(5, 49.6), Edges.none())
    values = np.full((30, 5), np.nan)
    values[:, 0] = 3
    return City("no roads", make_stream(values, network, start_s=START_S, step_s=60))


def empty() -> City:
    return city_of(np.zeros((0, 4)))


def gone() -> City:
    stream = city_of(noise(30, 4)).stream
    return City("gone", stream.on(stream.network.remove_nodes(stream.node_ids.tolist())))


def years() -> City:
    return city_of(noise(60, 2), step_s=86_400 * 30)


@pytest.mark.parametrize("make", [lonely, roadless, empty, gone, years])
def test_odd_cities_have_a_report_and_a_page(make: object, tmp_path: Path) -> None:
    assert callable(make)
    city = make()
    page, report = page_of(city, tmp_path)
    json.dumps(report.to_json(), allow_nan=False)
    assert all(isinstance(line, str) for line in report.lines())
    assert city.name in page.text
    assert ('class="gaps"' in page.raw) == (report.sensors > 0 and report.observed_at_sensors < 1)


def test_a_large_city_has_a_page_of_a_few_megabytes(tmp_path: Path) -> None:
    network = random_network(4000, seed=0, roads_per_node=3)
    stream = random_stream([network], seed=0, snapshots=400, silent=0, missing=0.5)
    page, report = page_of(City("large", stream), tmp_path)
    assert report.sensors == 4000
    assert len(page.raw) < 3e6
    assert len([1 for tag, a in page.tags if a.get("class") == "row"]) == MAX_ROWS
    strokes = sum(
        (a["d"] or "").count("M")
        for tag, a in page.tags
        if (a.get("class") or "").startswith("cell ") and tag == "path"
    )
    assert strokes <= MAX_ROWS * MAX_COLUMNS


def test_more_than_can_be_drawn_is_left_out_aloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_page, "MAX_NODES", 150)
    monkeypatch.setattr(check_page, "MAX_ROADS", 400)
    network = random_network(170, seed=0, roads_per_node=3)
    assert network.num_edges > 400
    values = np.full((3, 170), np.nan)
    values[:, 5] = 1
    page, report = page_of(City("wide", make_stream(values, network, start_s=START_S, step_s=60)), tmp_path)
    assert "The maps show" in page.text
    assert "of 170 nodes" in page.text
    assert 0 < len(page.data[0]["x"]) <= 150
    assert sum(page.data[0]["sensor"]) == report.sensors == 1


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    write_city(city_of(noise(30, 4)), tmp_path / "city")
    said = frigate("check", tmp_path / "city", "--html", tmp_path / "a" / "check.html")
    assert said.status == 0
    assert f"Page: {tmp_path / 'a' / 'check.html'}" in said.out
    assert "chain" in Page(tmp_path / "a" / "check.html").text
    told = frigate("check", tmp_path / "city", "--json")
    sensors = json.loads(told.out)["by_sensor"]
    assert [sensor["node_id"] for sensor in sensors] == ["n0", "n1", "n2", "n3"]
