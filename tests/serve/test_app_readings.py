"""Every reading has a defined answer, and what was answered is on disk."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frigate.calendar import utc_iso
from frigate.city.detectors import Detectors
from frigate.city.outliers import Ranges
from frigate.serve.batches import BusyError, ReadingRow
from frigate.serve.city import ServedCity
from frigate.serve.ingest import WAITING_ROWS, Ingest, Judge, Judged
from frigate.serve.limits import Limits
from frigate.serve.store import Actor, Reading, Store, StoreGoneError, open_store
from tests.support.service import FakeTime, Served, Town, serve_town

NOW_S = int(datetime(2024, 3, 4, 8, 0, tzinfo=UTC).timestamp())
NOW = utc_iso(NOW_S)
SENDER = Actor("", "a test", "write", "")


@pytest.fixture(scope="module")
def judge(town: Town) -> Judge:
    return Judge(town.served, FakeTime(NOW_S), keep_days=30)


@pytest.fixture(scope="module")
def served(town: Town, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = open_store(str(tmp_path_factory.mktemp("served") / "store.db"))
    with serve_town(town, store, limits=Limits(body_mb=0.1, rows=1000, rate=1e6)) as served:
        yield served
    store.close()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (ReadingRow(None, NOW, 1), "node is missing"),
        (ReadingRow("", NOW, 1), "node is missing"),
        (ReadingRow(True, NOW, 1), "node is a boolean"),
        (ReadingRow(["0"], NOW, 1), "node is a list"),
        (ReadingRow(1.0, NOW, 1), "node is of the wrong type"),
        (ReadingRow("nowhere", NOW, 1), 'node "nowhere" is not in the network'),
        (ReadingRow("\ud800\x00\x1b[31m", NOW, 1), '"\\ud800\\u0000\\u001b[31m"'),
        (ReadingRow("n" * 5000, NOW, 1), "…".encode("unicode_escape").decode()),
        (ReadingRow(10**5000, NOW, 1), "too many digits"),
        (ReadingRow("0", None, 1), "time is missing"),
        (ReadingRow("0", "yesterday", 1), 'time "yesterday" is not ISO 8601'),
        (ReadingRow("0", "2024-03-04T08:00:00", 1), "has no UTC offset"),
        (ReadingRow("0", "2024-03-04", 1), "has no UTC offset"),
        (ReadingRow("0", "2024-02-30T08:00:00Z", 1), "is not ISO 8601"),
        (ReadingRow("0", {}, 1), "time is an object"),
        (ReadingRow("0", float("nan"), 1), "not in seconds since 1970"),
        (ReadingRow("0", 10**400, 1), "not in seconds since 1970"),
        (ReadingRow("0", NOW_S * 1000, 1), "not in seconds since 1970"),
        (ReadingRow("0", NOW_S * 100, 1), "is in the future"),
        (ReadingRow("0", NOW_S + 61, 1), f"time 2024-03-04T08:01:01Z is in the future (now: {NOW})"),
        (ReadingRow("0", "9999-12-31T23:59:59-12:00", 1), "is in the future"),
        (ReadingRow("0", NOW_S - 31 * 86_400, 1), "is too old: readings are kept for 30 days"),
        (ReadingRow("0", "0001-01-01T00:00:00+12:00", 1), "is too old"),
        (ReadingRow("0", NOW, None), "value is missing"),
        (ReadingRow("0", NOW, "many"), 'value "many" is not a number'),
        (ReadingRow("0", NOW, "0" * 79 + "12"), "is not a number"),
        (ReadingRow("0", NOW, "1_2"), "is not a number"),
        (ReadingRow("0", NOW, "\u0661\u0662"), "is not a number"),
        (ReadingRow("0", "1" + "0" * 79 + ".5", 1), "is not ISO 8601"),
        (ReadingRow("0", NOW, True), "value is a boolean"),
        (ReadingRow("0", NOW, [1]), "value is a list"),
        (ReadingRow("0", NOW, float("nan")), "not finite"),
        (ReadingRow("0", NOW, "inf"), "not finite"),
        (ReadingRow("0", NOW, 10**400), "not finite, or too large"),
        (ReadingRow("0", NOW, 1e39), "not finite, or too large"),
        (ReadingRow("0", NOW, 2.9e38), "not finite, or too large"),
        (ReadingRow("0", NOW, -1e10), "not finite, or too large"),
        (ReadingRow("0", NOW, 65535), 'value 65535 looks like an error code: node "'),
        (ReadingRow("0", NOW, -1), "value -1 is negative, but the readings are counts"),
    ],
)
def test_impossible_input_is_refused_with_the_reason(judge: Judge, town: Town, row: ReadingRow, reason: str) -> None:
    known = ReadingRow(town.served.node_names[0], NOW, 2)
    row = row._replace(node=known.node) if row.node == "0" else row
    judged = judge([known, row, known])
    assert [answer is None for answer in judged.answers] == [True, False, True]
    assert judged.answers[1] is not None and reason in judged.answers[1].reason
    assert judged.answers[1].reason.isascii() and len(judged.answers[1].reason) < 700
    assert len(judged.readings) == 2


@pytest.mark.parametrize(
    "time", [NOW, NOW_S, float(NOW_S), str(NOW_S), "2024-03-04T09:00:00+01:00", "20240304T080000Z", " 2024-03-04T08Z "]
)
def test_times_in_any_zone_are_one_moment(judge: Judge, town: Town, time: object) -> None:
    """The hour that a change of the clocks repeats is told apart by its offset."""
    node = town.served.node_names[0]
    assert judge([ReadingRow(node, time, "2.5")]).readings == [Reading(node, NOW_S * 1_000_000, 2.5)]
    twice = [ReadingRow(node, f"2023-10-29T02:30:00+0{hours}:00", 1) for hours in (2, 1)]
    later = Judge(town.served, FakeTime(NOW_S))(twice).readings
    assert later[1].time_us - later[0].time_us == 3600 * 1_000_000


def test_a_long_number_is_not_cut(judge: Judge, town: Town) -> None:
    node = town.served.node_names[0]
    for text, value in (("1" + "0" * 40 + "e-40", 1.0), (" 0." + "0" * 50 + "1 ", 1e-51), ("12e0", 12.0)):
        assert judge([ReadingRow(node, NOW, text)]).readings == [Reading(node, NOW_S * 1_000_000, value)]
    text = f"{NOW_S}." + "0" * 50
    assert judge([ReadingRow(node, text, 1)]).readings[0].time_us == NOW_S * 1_000_000


def test_a_misspelt_node_gets_a_hint_but_not_every_one_of_thousands(town: Town) -> None:
    asked: list[str] = []
    judge = Judge(town.served, FakeTime(NOW_S))
    judge.__dict__["_like"] = lambda node: asked.append(node) or " Did you mean?"
    judged = judge([ReadingRow(f"x{k}", NOW, 1) for k in range(1000)])
    assert len(asked) == 3 and judged.answers[0] is not None and "Did you mean" in judged.answers[0].reason
    near = town.served.node_names[-1] + "x"
    (answer,) = Judge(town.served, FakeTime(NOW_S))([ReadingRow(near, NOW, 1)]).answers
    assert answer is not None and "Did you mean" in answer.reason


def test_a_detector_can_send_under_its_own_name(town: Town) -> None:
    """Where it is the only one of its node: the counts of several would have to be summed."""
    detectors = Detectors(np.array(["A17", "A18", "A19"]), np.array([0, 1, 1]), *[np.full(3, np.nan)] * 3)
    city = ServedCity.of(town.run, replace(town.city, detectors=detectors))
    judged = Judge(city, FakeTime(NOW_S))([ReadingRow(name, NOW, 1) for name in ("A17", "A18")])
    assert [reading.node for reading in judged.readings] == [city.node_names[0]]
    assert judged.answers[1] is not None and "not in the network" in judged.answers[1].reason


def test_a_number_like_an_error_code_can_be_a_reading(town: Town) -> None:
    row = ReadingRow(town.served.node_names[0], NOW, 9999)
    busy = replace(town.served.ranges, most=np.full(100, 5000.0))
    for ranges in (busy, Ranges.unknown(100)):
        judged = Judge(replace(town.served, ranges=ranges), FakeTime(NOW_S))([row])
        assert len(judged.readings) == 1 and not judged.implausible
    assert len(Judge(town.served, FakeTime(NOW_S))([row, row._replace(value=10_000)]).readings) == 1


def test_a_small_error_of_a_sensors_clock_is_forgiven(judge: Judge, town: Town) -> None:
    for ahead_s, accepted in ((59, 1), (61, 0)):
        assert len(judge([ReadingRow(town.served.node_names[0], NOW_S + ahead_s, 1)]).readings) == accepted


def test_readings_of_nodes_that_are_no_sensors_are_kept_and_said(served: Served) -> None:
    city = served.service.city
    rows = [{"node": name, "time": served.time(), "value": 1} for name in city.node_names]
    answer = served.client.post("/v1/readings", json={"readings": rows}).json()
    unused = int((~city.sensors).sum())
    assert answer["accepted"] == len(rows) and answer["notices"][0].startswith(f"{unused} readings")
    of_sensors = [row for row, used in zip(rows, city.sensors.tolist(), strict=True) if used]
    again = served.client.post("/v1/readings", json={"readings": of_sensors}).json()
    assert again["duplicate"] == len(of_sensors) == len(rows) - unused and again["notices"] == []


@pytest.mark.parametrize(
    ("body", "media_type", "status", "words"),
    [
        (b"", "application/json", 400, "not JSON"),
        (b'{"readings": [', "application/json", 400, "not JSON"),
        (b"\xff\xfe", "application/json", 400, "not JSON"),
        (b"[" * 50_000, "application/json", 400, "nested too deeply"),
        (b"[]", "application/json", 400, '"readings" is missing'),
        (b'{"readings": {}}', "application/json", 400, '"readings" is missing'),
        (b'{"readings": 1' + b"0" * 5000 + b"}", "application/json", 400, "not JSON"),
        (b"node,time\n", "text/csv", 400, 'no column "value"'),
        (b"", "text/csv", 400, 'no column "node"'),
        (b"\xff\xfe", "text/csv", 400, "not CSV in UTF-8"),
        (b'node,time,value\n"', "text/csv", 200, '"refused": 1'),
        (b"ARROW1\0\0nothing", "application/vnd.apache.arrow.file", 400, "not Arrow"),
        (b"\xff\xff\xff\xff\0", "application/vnd.apache.arrow.stream", 400, "not Arrow"),
        (b"{}", "text/plain", 415, "Send one of application/json"),
        (b"{}", "", 415, "Send one of"),
    ],
)
def test_a_batch_that_cannot_be_read_is_refused_whole(
    served: Served, body: bytes, media_type: str, status: int, words: str
) -> None:
    answer = served.client.post("/v1/readings", content=body, headers={"Content-Type": media_type})
    assert answer.status_code == status, answer.text
    said = answer.json()["detail"] if status != 200 else answer.text
    assert words in said


def test_batches_have_bounds(served: Served) -> None:
    """A million rows are refused by their length, sent with it or without."""
    text = b"node,time,value\n" + b"1,1,1\n" * 1_000_000
    headers = {"Content-Type": "text/csv"}
    known = served.client.post("/v1/readings", content=text, headers=headers)

    def parts() -> Iterator[bytes]:
        yield from (text[k : k + 65_536] for k in range(0, len(text), 65_536))

    unknown = served.client.post("/v1/readings", content=parts(), headers=headers)
    for answer in (known, unknown):
        assert answer.status_code == 413 and "Send it in parts" in answer.json()["detail"]
    rows = served.client.post("/v1/readings", content=text[: 16 + 6 * 1001], headers=headers)
    assert rows.status_code == 413 and rows.json()["detail"].startswith("1001 rows")
    zipped = served.client.post("/v1/readings", content=text[:100], headers=headers | {"Content-Encoding": "gzip"})
    assert zipped.status_code == 415


def batch(*readings: tuple[int, float]) -> Judged:
    """Plausible readings, by time and value."""
    return Judged([None] * len(readings), [Reading("a", time_us, value) for time_us, value in readings])


class SlowStore:
    """A store that writes when it is told to."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.go = threading.Semaphore(0)
        self.writes = list[int]()
        self.gone = False

    def add_readings(self, readings: Sequence[Reading], received_s: float, **more: Any) -> list[str]:
        self.go.acquire()
        self.writes.append(len(readings))
        if self.gone:
            raise StoreGoneError("gone")
        return self._store.add_readings(readings, received_s, **more)


@pytest.fixture
def slow(town: Town, tmp_path: Path) -> Iterator[tuple[Ingest, SlowStore]]:
    store = open_store(str(tmp_path / "store.db"))
    slow: Any = SlowStore(store)
    ingest = Ingest(slow, Judge(town.served, FakeTime(NOW_S)))
    ingest.start()
    yield ingest, slow
    slow.go.release(1000)
    ingest.stop()
    store.close()


def test_batches_that_wait_together_are_written_together(slow: tuple[Ingest, SlowStore]) -> None:
    ingest, store = slow
    writer = ingest._thread
    ingest.start()  # it has been: one thread writes
    assert ingest._thread is writer
    waiting = [ingest.submit(batch((k, 1.0), (0, 1.0)), SENDER) for k in range(5)]
    assert ingest.waiting_rows == 10 and not any(each.done() for each in waiting)
    store.go.release(2)
    answers = [each.result(10) for each in waiting]
    assert answers == [["accepted", "duplicate"], *[["accepted", "duplicate"]] * 4]
    assert len(store.writes) <= 2 and sum(store.writes) == 10 and ingest.waiting_rows == 0


def test_every_waiting_request_learns_that_the_store_is_gone(slow: tuple[Ingest, SlowStore]) -> None:
    ingest, store = slow
    store.gone = True
    waiting = [ingest.submit(batch((k, 1.0)), SENDER) for k in range(3)]
    store.go.release(3)
    for each in waiting:
        with pytest.raises(StoreGoneError):
            each.result(10)
    store.gone = False
    store.go.release(1)
    assert ingest.submit(batch((0, 1.0)), SENDER).result(10) == ["accepted"]


def test_a_sender_that_goes_away_does_not_harm_the_others(slow: tuple[Ingest, SlowStore]) -> None:
    ingest, store = slow
    judged = ingest.judge([ReadingRow(ingest.judge.city.node_names[0], NOW_S, 1)])

    async def two() -> list[Any]:
        gone, stays = (asyncio.ensure_future(ingest.take(judged, SENDER)) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        store.go.release(2)
        return list(await asyncio.gather(gone, stays, return_exceptions=True))

    gone, stays = asyncio.run(two())
    assert isinstance(gone, asyncio.CancelledError) and stays[0].status == "duplicate"


def test_requests_beyond_the_queue_are_sent_away(slow: tuple[Ingest, SlowStore]) -> None:
    ingest, store = slow
    alone = ingest.submit(batch(*[(0, 1.0)] * (WAITING_ROWS + 1)), SENDER)  # no batch is too large for an empty queue
    with pytest.raises(BusyError):
        ingest.submit(batch((0, 1.0)), SENDER)
    store.go.release(1)
    assert len(alone.result(60)) == WAITING_ROWS + 1


def test_the_log_says_nothing_that_a_terminal_obeys(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    from frigate.serve.logs import JsonLines

    with caplog.at_level("INFO", logger="frigate.serve"):
        served.client.delete("/v1/closures/%1b%5b31m%0aevil%00")
        assert served.client.get("/v1/nodes/%1b%5b31m%0aevil%00").status_code == 404
    (record,) = [each for each in caplog.records if each.message == "request"]
    line = JsonLines().format(record)
    assert json.loads(line)["path"] == "/v1/closures/\x1b[31m\nevil\x00" and "\x1b" not in line and "\n" not in line
