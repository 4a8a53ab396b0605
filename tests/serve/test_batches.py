"""The bodies of readings: what may be in them, and that no bytes bring the service down."""

from __future__ import annotations

import json
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator

import polars as pl
import pytest

from frigate.serve import batches
from frigate.serve.arrow_messages import NotArrowError, count_rows
from frigate.serve.batches import (
    ARROW,
    CSV,
    JSON,
    MEDIA_TYPES,
    SMALL_BYTES,
    BatchError,
    ReadingRow,
    TooManyRowsError,
    rows_of,
)
from frigate.serve.limits import Limits
from frigate.serve.store import open_store
from tests.support.foreign_bodies import TIME, arrow, good_bodies, mutated, table, with_number
from tests.support.service import Served, Town, serve_town

MOST = 1000


def test_columns_may_stand_in_any_order() -> None:
    assert rows_of(b"\xef\xbb\xbfvalue, time ,extra,node_id\r\n1,2,3,4\r\n\r\n5\r\n", CSV, most=MOST) == [
        ReadingRow("4", "2", "1"),
        ReadingRow(None, None, "5"),
    ]
    frame = table(2).select(pl.lit([[1]]).alias("extra"), "value", "time", pl.col("node").alias("node_id"))
    assert rows_of(arrow(frame), ARROW[0], most=MOST) == [ReadingRow("1", TIME, 2.5)] * 2
    with pytest.raises(BatchError, match="no column"):
        rows_of(arrow(pl.DataFrame({"node": ["a"]})), ARROW[0], most=MOST)


@pytest.mark.parametrize("file", [False, True])
def test_arrow_is_a_stream_or_a_file_of_text_and_numbers(file: bool) -> None:
    several = pl.concat([table(2), table(3)], rechunk=False)
    assert rows_of(arrow(several, file=file), ARROW[0], most=5) == [ReadingRow("1", TIME, 2.5)] * 5
    packed = table(node=pl.Series(["a", "b", "a"]).cast(pl.Categorical), time=[7, 8, 9], value=[1, None, 3])
    assert rows_of(arrow(packed, file=file), ARROW[1], most=3) == [
        ReadingRow("a", 7, 1),
        ReadingRow("b", 8, None),
        ReadingRow("a", 9, 3),
    ]
    assert rows_of(arrow(table(0), file=file), ARROW[0], most=0) == []


@pytest.mark.parametrize("large", [False, True])
def test_large_batches_are_as_small_ones(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are parsed elsewhere, and mean the same; what a list or an object holds does not matter."""
    monkeypatch.setattr(batches, "SMALL_BYTES", 0 if large else SMALL_BYTES)
    rows = [{"node": 1, "time": 2.5, "value": 3}, {"node_id": "\ud800", "time": [[1]], "value": {"a": 1}}, 7]
    assert rows_of(json.dumps({"readings": rows}).encode(), JSON, most=3) == [
        ReadingRow(1, 2.5, 3),
        ReadingRow("\ud800", [], {}),
        ReadingRow(None, None, None),
    ]
    assert rows_of(b"node,time,value\n1,2,3\n", CSV, most=1) == [ReadingRow("1", "2", "3")]
    for body, media_type in ((b'{"readings": [1, 2]}', JSON), (b"node,time,value\n1\n\n2\n", CSV)):
        with pytest.raises(TooManyRowsError, match="2 rows in one batch"):
            rows_of(body, media_type, most=1)
    with pytest.raises(TooManyRowsError, match="5 rows in one batch"):
        rows_of(b"node,time,value\n1\n2\n3\n\n4\n5\n", CSV, most=1)
    for body, media_type in ((b"[" * 100_000, JSON), (b'{"readings": [', JSON), (b"\xff", CSV), (b"\0", CSV)):
        with pytest.raises(BatchError):
            rows_of(body, media_type, most=1)


@pytest.mark.parametrize("file", [False, True])
def test_the_rows_of_a_few_bytes_are_counted_before_they_are_built(file: bool) -> None:
    """Columns that are all null take no bytes, however long they say that they are."""
    nothing = table(node=[None] * 3, time=[None] * 3, value=[None] * 3)
    for rows in (MOST + 1, 2**33, 2**62):
        body = with_number(arrow(nothing, file=file), 3, rows)
        assert len(body) < 1500 and count_rows(body) == rows
        with pytest.raises(TooManyRowsError):
            rows_of(body, ARROW[0], most=MOST)
    with pytest.raises(BatchError, match="fewer than 0"):
        rows_of(with_number(arrow(nothing, file=file), 3, -1), ARROW[0], most=MOST)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (arrow(table(), compression="zstd"), "compressed"),
        (arrow(table(), file=True, compression="lz4"), "compressed"),
        (arrow(table(value=[[1.0, 2.0]] * 3)), "nested"),
        (arrow(table(value=[b"1"] * 3)), "column .*value"),
        (arrow(table(node=[1.5] * 3)), "column .*node"),
        (arrow(table(time=[TIME.date()] * 3)), "column .*time"),
        (arrow(table())[:-100], "longer than the body"),
        (arrow(table(), file=True)[:-1], "end of the file"),
        (b"ARROW1", "end of the file"),
        (b"\xff\xff\xff\xff\0", "damaged"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f", "longer than the body"),
        (struct.pack("<IiI", 2**32 - 1, 4, 2**31), "damaged"),
        (b"node,time,value", "no messages"),
    ],
)
def test_arrow_that_is_not_read_is_refused_with_the_reason(body: bytes, reason: str) -> None:
    with pytest.raises(BatchError, match=reason):
        rows_of(body, ARROW[0], most=MOST)


def test_a_dictionary_cannot_be_longer_than_the_body() -> None:
    packed = table(7, node=pl.Series(["a", "b", "a", "c", "a", "a", "a"]).cast(pl.Categorical))
    with pytest.raises(BatchError, match="dictionary"):
        rows_of(with_number(arrow(packed), 3, 2**40), ARROW[0], most=MOST)


def _die(*_: object) -> None:
    import os

    os.abort()


def _hoard(*_: object) -> bytearray:
    return bytearray(10**10)


@pytest.mark.parametrize("what", [_die, _hoard])
def test_a_reader_that_dies_is_an_answer(what: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "parse", what)
    with pytest.raises(BatchError, match=r"damaged, or takes more than 0\.5 GB of memory or 5 s"):
        rows_of(arrow(table()), ARROW[0], most=MOST)


def test_messages_that_never_end_are_not_counted_for_ever() -> None:
    body = arrow(table(0))
    with pytest.raises(NotArrowError, match="messages"):
        count_rows(body[:-8] * 10_001)


# Foreign bytes


@pytest.fixture(scope="module")
def served(town: Town, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = open_store(str(tmp_path_factory.mktemp("fuzzed") / "store.db"))
    with serve_town(town, store, limits=Limits(rate=1e9, rows=MOST, body_mb=0.2)) as served:
        yield served
    store.close()


def bodies_of(served: Served) -> list[tuple[str, bytes]]:
    return good_bodies(served.service.city.node_names[0], served.time())


def send_mutated(served: Served, count: int, seed: int) -> Counter[int]:
    draws = random.Random(seed)
    bodies = bodies_of(served)
    statuses: Counter[int] = Counter()
    for _ in range(count):
        media_type, body = draws.choice(bodies)
        body = mutated(body, draws)
        media_type = media_type if draws.random() < 0.9 else draws.choice(MEDIA_TYPES)
        answer = served.client.post("/v1/readings", content=body, headers={"Content-Type": media_type})
        statuses[answer.status_code] += 1
        assert answer.status_code in (200, 400, 413), (media_type, body, answer.text)
        if answer.status_code != 200:
            assert answer.headers["content-type"] == "application/problem+json" and answer.json()["detail"]
    return statuses


def test_damaged_bodies_have_defined_answers(served: Served) -> None:
    answers = [
        served.client.post("/v1/readings", content=body, headers={"Content-Type": media_type}).status_code
        for media_type, body in bodies_of(served)
    ]
    assert answers == [200, 400] * 6 + [400, 400] * 2 + [200, 200]  # none is compressed or nested
    assert set(send_mutated(served, 250, 0)) >= {200, 400}


@pytest.mark.slow
def test_thousands_of_damaged_bodies_have_defined_answers(served: Served) -> None:
    for seed in range(1, 6):
        send_mutated(served, 1000, seed)
