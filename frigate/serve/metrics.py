"""Metrics in the Prometheus text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counts and times requests by route and status. Use it from the event loop only."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()  # method, route, status
        self._buckets: dict[str, list[int]] = {}  # by route
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self.requests[method, route, status] += 1
        buckets = self._buckets.setdefault(route, [0] * (len(BUCKETS_S) + 1))
        buckets[bisect_left(BUCKETS_S, seconds)] += 1
        self._seconds[route] += seconds

    def lines(self) -> Iterable[str]:
        yield from family(
            "frigate_requests_total",
            "counter",
            "Requests by method, route and status",
            {
                _labels(method=method, route=route, status=str(status)): count
                for (method, route, status), count in self.requests.items()
            },
        )
        name = "frigate_request_seconds"
        yield from (f"# HELP {name} Response time", f"# TYPE {name} histogram")
        for route, buckets in self._buckets.items():
            total = 0
            for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], buckets, strict=True):
                total += count
                yield f"{name}_bucket{_labels(route=route, le=bound)} {total}"
            yield f"{name}_sum{_labels(route=route)} {self._seconds[route]:.6f}"
            yield f"{name}_count{_labels(route=route)} {total}"


def family(name: str, kind: str, text: str, values: Mapping[str, float | None] | float | None) -> Iterable[str]:
    """The lines of one metric: a single value, or one per set of labels. None is left out."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in (values if isinstance(values, Mapping) else {"": values}).items():
        if value is not None:
            yield f"{name}{labels} {value}"


def labelled(name: str, values: Mapping[str, float]) -> dict[str, float]:
    """Values by one label."""
    return {_labels(**{name: label}): value for label, value in values.items()}


def _labels(**labels: str) -> str:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"
