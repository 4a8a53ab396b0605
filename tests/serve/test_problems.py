"""Every error is a problem as in RFC 9457, whoever finds it: endpoints, the framework, the server."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import httpx2
import numpy as np
import pytest

from frigate.serve.problems import KINDS, MEDIA_TYPE
from frigate.serve.store import ReadingPart, StoreGoneError, open_store
from tests.support.running_service import running, wait_for
from tests.support.service import Served, Town, serve_town

BY_RFC_9457 = {"type", "title", "status", "detail", "instance"}


@pytest.fixture
def served(town: Town, tmp_path: Path) -> Iterator[Served]:
    store = open_store(str(tmp_path / "store.db"))
    with serve_town(town, store) as served:
        yield served
    store.close()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nodes/nowhere", 404),  # an endpoint
        ("GET", "/v1/nothing", 404),  # the framework
        ("GET", "/nothing.html", 404),  # the files of the page
        ("PUT", "/v1/closures", 405),
        ("GET", "/v1/forecast.xml", 422),
        ("POST", "/v1/readings", 415),
        ("GET", "/v1/nodes/%F0%9F%9A%A6%0D%0A<b>", 404),
    ],
)
def test_an_error_is_a_problem(served: Served, method: str, path: str, status: int) -> None:
    answer = served.client.request(method, path)
    told = answer.json()
    assert answer.headers["content-type"] == MEDIA_TYPE and answer.status_code == status
    assert told.keys() == BY_RFC_9457 | {"code", "error"}
    assert (told["type"], told["title"], told["status"]) == ("about:blank", HTTPStatus(status).phrase, status)
    assert told["code"] == KINDS[status][0] and told["error"] == told["detail"]
    place, _, request = told["instance"].partition("#")
    assert place == path.replace("<b>", "%3Cb%3E") and len(request) == 8


class Heard(logging.Handler):
    """What is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records = list[logging.LogRecord]()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def heard() -> Iterator[list[logging.LogRecord]]:
    handler = Heard()
    loggers = [logging.getLogger(name) for name in ("frigate.serve", "uvicorn.error")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel("INFO")
    yield handler.records
    for logger, level in zip(loggers, levels, strict=True):
        logger.removeHandler(handler)
        logger.setLevel(level)


def test_each_has_a_name_of_its_own_that_the_log_has_too(served: Served, heard: list[logging.LogRecord]) -> None:
    told = [served.client.get("/v1/nodes/nowhere").json()["instance"].partition("#")[2] for _ in range(2)]
    assert told == [vars(each)["request"] for each in heard if each.getMessage() == "request"]
    assert len(set(told)) == 2


def test_a_mistake_of_ours_is_a_problem_with_all_headers(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a secret of the inside")

    monkeypatch.setattr(served.service.store, "closures", broken)
    answer = served.client.get("/v1/closures")
    assert (answer.status_code, answer.json()["code"]) == (500, "error") and "secret" not in answer.text
    assert answer.headers["content-type"] == MEDIA_TYPE and answer.headers["x-content-type-options"] == "nosniff"
    requests = served.client.get("/metrics").text
    assert 'frigate_requests_total{method="GET",route="/v1/closures",status="500"} 1.0' in requests


def test_a_store_that_is_gone_is_a_problem(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise StoreGoneError("store.db: disk I/O error")

    monkeypatch.setattr(served.service.store, "closures", gone)
    answer = served.client.get("/v1/closures")
    assert (answer.status_code, answer.headers["retry-after"], answer.json()["code"]) == (503, "5", "unavailable")
    assert answer.headers["content-type"] == MEDIA_TYPE


def test_the_description_says_so(served: Served) -> None:
    described = served.client.get("/v1/openapi.json").json()
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            for status, answer in operation["responses"].items():
                if status >= "400" and path != "/readyz":
                    assert answer["content"].keys() == {MEDIA_TYPE}, (method, path, status)
    assert described["components"]["schemas"]["Problem"]["properties"].keys() >= BY_RFC_9457


def test_bytes_that_are_not_http_are_answered_with_a_problem(town: Town, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store.db"))
    with running(town, store) as one, one.connect() as nonsense:
        nonsense.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        answer = b""
        while part := nonsense.recv(4096):
            answer += part
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ") and f"content-type: {MEDIA_TYPE}".encode() in head.lower()
        assert json.loads(body)["code"] == "malformed"
    store.close()


def test_a_body_that_turns_out_to_be_no_http_has_one_answer(
    town: Town, tmp_path: Path, heard: list[logging.LogRecord]
) -> None:
    """The app has been given the head by then, and answers it; or it has answered already."""
    head = "POST /v1/readings HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    store = open_store(str(tmp_path / "store.db"))
    with running(town, store) as one:
        with one.connect() as at_once:
            at_once.sendall(f"{head}no length\r\n".encode())
            answer = b""
            while part := at_once.recv(4096):
                answer += part
            assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1
        with one.connect() as later:
            later.sendall(head.encode())
            assert later.recv(4096).startswith(b"HTTP/1.1 401 ")
            later.sendall(b"no length\r\n")
            while later.recv(4096):
                pass
        assert (
            one.raw("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            == 200
        )
    assert [each.getMessage() for each in heard if each.levelno >= logging.ERROR] == []
    store.close()


def test_an_answer_that_breaks_off_is_a_line_in_the_log(
    town: Town, tmp_path: Path, heard: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "store.db"))

    def parts(*_: object) -> Iterator[ReadingPart]:
        for _number in range(2):
            yield ["A"], np.array([1]), np.array([1.0])
        raise StoreGoneError("the disk has gone")

    with running(town, store) as one:
        monkeypatch.setattr(store, "reading_parts", parts)
        node = one.service.city.node_names[0]
        with pytest.raises(httpx2.RemoteProtocolError):
            one.client.get("/v1/history.csv", params={"node": node})
        monkeypatch.undo()
    (cut,) = [each for each in heard if each.getMessage() == "answer cut off"]
    assert vars(cut)["error"] == "the disk has gone"
    assert [each.exc_info for each in heard if each.exc_info] == []
    store.close()


def test_a_client_that_leaves_is_no_error(town: Town, tmp_path: Path, heard: list[logging.LogRecord]) -> None:
    store = open_store(str(tmp_path / "store.db"))
    with running(town, store) as one:
        for path, media_type in (("/v1/readings", "text/csv"), ("/v1/closures", "application/json")):
            with one.connect() as leaving:
                head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{one.authorization}Content-Length: 1000\r\n"
                leaving.sendall(f"{head}Content-Type: {media_type}\r\n\r\nnode,time".encode())
        wait_for(lambda: sum(vars(each).get("method") == "POST" for each in heard) == 2)
    assert [each.getMessage() for each in heard if each.levelno >= logging.WARNING] == []
    assert [vars(each)["status"] for each in heard if vars(each).get("path") == "/v1/readings"] == [499]
    store.close()
