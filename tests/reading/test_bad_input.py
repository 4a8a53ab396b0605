"""Bad tables: each is refused with place, value and remedy, or accepted with a counted notice. Never a traceback."""

from __future__ import annotations

import re
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frigate.check.city import check_city
from frigate.city.city import City
from frigate.city.folder import open_cache, read_city, write_city
from frigate.city.stream import parse_quantity
from frigate.errors import CityError, FrigateError
from tests.support.documents import table_rows
from tests.support.errors import raises

GOOD = {
    "city.toml": 'step = "5min"\n',
    "nodes.csv": "node_id,lon,lat\nA1,6.1,49.6\nA2,6.11,49.6\nA3,6.12,49.6\n",
    "edges.csv": "source,target,length_m\nA1,A2,100\nA2,A3,200\nA3,A1,300\n",
    "readings.csv": "time,node_id,value\n2024-01-01T00:00Z,A1,4\n2024-01-01T00:05Z,A2,5\n2024-01-01T00:10Z,A3,6\n",
}
NODES = GOOD["nodes.csv"]
EDGES = GOOD["edges.csv"]
READINGS = GOOD["readings.csv"]
CHANGES = "time,action,source,target,node_id,lon,lat,length_m\n"


def city_of(folder: Path, **tables: str | bytes | None) -> City:
    for name, text in (GOOD | {k.replace("__", "."): v for k, v in tables.items()}).items():
        if text is not None:
            (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_city(folder)


def test_the_good_tables_give_no_notice(tmp_path: Path) -> None:
    city = city_of(tmp_path)
    assert city.notices == ()
    assert city.stream.values.tolist() == [[4, 0, 0], [0, 5, 0], [0, 0, 6]]


REFUSED: dict[str, Any] = {
    "unknown node in edges": (
        {"edges__csv": EDGES + "A1,A22,5\n"},
        ("edges.csv line 5", "target", '"A22"', '"A2"'),
    ),
    "empty end of an edge": ({"edges__csv": EDGES + ",A1,5\n"}, ("edges.csv line 5", "source", "empty")),
    "negative length": ({"edges__csv": EDGES + "A2,A1,-5\n"}, ("edges.csv line 5", "length_m -5")),
    "NaN length": ({"edges__csv": EDGES + "A2,A1,nan\n"}, ("edges.csv line 5", "length_m nan")),
    "infinite length": ({"edges__csv": EDGES + "A2,A1,inf\n"}, ("edges.csv line 5", "length_m inf")),
    "length that is no number": (
        {"edges__csv": EDGES + "A2,A1,far\n"},
        ("edges.csv line 5", "length_m", '"far"'),
    ),
    "no edges": ({"edges__csv": "source,target\n"}, ("edges.csv", "no roads")),
    "only self-loops": ({"edges__csv": "source,target\nA1,A1\n"}, ("edges.csv", "no roads")),
    "edges missing": ({"edges__csv": None}, ("edges.parquet", "edges.csv")),
    "missing column": (
        {"edges__csv": "sorce,target\nA1,A2\n"},
        ("edges.csv", "column source", '"sorce"', "sorce, target"),
    ),
    "semicolons": ({"nodes__csv": "node_id;lon;lat\nA1;6;49\n"}, ("nodes.csv", "commas")),
    "no nodes": ({"nodes__csv": "node_id,lon,lat\n"}, ("nodes.csv", "no rows")),
    "an empty file": ({"nodes__csv": ""}, ("nodes.csv", "empty")),
    "not UTF-8": (
        {"nodes__csv": NODES.encode() + "Gärtnerei,6.1,49.6\n".encode("latin-1")},
        ("nodes.csv line 5", "0xe4", "UTF-8"),
    ),
    "too many fields": ({"nodes__csv": NODES + "A4,6,1,49.6\n"}, ("nodes.csv line 5", "4 fields", "3 columns")),
    "duplicate node": (
        {"nodes__csv": NODES + "A2,6.1,49.6\n"},
        ("nodes.csv line 5", 'node_id "A2"', "nodes.csv line 3"),
    ),
    "node without id": ({"nodes__csv": NODES + ",6.1,49.6\n"}, ("nodes.csv line 5", "node_id", "empty")),
    "lat out of range": (
        {"nodes__csv": NODES + "A4,6.1,95\n"},
        ("nodes.csv line 5", "lon 6.1", "lat 95", "swapped"),
    ),
    "lon out of range": (
        {"nodes__csv": NODES + "A4,361,49\n"},
        ("nodes.csv line 5", "lon 361", "lat 49", "180"),
    ),
    "lon empty": ({"nodes__csv": NODES + "A4,,49\n"}, ("nodes.csv line 5", "lon nan")),
    "lines inside quotes": (
        {"nodes__csv": 'node_id,lon,lat\n"A\n1",6,49\n\nA2,6,x\n'},
        ("nodes.csv line 5", "lat", '"x"'),
    ),
    "two tables": ({"nodes__parquet": b"PAR1"}, ("nodes.parquet", "nodes.csv")),
    "corrupt parquet": (
        {"readings__csv": None, "readings__parquet": b"PAR1" + b"\0" * 50 + b"PAR1"},
        ("readings.parquet", "Parquet"),
    ),
    "parquet cut short": (
        {"readings__csv": None, "readings__parquet": b"PAR1abc"},
        ("readings.parquet", "Parquet"),
    ),
    "time without zone": (
        {"readings__csv": "time,node_id,value\n2024-01-01T00:00,A1,4\n"},
        ("readings.csv line 2", '"2024-01-01T00:00"', "time zone"),
    ),
    "no time": ({"readings__csv": "time,node_id,value\nnoon,A1,4\n"}, ("readings.csv line 2", 'time "noon"')),
    "empty time": ({"readings__csv": "time,node_id,value\n,A1,4\n"}, ("readings.csv line 2", "time", "empty")),
    "a date as a number": (
        {"readings__csv": "time,node_id,value\n20240131,A1,4\n"},
        ("readings.csv line 2", '"20240131"', "date"),
    ),
    "a far year": (
        {"readings__csv": "time,node_id,value\n9999-12-31T23:59-05:00,A1,4\n"},
        ("readings.csv line 2", "1900", "2200"),
    ),
    "value that is no number": (
        {"readings__csv": READINGS + "2024-01-01T00:10Z,A1,many\n"},
        ("readings.csv line 5", "value", '"many"'),
    ),
    "most readings unknown": (
        {"readings__csv": "time,node_id,value\n" + "2024-01-01T00:00Z,B7,1\n" * 3 + "2024-01-01T00:00Z,A1,1\n"},
        ("readings.csv line 2", '"B7"', "3 of 4"),
    ),
    "step": (
        {"city__toml": 'step = "7min"\n'},
        ("7min", "400s", "432s"),
    ),
    "step text": ({"city__toml": 'step = "often"\n'}, ("step", '"often"')),
    "zero step": ({"city__toml": 'step = "0min"\n'}, ("step", "day")),
    "no step": ({"city__toml": 'name = "x"\n'}, ("city.toml", "no step")),
    "unknown key": (
        {"city__toml": 'step = "5min"\ntimezon = "UTC"\n'},
        ("timezon", '"timezone"'),
    ),
    "other format": ({"city__toml": 'format = 2\nstep = "5min"\n'}, ("city.toml", "format 2")),
    "not TOML": ({"city__toml": "step: 5min\n"}, ("city.toml", "TOML")),
    "step without quotes": ({"city__toml": "step = 5\n"}, ("city.toml", "step = 5")),
    "unknown zone": ({"city__toml": 'step = "5min"\ntimezone = "Mars/Base"\n'}, ("time zone", '"Mars/Base"')),
    "closing a closed road": (
        {"changes__csv": CHANGES + "2024-01-01T00:05Z,close,A1,A2,,,,\n2024-01-01T00:06Z,close,A1,A2,,,,\n"},
        ("changes.csv line 3", "close", "A1,A2"),
    ),
    "opening an open road": (
        {"changes__csv": CHANGES + "2024-01-01T00:05Z,open,A1,A2,,,,\n"},
        ("changes.csv line 2", "open", "A1,A2"),
    ),
    "closing no road": (
        {"changes__csv": CHANGES + "2024-01-01T00:05Z,close,A1,A2,,,,\n2024-01-01T00:05Z,close,A1,A3,,,,\n"},
        ("changes.csv line 3", "close", "A1,A3"),
    ),
    "unknown action": (
        {"changes__csv": CHANGES + "2024-01-01T00:05Z,shut,A1,A2,,,,\n"},
        ("changes.csv line 2", 'action "shut"', "close"),
    ),
    "change of an unknown node": (
        {"changes__csv": CHANGES + "2024-01-01T00:05Z,close,A1,Z9,,,,\n"},
        ("changes.csv line 2", 'target "Z9"'),
    ),
    "removing twice": (
        {"changes__csv": CHANGES + "2024-01-01T00:05Z,remove_node,,,A1,,,\n2024-01-01T00:06Z,remove_node,,,A1,,,\n"},
        ("changes.csv line 3", "remove_node", '"A1"'),
    ),
    "adding a node that is there": (
        {"changes__csv": CHANGES + "2024-01-01T00:05Z,add_node,,,A1,6,49,\n"},
        ("changes.csv line 2", "add_node", '"A1"'),
    ),
    "adding a node nowhere": (
        {"changes__csv": CHANGES + "2024-01-01T00:05Z,add_node,,,A9,,,\n"},
        ("changes.csv line 2", "lon nan", "lat nan"),
    ),
    "adding a road twice": (
        {"changes__csv": CHANGES + "2024-01-01T00:05Z,add_edge,A1,A2,,,,5\n"},
        ("changes.csv line 2", "add_edge", "A1,A2"),
    ),
    "a column that a change needs": (
        {"changes__csv": "time,action\n2024-01-01T00:05Z,close\n"},
        ("changes.csv line 2", "column source"),
    ),
    "a span of centuries": (
        {
            "nodes__csv": "node_id,lon,lat\n" + "".join(f"A{i},6,49\n" for i in range(1, 300)),
            "readings__csv": READINGS + "1901-01-01T00:00Z,A1,3\n",
        },
        ("1901-01-01T00:00:00Z (readings.csv line 5)", "2024-01-01T00:10:00Z (readings.csv line 4)"),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(tmp_path: Path, what: str) -> None:
    tables, named = REFUSED[what]
    with raises(CityError, *named):
        city_of(tmp_path, **tables)


ACCEPTED: dict[str, Any] = {
    "unknown node": (
        {"readings__csv": READINGS + "2024-01-01T00:10Z,A17,4\n"},
        r'Readings left out, their node is not in the network: 1 \(first: readings.csv line 5: node "A17"',
        [[4, 0, 0], [0, 5, 0], [0, 0, 6]],
    ),
    "duplicates": (
        {"readings__csv": READINGS + "2024-01-01T00:10Z,A3,60\n"},
        r'repeated for the same node and time, the last kept: 1 \(first: node "A3" at 2024-01-01T00:10:00Z\)',
        [[4, 0, 0], [0, 5, 0], [0, 0, 60]],
    ),
    "NaN and empty": (
        {"readings__csv": READINGS + "2024-01-01T00:10Z,A1,NaN\n2024-01-01T00:10Z,A2,\n"},
        r"not observed: 2 \(first: readings.csv line 5",
        [[4, 0, 0], [0, 5, 0], [0, 0, 6]],
    ),
    "infinity": (
        {"readings__csv": READINGS + "2024-01-01T00:10Z,A1,-inf\n2024-01-01T00:10Z,A1,1e300\n"},
        r"Infinite readings were left out: 2 \(first: readings.csv line 5, node_id A1, value -inf",
        [[4, 0, 0], [0, 5, 0], [0, 0, 6]],
    ),
    "negative counts": (
        {"readings__csv": READINGS + "2024-01-01T00:10Z,A1,-3\n"},
        r"Negative counts were left out: 1 \(first: readings.csv line 5, node_id A1, value -3\)",
        [[4, 0, 0], [0, 5, 0], [0, 0, 6]],
    ),
    "out of order": (
        {"readings__csv": READINGS + "2024-01-01T00:00Z,A3,1\n"},
        r"earlier than the row above; all were sorted by time: 1 \(first: readings.csv line 5",
        [[4, 0, 1], [0, 5, 0], [0, 0, 6]],
    ),
    "local times": (
        {"city__toml": 'step = "5min"\ntimezone = "Europe/Paris"\n', "readings__csv": READINGS.replace("Z", "")},
        r"Times without a zone, read as local time \(readings.csv\): 3",
        [[4, 0, 0], [0, 5, 0], [0, 0, 6]],
    ),
    "milliseconds": (
        {"readings__csv": "time,node_id,value\n1704067200000,A1,4\n1704067500000,A2,5\n"},
        r"Times read as milliseconds since 1970 UTC \(readings.csv\): 2",
        [[4, 0, 0], [0, 5, 0]],
    ),
    "self-loop": ({"edges__csv": EDGES + "A1,A1,5\n"}, "from a node to itself were left out: 1", None),
    "parallel": (
        {"edges__csv": EDGES + "A1,A2,50\n"},
        r"the shortest of each kept: 1 \(first: edges.csv line 2, source A1, target A2, length_m 100\)",
        None,
    ),
    "no length": ({"edges__csv": EDGES + "A2,A1,0\n"}, "Roads of no length were given one metre: 1", None),
    "isolated": ({"nodes__csv": NODES + "A4,6,49\n"}, r'Nodes without any road: 1 \(first: node "A4"\)', None),
    "disconnected": (
        {"nodes__csv": NODES + "A4,6,49\nA5,6,48\n", "edges__csv": EDGES + "A4,A5,5\nA5,A4,5\n"},
        "Strongly connected parts of the network; the largest has 3 of 5 nodes: 2",
        None,
    ),
    "bad lanes": (
        {"edges__csv": "source,target,lanes\nA1,A2,-1\nA2,A3,2\nA3,A1,\n"},
        r"Values of lanes not above 0 were taken as unknown: 1 \(first: edges.csv line 2, lanes -1\)",
        None,
    ),
    "misspelt column": (
        {"edges__csv": EDGES.replace("length_m", "lenght_m")},
        r'Columns of edges.csv that are not read \(lenght_m \(did you mean "length_m"\?\)\): 1',
        None,
    ),
    "no sensor": ({"readings__csv": None}, "has no sensor and cannot be trained on: 3", []),
    "empty readings": ({"readings__csv": "time,node_id,value\n"}, "has no sensor and cannot be trained on: 3", []),
    "readings of an absent node": (
        {"changes__csv": CHANGES + "2024-01-01T00:05Z,remove_node,,,A3,,,\n"},
        "Readings of nodes while they were absent were left out: 1",
        [[4, 0, 0], [0, 5, 0], [0, 0, 0]],
    ),
    "a change after the last reading": (
        {"changes__csv": CHANGES + "2024-01-01T00:11Z,close,A1,A2,,,,\n"},
        "",
        None,
    ),
    "blank lines and a byte order mark": (
        {"readings__csv": b"\xef\xbb\xbf" + READINGS.replace("\n", "\r\n").encode() + b"\r\n\r\n"},
        "",
        [[4, 0, 0], [0, 5, 0], [0, 0, 6]],
    ),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_accepted_with_a_notice(tmp_path: Path, what: str) -> None:
    tables, notice, values = ACCEPTED[what]
    city = city_of(tmp_path, **tables)
    text = "\n".join(city.notices)
    if notice:
        assert pl.Series([text]).str.contains(notice).item(), text
    else:
        assert city.notices == ()
    if values is not None:
        assert city.stream.values.tolist() == values
    assert open_cache(tmp_path).notices == city.notices
    assert all(n in check_city(city).lines() for n in city.notices)


def test_every_notice_is_in_the_documents() -> None:
    formats = Path(__file__).resolve().parents[2] / "docs" / "formats.md"
    text = formats.read_text(encoding="utf-8").split("Accepted, with a notice")[1].split("Refused, with")[0]
    notices = [re.sub(r"\\|: \d.*|\(.*", "", notice).strip() for _, notice, _ in ACCEPTED.values()]
    told = [m for row in table_rows(text) for m in re.findall(r"`([^`]+)`", row[-1])]
    assert [n for n in notices if n and not any(n in m or m in n for m in told)] == []


def test_check_lists_the_rows_left_out(tmp_path: Path) -> None:
    rows = [f"2024-01-01T00:10Z,A1,-{i}\n" for i in range(1, 24)] + ["2024-01-01T00:10Z,A17,4\n"]
    edges = EDGES + '"A1",A1,5\n\nA1,A2,50\nA2,A2,\n'
    city = city_of(tmp_path, readings__csv=READINGS + "".join(rows), edges__csv=edges)
    lines = check_city(city).lines()
    at = next(i for i, line in enumerate(lines) if line.startswith("Negative counts were left out: 23 (first:"))
    told = [f"  readings.csv line {5 + i}, node_id A1, value -{1 + i}" for i in range(20)]
    assert lines[at + 1 : at + 22] == [*told, "  and 3 more"]
    at = next(i for i, line in enumerate(lines) if line.startswith("Roads from a node to itself were left out: 2"))
    assert lines[at + 1 : at + 3] == [
        "  edges.csv line 5, source A1, target A1, length_m 5",
        "  edges.csv line 8, source A2, target A2",
    ]
    at = next(i for i, line in enumerate(lines) if line.startswith("Readings left out, their node is not in the"))
    assert not any(line.startswith("  ") for line in lines[at + 1 : at + 2])  # the sentence has said the only one
    report = check_city(open_cache(tmp_path)).to_json()
    assert [len(where) for where in report["places"].values()] == [2, 21]
    assert set(report["places"]) < set(report["notices"])


def test_a_mistaken_time_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    # Few nodes and few seconds a snapshot: what the snapshots themselves take is counted too.
    readings = READINGS + "1901-01-01T00:00Z,A1,3\n"
    tracemalloc.start()
    try:
        with raises(CityError, "1901-01-01T00:00:00Z", "readings.csv line 5", "3,881,520,601"):
            city_of(tmp_path, city__toml='step = "1s"\n', readings__csv=readings)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_a_negative_gauge_is_a_reading(tmp_path: Path) -> None:
    toml = 'step = "5min"\nquantity = "temperature"\n'
    city = city_of(tmp_path, city__toml=toml, readings__csv=READINGS + "2024-01-01T00:10Z,A1,-3\n")
    assert city.stream.values[2].tolist() == [-3, 0, 6]
    assert city.notices == ()


def test_clock_changes_are_counted(tmp_path: Path) -> None:
    rows = ["2024-03-31T01:30", "2024-03-31T02:30", "2024-10-27T02:30"]  # Paris: left out in March, twice in October
    text = "time,node_id,value\n" + "".join(f"{t},A1,1\n" for t in rows)
    city = city_of(tmp_path, city__toml='step = "30min"\ntimezone = "Europe/Paris"\n', readings__csv=text)
    said = "\n".join(city.notices)
    assert "leaves out, moved on by the change (readings.csv): 1" in said
    assert "happen twice, read as the first (readings.csv): 1" in said
    stream = city.stream
    read = [stream.local_time(int(t)) for t in stream.times_s[stream.observed[:, 0]]]
    assert read == ["2024-03-31T01:30:00+01:00", "2024-03-31T03:30:00+02:00", "2024-10-27T02:30:00+02:00"]


def test_a_change_between_readings_is_not_lost_when_written_back(tmp_path: Path) -> None:
    city = city_of(tmp_path, changes__csv=CHANGES + "2024-01-01T00:03Z,close,A1,A2,,,,\n")
    write_city(city, tmp_path / "again")
    again = read_city(tmp_path / "again").stream
    assert [t.num_edges for t in again.networks] == [3, 2]
    assert again.network_of.tolist() == [0, 1, 1]


@pytest.mark.parametrize("kind", ["datetime_utc", "datetime_zone", "naive", "seconds", "float_ids"])
def test_parquet_times_and_ids(tmp_path: Path, kind: str) -> None:
    nodes = pl.DataFrame({"node_id": [1, 2, 3], "lon": [6.1, 6.11, 6.12], "lat": [49.6] * 3})
    edges = pl.DataFrame({"source": [1, 2, 3], "target": [2, 3, 1]})
    when = pl.Series([0, 300, 600]) + 1_704_067_200
    utc = (when * 1_000_000).cast(pl.Datetime("us", "UTC"))
    time = {
        "seconds": when,
        "datetime_zone": utc.dt.convert_time_zone("Asia/Tokyo"),
        "naive": utc.dt.replace_time_zone(None),
    }
    ids = pl.Series([1.0, 2.0, 3.0]) if kind == "float_ids" else pl.Series([1, 2, 3])
    readings = pl.DataFrame({"time": time.get(kind, utc), "node_id": ids, "value": [4, 5, 6]})
    for name, frame in (("nodes", nodes), ("edges", edges), ("readings", readings)):
        frame.write_parquet(tmp_path / f"{name}.parquet")
    (tmp_path / "city.toml").write_text('step = "5min"\n')
    if kind == "naive":
        with raises(CityError, "readings.parquet row 1", '"2024-01-01 00:00:00"', "time zone"):
            read_city(tmp_path)
        (tmp_path / "city.toml").write_text('step = "5min"\ntimezone = "UTC"\n')
    stream = read_city(tmp_path).stream
    assert stream.start_s == 1_704_067_200
    np.testing.assert_array_equal(stream.values, np.diag([4, 5, 6]))


@pytest.mark.parametrize("column", ["time", "node_id", "value"])
def test_parquet_columns_of_the_wrong_type(tmp_path: Path, column: str) -> None:
    right = {"time": [1_704_067_200], "node_id": ["A1"], "value": [1.0]}
    pl.DataFrame(right | {column: [[1, 2]]}).write_parquet(tmp_path / "readings.parquet")
    with raises(CityError, "readings.parquet"):
        city_of(tmp_path, readings__csv=None)


def test_a_missing_city_folder_is_refused(tmp_path: Path) -> None:
    with raises(CityError, "nowhere", "no such folder"):
        read_city(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with raises(CityError, str(tmp_path / "file"), "folder"):
        read_city(tmp_path / "file")
    (tmp_path / "bare").mkdir()
    with raises(CityError, "bare", "city.toml"):
        read_city(tmp_path / "bare")
    with raises(CityError, "bare", "cache"):
        open_cache(tmp_path / "bare")
    city_of(tmp_path / "bare")
    (tmp_path / "bare" / "readings.csv").unlink()
    (tmp_path / "bare" / "readings.csv").mkdir()
    with raises(CityError, "readings.csv"):
        read_city(tmp_path / "bare")


fields = st.one_of(
    st.sampled_from(
        ["A1", "A2", "", "nan", "-1", "1e999", "2024-01-01T00:00Z", "2024-01-01", "close", '"', "\x00", "é"]
    ),
    st.text(max_size=4),
)
tables = st.lists(st.lists(fields, min_size=1, max_size=8).map(",".join), max_size=4).map("\n".join)


@given(st.sampled_from(["nodes.csv", "edges.csv", "readings.csv", "changes.csv", "city.toml"]), tables, st.booleans())
@settings(max_examples=120)
def test_no_table_gives_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, name: str, table: str, headed: bool
) -> None:
    tmp_path = tmp_path_factory.mktemp("tables")
    heads = {n: t.splitlines()[0] + "\n" for n, t in (GOOD | {"changes.csv": CHANGES}).items()}
    for other, text in GOOD.items():
        (tmp_path / other).write_text(text)
    (tmp_path / name).write_bytes(((heads[name] if headed else "") + table).encode("utf-8", "surrogatepass"))
    with suppress(FrigateError):  # any other exception is a traceback
        read_city(tmp_path, cache=False)


@given(st.integers(0, 2000), st.binary(min_size=1, max_size=40), st.booleans())
@settings(max_examples=60)
def test_no_damaged_parquet_gives_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, at: int, noise: bytes, cut: bool
) -> None:
    tmp_path = tmp_path_factory.mktemp("tables")
    for other, text in GOOD.items():
        (tmp_path / other).write_text(text)
    (tmp_path / "readings.csv").unlink()
    frame = pl.DataFrame({"time": [1_704_067_200] * 3, "node_id": ["A1", "A2", "A3"], "value": [1.0, 2.0, 3.0]})
    frame.write_parquet(tmp_path / "readings.parquet")
    whole = (tmp_path / "readings.parquet").read_bytes()
    at %= len(whole)
    (tmp_path / "readings.parquet").write_bytes(whole[:at] if cut else whole[:at] + noise + whole[at + len(noise) :])
    with suppress(FrigateError):
        read_city(tmp_path, cache=False)


@pytest.mark.parametrize("quantity", ["counts", "cout", "Counts"])
def test_a_quantity_that_is_nearly_count_is_refused(quantity: str) -> None:
    with raises(CityError, "city.toml", f'"{quantity}"', '"count"'):
        parse_quantity(quantity, where="city.toml")


def test_a_quantity_is_count_in_any_case_or_a_gauge() -> None:
    assert [parse_quantity(text, where="") for text in ("Count", " COUNT ", "", "speed", "flow")] == [
        "count",
        "count",
        "count",
        "speed",
        "flow",
    ]


@pytest.mark.parametrize("digits", [20, 400, 5000])
def test_a_time_of_too_many_digits_is_refused_in_words(digits: int, tmp_path: Path) -> None:
    with pytest.raises(CityError):
        city_of(tmp_path, readings__csv=f"time,node_id,value\n{'9' * digits},1,2\n")
