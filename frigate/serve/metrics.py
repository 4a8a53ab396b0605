"""What Prometheus reads: requests, counted and timed as they are answered, and the state of the service when it asks.

Each process of a service counts for itself and is scraped by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as MEDIA_TYPE
from prometheus_client.registry import Collector

from frigate.serve.events import Events
from frigate.serve.ingest import STATUSES
from frigate.serve.mqtt import Subscriber
from frigate.serve.service import Service

__all__ = ["MEDIA_TYPE", "Metrics"]

MANY = 100
Family = CounterMetricFamily | GaugeMetricFamily


class Metrics:
    """The metrics of one app, in a registry of its own: a process may have several."""

    def __init__(self, service: Service, events: Events, mqtt: Subscriber | None) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "frigate_requests_total",
            "Requests by method, route and status",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram("frigate_request_seconds", "Response time", ["route"], registry=self._registry)
        ProcessCollector(registry=self._registry)  # descriptors and memory
        self._registry.register(_ServiceState(service, events))
        if mqtt is not None:
            self._registry.register(_MqttMetrics(mqtt))

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self._registry)


class _ServiceState(Collector):
    def __init__(self, service: Service, events: Events) -> None:
        self._service = service
        self._events = events

    def collect(self) -> Iterator[Family]:
        service = self._service
        clock = self._service.clock.state
        readings = CounterMetricFamily("frigate_readings_total", "Readings received, by status", labels=["status"])
        for status in STATUSES:
            readings.add_metric([status], service.ingest.counts[status])
        yield readings
        yield _gauge("frigate_readings_waiting", "Readings waiting to be written", service.ingest.waiting_rows)
        counts = service.quarantine.counts
        yield _gauge("frigate_quarantine_readings", "Implausible readings that no forecast uses", sum(counts.values()))
        of_nodes = GaugeMetricFamily(
            "frigate_quarantine_node_readings", f"The same, of the {MANY} nodes that have most", labels=["node"]
        )
        for node in sorted(counts, key=lambda node: -counts[node])[:MANY]:
            of_nodes.add_metric([node], counts[node])
        yield of_nodes
        yield _gauge("frigate_clock_holder", "Whether this process makes the forecasts", clock.holder)
        yield _counter("frigate_forecasts_total", "Forecasts made by this process", clock.forecasts)
        yield _counter("frigate_ticks_skipped_total", "Steps without a forecast", clock.skipped)
        yield _gauge("frigate_forecast_seconds", "Duration of the last forecast", clock.seconds)
        if clock.issued_s is not None:
            age_s = service.now() - clock.issued_s
            yield _gauge("frigate_forecast_age_seconds", "Age of the latest forecast", age_s)
        yield _gauge("frigate_step_seconds", "Time between forecasts", service.city.step_s)
        yield _gauge("frigate_clock_error", "Whether the clock's last turn failed", bool(clock.error))
        drift = service.known_drift
        worse, pays = (False, False) if drift is None else (bool(drift.told), drift.retraining_pays)
        yield _gauge("frigate_drift", "Whether forecasts at sensors are worse than promised", worse)
        yield _gauge("frigate_retraining_pays", "Whether training again would help", pays)
        if drift is not None:
            yield _gauge("frigate_sensor_error_ratio", "Error at sensors over the promised one, last day", drift.error)
            yield _gauge("frigate_sensor_coverage_percent", "Intervals that held at sensors, last day", drift.coverage)
        yield _gauge("frigate_event_streams", "Open event streams", self._events.listeners)


class _MqttMetrics(Collector):
    def __init__(self, mqtt: Subscriber) -> None:
        self._mqtt = mqtt

    def collect(self) -> Iterator[Family]:
        state = self._mqtt.state
        yield _gauge("frigate_mqtt_connected", "Whether the broker is connected", state.connected)
        yield _counter("frigate_mqtt_messages_total", "Messages acknowledged", state.messages)
        yield _counter("frigate_mqtt_refused_total", "Rows and messages refused", state.refused)
        yield _gauge("frigate_mqtt_waiting", "Whether messages await the store", state.waiting)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=float(value))
