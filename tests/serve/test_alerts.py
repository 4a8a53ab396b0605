"""Alert rules and dashboard ask for metrics that the service has, and the alarms are raised when they should be."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from frigate.serve.metrics import Metrics
from frigate.serve.mqtt import Broker, Subscriber
from frigate.serve.store import Reading, open_store
from tests.support.documents import ROOT
from tests.support.service import Served, Town, serve_town

DEPLOY = ROOT / "docs" / "deploy"
PROMTOOL = shutil.which("promtool", path=os.environ["PATH"] + os.pathsep + "/usr/sbin")
RULES: dict[str, Any] = yaml.safe_load((DEPLOY / "frigate-rules.yml").read_text())
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
ADDED = {"job", "instance", "le"}  # labels from Prometheus, and of a histogram's buckets


def rule_questions() -> list[str]:
    return [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]


def dashboard_questions() -> list[str]:
    """As Grafana sends them."""
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [each.replace("$__rate_interval", "5m").replace("$job", "frigate") for each in asked]


@pytest.fixture
def told(town: Town, tmp_path: Path) -> Iterator[dict[str, set[str]]]:
    """The labels of each metric that a service tells of, with MQTT and after a request."""
    store = open_store(str(tmp_path / "store.db"))
    with serve_town(town, store) as served:
        store.add_readings([Reading(served.service.city.node_names[0], 0, 1.0)], 0.0, implausible=[0])
        served.service.probe_store()
        found: dict[str, set[str]] = {}
        for family in text_string_to_metric_families(_metrics(served)):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
        yield found
    store.close()


def _metrics(served: Served) -> str:
    subscriber = Subscriber(Broker.parse("mqtt://host/topic", client="x"), served.service.ingest)
    served.service.clock.turn()
    metrics = Metrics(served.service, served.client.app.state.frigate.events, subscriber)  # type: ignore[attr-defined]
    metrics.answered("POST", "/v1/readings", 200, 0.1)
    return metrics.text().decode()


def test_every_metric_and_label_that_is_asked_for_is_there(told: dict[str, set[str]]) -> None:
    asked = set[str]()
    for question in [*rule_questions(), *dashboard_questions()]:
        for name, labels in re.findall(r"\b((?:frigate|process)_\w+)(?:\{([^}]*)\})?", question):
            assert name in told, question
            assert set(re.findall(r"(\w+)\s*=", labels)) <= told[name] | ADDED, question
            asked.add(name)
        for grouped in re.findall(r"by \(([^)]*)\)", question):
            known = set[str]().union(*told.values()) | ADDED
            assert {label.strip() for label in grouped.split(",")} <= known, question
    own = {name for name in told if name.startswith("frigate_") and not name.endswith(("_created", "_count", "_sum"))}
    assert own - asked <= {"frigate_forecasts_total"}  # the rest is shown or watched


def test_the_dashboard_is_one_that_grafana_can_read() -> None:
    """What it checks when a dashboard is imported; and no two panels lie on each other."""
    panels = DASHBOARD["panels"]
    assert DASHBOARD["title"] and DASHBOARD["uid"] and DASHBOARD["schemaVersion"] >= 36
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for grid in (panel["gridPos"] for panel in panels)
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    for panel in panels:
        assert panel["title"] and panel["description"] and panel["type"] in ("stat", "timeseries")
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}" and target["legendFormat"]
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables | {"__rate_interval"}


def promtool(*words: str | Path) -> None:
    done = subprocess.run([str(PROMTOOL), *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_prometheus_takes_the_files(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("frg_")
    text = (DEPLOY / "prometheus.yml").read_text()
    for old, new in (
        ("/etc/prometheus/frigate-token", str(tmp_path / "token")),
        ("frigate-rules.yml\n", f"{DEPLOY}/frigate-rules.yml\n"),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "prometheus.yml").write_text(text)
    promtool("check", "config", tmp_path / "prometheus.yml")
    recorded = [{"record": f"panel{k}", "expr": expr} for k, expr in enumerate(dashboard_questions())]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    promtool("check", "rules", tmp_path / "panels.yml")


ALARMS = {  # what a service tells of, minute by minute, and the alarm that comes of it
    "FrigateDown": {"up": "0x60"},
    "FrigateForecastOld": {"frigate_forecast_age_seconds": "0+60x60", "frigate_step_seconds": "300x60"},
    "FrigateNoClock": {"frigate_clock_holder": "0x60"},
    "FrigateForecastFails": {"frigate_clock_error": "1x60"},
    "FrigateStepsSkipped": {"frigate_ticks_skipped_total": "0x30 1x30"},
    "FrigateNoReadings": {'frigate_readings_total{status="accepted"}': "7x60"},
    "FrigateReadingsRefused": {
        'frigate_readings_total{status="accepted"}': "0+80x60",
        'frigate_readings_total{status="refused"}': "0+20x60",
    },
    "FrigateReadingsQuarantined": {
        'frigate_readings_total{status="accepted"}': "0+80x60",
        'frigate_readings_total{status="quarantined"}': "0+1x60",
    },
    "FrigateReadingsWait": {"frigate_readings_waiting": "30000x60"},
    "FrigateErrors": {
        'frigate_requests_total{status="200"}': "0+90x60",
        'frigate_requests_total{status="503"}': "0+10x60",
    },
    "FrigateSlow": {
        'frigate_request_seconds_bucket{route="/v1/readings",le="1.0"}': "0+50x60",
        'frigate_request_seconds_bucket{route="/v1/readings",le="5.0"}': "0+100x60",
        'frigate_request_seconds_bucket{route="/v1/readings",le="+Inf"}': "0+100x60",
    },
    "FrigateMqttDisconnected": {"frigate_mqtt_connected": "0x60"},
    "FrigateMqttWaits": {"frigate_mqtt_waiting": "1x60"},
    "FrigateDrift": {"frigate_drift": "1x60"},
    "FrigateTrainAgain": {"frigate_retraining_pays": "1x60"},
    "FrigateDescriptors": {"process_open_fds": "900x60", "process_max_fds": "1000x60"},
    "FrigateMemory": {"process_resident_memory_bytes": "3900000000x60"},
}
WELL = {  # a service that is well raises none
    "up": "1x60",
    "frigate_forecast_age_seconds": "200x60",
    "frigate_step_seconds": "300x60",
    "frigate_clock_holder": "1x60",
    "frigate_clock_error": "0x60",
    "frigate_ticks_skipped_total": "3x60",
    'frigate_readings_total{status="accepted"}': "0+100x60",
    'frigate_readings_total{status="quarantined"}': "3x60",
    'frigate_readings_total{status="refused"}': "0+1x60",
    "frigate_readings_waiting": "50x60",
    'frigate_requests_total{status="200"}': "0+100x60",
    'frigate_requests_total{status="503"}': "0+1x60",
    'frigate_request_seconds_bucket{route="/v1/readings",le="1.0"}': "0+100x60",
    'frigate_request_seconds_bucket{route="/v1/readings",le="+Inf"}': "0+100x60",
    "frigate_mqtt_connected": "1x60",
    "frigate_mqtt_waiting": "0x60",
    "frigate_drift": "0x60",
    "frigate_retraining_pays": "0x60",
    "process_open_fds": "50x60",
    "process_max_fds": "1000x60",
    "process_resident_memory_bytes": "900000000x60",
}


def test_every_alarm_is_tried() -> None:
    assert {rule["alert"] for group in RULES["groups"] for rule in group["rules"]} == set(ALARMS)


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_alarms_are_raised_when_they_should(tmp_path: Path) -> None:
    def tried(series: dict[str, str], raised: str | None) -> dict[str, Any]:
        named = [{"series": _with_job(name), "values": values} for name, values in series.items()]
        # The number of alarms, as promtool would compare their labels and texts word by word.
        firing = [
            {
                "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                "eval_time": "50m",
                "exp_samples": [{"labels": "{}", "value": int(name == raised)}],
            }
            for name in ALARMS
            if raised is None or name == raised
        ]
        return {"interval": "1m", "input_series": named, "promql_expr_test": firing}

    tests = [tried(WELL, None), *(tried(series, name) for name, series in ALARMS.items())]
    document = {"rule_files": [str(DEPLOY / "frigate-rules.yml")], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(document))
    promtool("test", "rules", tmp_path / "tests.yml")


def _with_job(series: str) -> str:
    name, brace, labels = series.partition("{")
    return f'{name}{{job="frigate",instance="a",{labels}' if brace else f'{name}{{job="frigate",instance="a"}}'
