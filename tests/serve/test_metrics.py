"""Numbers for Prometheus."""

from __future__ import annotations

from frigate.serve.metrics import Metrics


def test_requests_add_up_and_buckets_hold_all_that_were_faster() -> None:
    metrics = Metrics()
    for seconds in (0.2, 0.3, 20.0):
        metrics.answered("GET", '/v1/"odd"', 200, seconds)
    lines = list(metrics.lines())
    assert 'frigate_requests_total{method="GET",route="/v1/\\"odd\\"",status="200"} 3' in lines
    found = dict(line.rsplit(" ", 1) for line in lines if line.startswith("frigate_request_seconds"))
    label = 'route="/v1/\\"odd\\""'
    buckets = [found[f'frigate_request_seconds_bucket{{{label},le="{bound}"}}'] for bound in ("0.1", "0.25", "0.5")]
    assert buckets == ["0", "1", "2"] and found[f'frigate_request_seconds_bucket{{{label},le="+Inf"}}'] == "3"
    assert found[f"frigate_request_seconds_sum{{{label}}}"] == "20.500000"
    assert found[f"frigate_request_seconds_count{{{label}}}"] == "3"
