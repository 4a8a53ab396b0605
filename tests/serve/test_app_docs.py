"""The examples of the service's page in the docs, as a reader would type them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from frigate.serve.problems import KINDS
from frigate.serve.store import open_store
from tests.support.documents import ROOT, table_rows
from tests.support.running_service import Running, running
from tests.support.service import FakeTime, Town

DOCUMENT = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")


@pytest.fixture
def live(town: Town, tmp_path: Path) -> Iterator[Running]:
    store = open_store(str(tmp_path / "store.db"))
    with running(town, store, time=FakeTime(time.time())) as started:
        yield started
    store.close()


def test_the_examples_run_and_say_what_they_should(live: Running, tmp_path: Path) -> None:
    said = []
    for kind, text in re.findall(r"```(sh|python)\n(.*?)```", DOCUMENT, flags=re.DOTALL):
        words = ["bash", "-eu", "-c"] if kind == "sh" else [sys.executable, "-c"]
        here = text.replace(":8350", f":{live.port}")
        done = subprocess.run(
            [*words, here],
            cwd=tmp_path,
            env={**os.environ, "FRIGATE_TOKEN": live.token},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, (text, done.stderr)
        said.append(done.stdout)
    sent, table, python, quarantine, forecasts, arrow, intervals, stream, what_if, closures = said
    assert json.loads(sent) == json.loads(_blocks("json")[0])
    assert json.loads(table)["refused"] == 0 and python.split()[:2] == ["accepted", "refused"]
    assert [json.loads(line) for line in quarantine.splitlines()] == [
        {"readings": [], "counts": {}},
        {"node": "34", "released": 0},
    ]
    first, *rows = forecasts.splitlines()
    assert json.loads(first)["nodes"][0]["node_id"] == 34 and len(rows) == 3
    assert "(3, 100) (3, 307)" in arrow and stream.startswith("retry: ")
    sure = json.loads(intervals)
    assert sure["level"] == 80 and len(sure["nodes"][0]["upper"]) == len(sure["nodes"][0]["values"])
    assert json.loads(what_if)["largest"][0].keys() == {"node", "street", "before", "after", "lower", "upper"}
    listed, ended = closures.replace("}{", "}\n{").splitlines()
    assert json.loads(listed)["closures"][0]["state"] == "active" and json.loads(ended)["state"] == "ended"


def _blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", DOCUMENT, flags=re.DOTALL)


def test_every_code_of_an_error_and_every_address_is_in_the_tables(live: Running) -> None:
    rows = table_rows(DOCUMENT)
    codes = {word for row in rows if row[0][:3].isdigit() for word in re.findall(r"`(\w+)`", row[1])}
    assert codes == {code for code, _ in KINDS.values()}
    listed = {
        path.partition("?")[0].replace("/34", "/{node}")
        for row in rows
        for path in re.findall(r"`(/v1/[^`]+)`", row[0])
    }
    described = {path.replace("{form}", "json") for path in live.client.get("/v1/openapi.json").json()["paths"]}
    told_elsewhere = {
        "/v1/readings",
        "/v1/quarantine/release",
        "/v1/closures",
        "/v1/closures/{closure_id}",
        "/v1/what-if",
    }
    assert {path for path in described if path.startswith("/v1/")} == listed | told_elsewhere
