"""The page of `frigate check --html`: what it holds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from frigate.check.city import CheckReport, check_city
from frigate.city.city import City
from frigate.city.folder import write_city
from frigate.city.stream import make_stream
from frigate.pages.check_page import write_check_page
from frigate.pages.city_record import road_changes, usual
from frigate.pages.gap_chart import MAX_COLUMNS, MAX_ROWS
from frigate.roads.on_roads import on_roads
from tests.support.broken_sensors import busiest, own, with_values
from tests.support.chains import chain, city_of, noise
from tests.support.command_line import frigate
from tests.support.map_page import MapFile
from tests.support.odd_cities import ODD_CITIES, spoilt
from tests.support.towns import START_S, random_network, random_stream


def page_of(city: City, folder: Path) -> tuple[MapFile, CheckReport]:
    report = check_city(city)
    return MapFile(write_check_page(folder / "made" / "check.html", city, report)), report


def test_the_page_shows_sensors_gaps_and_notices(tmp_path: Path) -> None:
    stream = spoilt(random_stream([random_network(40, seed=1)], seed=1, snapshots=300, silent=0, missing=0))
    told = ("Something <odd>: 2 (first: a.csv line 2).", "Another: 1.")
    city = City("Ville <b>", stream, told, places={told[0]: ("a.csv line 2", "a.csv line 9")})
    page, report = page_of(city, tmp_path)
    policy = re.findall(r'Content-Security-Policy" content="(.*?)"', page.text)
    assert len(policy) == 1 and policy[0].startswith("default-src 'none';") and "http" not in policy[0]
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"'](?!data:,)", page.text)
    assert "Ville <b>" not in page.text and page.network_meta["name"] == "Ville <b>"
    assert all(words in page.said("notices") for words in (*told, "a.csv line 9"))
    assert all(words in page.said("sensors") for words in ("nothing since", "read only 0", "times in a row"))
    assert page.network["sensor"].sum() == report.sensors == 13
    means, missing, away = (page.values(key)[0] for key in ("mean", "missing", "distance"))
    assert np.isfinite(means).sum() == np.isfinite(missing).sum() == 13
    assert np.isfinite(away).sum() == report.unseen - report.unseen_apart
    row_of = city.network.row_of
    faulty = [sensor for sensor in report.by_sensor if sensor.faults]
    assert sorted(page.rows("mean", "crossed")) == sorted(row_of(sensor.node_id) for sensor in faulty)
    assert len(faulty) == 3 and page.layers["mean"]["crossed_text"] == "dead, stuck or silent"
    remarks = page.meta["place"]["remarks"]
    for sensor in report.by_sensor:
        row = row_of(sensor.node_id)
        assert missing[row] == pytest.approx(100 * sensor.missing_share, rel=1e-5)
        said = " ".join(remarks.get(str(row), ()))
        assert all(fault in said for fault in sensor.faults)
        assert ("The longest gap" in said) == (sensor.longest_gap > 0)
    (gaps,) = page.blocks("sensors", "gaps")
    assert len(gaps["rows"]) == 13
    assert [bool(row["stuck"]) for row in gaps["rows"]].count(True) == 1
    (listed,) = page.blocks("sensors", "table")
    assert len(listed["rows"]) == len([sensor for sensor in report.by_sensor if sensor.faults or sensor.missing_share])
    (near,) = page.blocks("sensors", "bars")
    assert [(int(hops), share) for hops, share, _ in near["rows"]] == list(report.unseen_within.items())


def test_the_gap_chart_has_a_shade_where_readings_are(tmp_path: Path) -> None:
    values = 50 + np.arange(200.0).reshape(100, 2)
    values[:50, 1] = np.nan
    page, _ = page_of(city_of(values), tmp_path)
    (gaps,) = page.blocks("sensors", "gaps")
    late, whole = gaps["rows"]  # the one that misses most comes first
    assert (late["name"], whole["name"]) == ("n1", "n0")
    assert late["cells"] == "4" * 50 + "0" * 50 and gaps["shades"][4] == "none"
    assert whole["cells"] == "0" * 100


def test_the_page_has_the_mean_of_each_sensor_and_the_usual_day(tmp_path: Path) -> None:
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
    np.testing.assert_allclose(page.values("mean")[0], values.mean(axis=0), rtol=1e-5)
    (day,) = page.blocks("overview", "chart")
    assert [line["name"] for line in day["lines"]] == ["weekday", "weekend"] and day["hours"] == 1
    np.testing.assert_allclose([line["values"] for line in day["lines"]], means.of_day, rtol=1e-5)
    assert "Every sensor reported in every snapshot" in page.said("sensors")
    assert "distance" not in page.layers and "changes" not in page.layers
    assert [panel["key"] for panel in page.meta["panels"]] == ["overview", "sensors", "notices"]


def test_the_page_marks_the_roads_that_change(tmp_path: Path) -> None:
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
    kinds = page.values("changes", "roads")[0]
    ends = [tuple(pair) for pair in np.stack([page.network["source"], page.network["target"]], 1).tolist()]
    assert {ends[e]: kinds[e] for e in np.flatnonzero(np.isfinite(kinds))} == {(0, 1): 0, (3, 4): 1, (4, 3): 1}
    texts = page.layers["changes"]["roads"]["texts"]
    assert texts == ["closed or open for a time: 1", "different at the end than at the start: 2"]
    (table,) = page.blocks("changes", "table")
    assert table["rows"][0][1] == {"text": "n0 → n1", "road": ends.index((0, 1))}
    assert table["rows"][2][1]["text"] == "n3 → n4, n4 → n3"


def test_a_city_on_roads_marks_its_roads_and_its_turns(tmp_path: Path) -> None:
    network = on_roads(city_of(noise(2, 4)))
    road, *_ = network.node_ids.tolist()
    shut = network.close_nodes([road])
    a, b = (network.node_ids[end[-1]] for end in (network.senders, network.receivers))
    turn = network.close([(a, b)])
    values = np.random.default_rng(0).normal(50, 5, (20, network.num_nodes))
    stream = make_stream(
        values, (network, shut, turn), start_s=START_S, step_s=300, network_of=np.repeat([0, 1, 0, 2], 5)
    )
    closed, opened, last = road_changes(stream)
    assert (closed.closed_nodes, closed.closed, opened.opened_nodes, opened.opened) == ([road], [], [road], [])
    assert (last.closed_nodes, last.closed) == ([], [(a, b)])
    page, _ = page_of(City("on roads", stream), tmp_path)
    kinds = page.values("changes", "nodes")[0]
    assert np.flatnonzero(np.isfinite(kinds)).tolist() == [0] and kinds[0] == 0
    assert page.rows("changes", "crossed_roads") == [network.num_edges - 1]
    assert "turns that close or open alone: 1" in page.layers["changes"]["crossed_text"]
    (table,) = page.blocks("changes", "table")
    assert table["rows"][0][1] == {"text": road, "node": 0}


@pytest.mark.parametrize("make", ODD_CITIES)
def test_odd_cities_have_a_report_and_a_page(make: Callable[[], City], tmp_path: Path) -> None:
    city = make()
    page, report = page_of(city, tmp_path)
    json.dumps(report.to_json(), allow_nan=False)
    assert all(isinstance(line, str) for line in report.lines())
    assert page.network_meta["name"] == city.name
    gaps = page.blocks("sensors", "gaps") if report.sensors else []
    assert bool(gaps) == (report.sensors > 0 and report.observed_at_sensors < 1)


def test_a_large_city_has_a_chart_of_bounded_size(tmp_path: Path) -> None:
    network = random_network(4000, seed=0, roads_per_node=3)
    stream = random_stream([network], seed=0, snapshots=400, silent=0, missing=0.5)
    page, report = page_of(City("large", stream), tmp_path)
    assert report.sensors == 4000
    assert len(page.text) < 2e6
    (gaps,) = page.blocks("sensors", "gaps")
    assert len(gaps["rows"]) == MAX_ROWS and {len(row["cells"]) for row in gaps["rows"]} == {MAX_COLUMNS}
    assert f"up to {4000 // MAX_ROWS} sensors" in page.said("sensors")


def test_names_no_file_can_hold_are_replaced(tmp_path: Path) -> None:
    city = city_of(noise(30, 2))
    page, _ = page_of(replace(city, name="a \udcff\x00 b"), tmp_path)
    assert page.network_meta["name"] == "a ?\x00 b"


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    write_city(city_of(noise(30, 4)), tmp_path / "city")
    said = frigate("check", tmp_path / "city", "--html", tmp_path / "a" / "check.html")
    assert said.status == 0
    assert f"Page: {tmp_path / 'a' / 'check.html'}" in said.out
    assert MapFile(tmp_path / "a" / "check.html").network_meta["name"] == "chain"
    told = frigate("check", tmp_path / "city", "--json")
    sensors = json.loads(told.out)["by_sensor"]
    assert [sensor["node_id"] for sensor in sensors] == ["n0", "n1", "n2", "n3"]


def test_counts_that_contradict_the_others_are_a_layer_and_a_panel(tmp_path: Path) -> None:
    row = busiest(30)
    city = with_values(**{f"n{row}": own(row) * 10})
    report = check_city(city, conflicts=True)
    assert report.conflicts is not None
    page = MapFile(write_check_page(tmp_path / "check.html", city, report))
    assert page.rows("conflicts", "crossed") == [row]
    values = page.values("conflicts")[0]
    worst = report.conflicts.sensors[0]
    assert worst.expected is not None
    assert values[row] == pytest.approx(100 * (worst.counted + 1) / (worst.expected + 1) - 100, rel=1e-3)
    assert values[row] > 200
    assert str(worst.node_id) in page.said("conflicts")
    assert any("left out of demand" in words for words in page.meta["place"]["remarks"][str(row)])
    (tmp_path / "plain").mkdir()
    plain = MapFile(write_check_page(tmp_path / "plain" / "check.html", city, check_city(city)))
    assert "conflicts" not in plain.layers
