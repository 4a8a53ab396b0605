"""Forecast: values at every node, in the user's unit and with the user's node ids; and its file formats."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import Steps, local_iso, utc_iso
from frigate.city.city import City
from frigate.city.network import RoadNetwork, no_lines
from frigate.coordinates import line_points
from frigate.errors import MissingExtraError, SettingsError
from frigate.notebook import card, table
from frigate.reading.files import write_file
from frigate.text import duration, no_formula
from frigate.training.run import TrainedOn

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

SUFFIXES = (".csv", ".parquet", ".geojson", ".json")
NODE_COLUMNS = ("node_id", "lon", "lat", "street", "detectors", "moved_m", "sensor")
COLUMNS = (*NODE_COLUMNS, "time", "local_time", "step_ahead", "value")
BAND = ("lower", "upper")  # columns of a forecast with intervals


@dataclass(frozen=True)
class Forecast:
    """Forecasts for H steps at N nodes, in the user's unit. NaN at nodes absent from the network."""

    node_ids: NDArray[np.generic]  # [N]
    lon: NDArray[np.float64]  # [N]
    lat: NDArray[np.float64]  # [N]
    times_s: NDArray[np.int64]  # [H] start of each forecast step, in seconds since 1970 UTC
    values: NDArray[np.floating]  # [H,N]
    sensor: NDArray[np.bool_]  # [N] nodes whose readings were used
    at_s: int  # time of the forecast: it uses only what was known by then
    step_s: int
    timezone: str
    quantity: str
    unit: str
    notices: tuple[str, ...] = ()  # for the user
    street: NDArray[np.str_] = field(default_factory=lambda: np.zeros(0, np.str_))  # [N]; empty if unknown
    lines: NDArray[np.object_] = field(default_factory=no_lines)  # [N] WKB if nodes are roads; else empty
    detectors: NDArray[np.str_] = field(default_factory=lambda: np.zeros(0, np.str_))  # [N] user's names, "A17; A18"
    moved_m: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # [N] to the farthest detector, or NaN
    lower: NDArray[np.floating] | None = None  # [H,N] ends of the intervals, whole numbers for counts;
    upper: NDArray[np.floating] | None = None  # [H,N] None: a forecast without
    level: float | None = None  # of the intervals, in percent

    def __post_init__(self) -> None:
        for name, unknown in (("street", ""), ("detectors", ""), ("moved_m", np.nan)):
            if len(getattr(self, name)) == 0:
                object.__setattr__(self, name, np.full(len(self.node_ids), unknown))

    def __repr__(self) -> str:
        return f"<Forecast: {self.summary()}>"

    def _repr_html_(self) -> str:
        from frigate.forecasting.summary import busiest, total_line  # which summarise this class

        title, rows = busiest(self)
        shown = {
            "nodes": f"{len(self.node_ids):,}, {int(self.sensor.sum()):,} with a sensor",
            "made at": local_iso(self.at_s, self.timezone),
            "steps": f"{self.horizon} of {duration(self.step_s)}",
            "sum" if self.quantity == "count" else "mean": total_line(self),
            "notices": " ".join(self.notices) or "none",
        }
        return card("Forecast", shown, table(rows, title))

    @property
    def horizon(self) -> int:
        return len(self.times_s)

    def local_times(self) -> list[str]:
        """[H] ISO-8601 in the city's time zone."""
        return [local_iso(time_s, self.timezone) for time_s in self.times_s.tolist()]

    def utc_times(self) -> list[str]:
        """[H] ISO-8601 in UTC."""
        return [utc_iso(time_s) for time_s in self.times_s.tolist()]

    def at(self, rows: NDArray[np.int64] | slice) -> Forecast:
        """The forecast of some nodes."""
        of_nodes = ("node_ids", "lon", "lat", "sensor", "street", "detectors", "moved_m")
        some: dict[str, Any] = {name: getattr(self, name)[rows] for name in of_nodes}
        lines = self.lines[rows] if len(self.lines) else self.lines
        some |= {name: band[:, rows] for name, band in self._band().items()}
        return replace(self, **some, lines=lines, values=self.values[:, rows])

    def _band(self) -> dict[str, NDArray[np.floating]]:
        """The ends of the intervals, by the names in BAND; empty for a forecast without."""
        if self.lower is None or self.upper is None:
            return {}
        return dict(zip(BAND, (self.lower, self.upper), strict=True))

    def to_frame(self) -> pl.DataFrame:
        """A long table with one row per node and step: see `COLUMNS`, and `BAND` with intervals. `time` is in UTC."""
        import polars as pl

        return pl.DataFrame(self._columns()).with_columns(
            pl.col("time").dt.replace_time_zone("UTC"), pl.col("moved_m", "value", *self._band()).fill_nan(None)
        )

    def to_pandas(self) -> pd.DataFrame:
        """The table of `to_frame` as a pandas frame, with NaN for what is unknown. Needs pandas, and nothing else."""
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtraError("pandas") from None
        frame = pd.DataFrame(self._columns())
        frame["time"] = frame["time"].dt.tz_localize("UTC")
        return frame

    def _columns(self) -> dict[str, NDArray[Any]]:
        """The columns of the long table; `time` in UTC, NaN for what is unknown."""
        H, N = self.values.shape
        step = np.tile(np.arange(H), N)
        node = np.repeat(np.arange(N), H)
        columns = (
            *(column[node] for column in (self.node_ids, self.lon, self.lat, self.street, self.detectors)),
            self.moved_m[node],
            self.sensor[node],
            (self.times_s[step] * 1_000_000).astype("datetime64[us]"),
            np.array(self.local_times())[step],
            step + 1,
            self.values.T.ravel(),
        )
        return dict(zip(COLUMNS, columns, strict=True)) | {name: band.T.ravel() for name, band in self._band().items()}

    def to_json(self) -> dict[str, Any]:
        """The forecast with one list of values per node; null at absent nodes."""
        bands = self._band()
        columns = zip(*self._nodes(), *map(_rounded, (self.values, *bands.values())), strict=True)
        names = (*NODE_COLUMNS, "values", *bands)
        return {**self._about(), "nodes": [dict(zip(names, column, strict=True)) for column in columns]}

    def to_geojson(self) -> dict[str, Any]:
        """A point per node and step, with the step's `time` and `end_time`, so that map software can animate them.

        In a city on roads, where each node is a road, the road's line instead of a point.
        """
        ends_s = [*self.times_s[1:].tolist(), int(self.times_s[-1]) + self.step_s]
        times = list(zip(self.utc_times(), map(utc_iso, ends_s), self.local_times(), strict=True))
        features = []
        lines = self.lines.tolist() or [b""] * len(self.node_ids)
        bands = self._band()
        values_of = zip(*map(_rounded, (self.values, *bands.values())), strict=True)
        for (node_id, lon, lat, street, detectors, moved_m, sensor), line, values in zip(
            zip(*self._nodes(), strict=True), lines, values_of, strict=True
        ):
            place = {"type": "Point", "coordinates": [lon, lat]}
            if len(course := line_points(line)) > 1:
                place = {"type": "LineString", "coordinates": course.tolist()}
            at_steps = zip(zip(*values, strict=True), times, strict=True)
            for step, ((value, *band), (time, end, local)) in enumerate(at_steps, start=1):
                properties = {
                    "node_id": node_id,
                    "street": street,
                    "detectors": detectors,
                    "moved_m": moved_m,
                    "sensor": sensor,
                    "time": time,
                    "end_time": end,
                    "local_time": local,
                    "step_ahead": step,
                    "value": value,
                    **dict(zip(bands, band, strict=True)),
                }
                features.append({"type": "Feature", "geometry": place, "properties": properties})
        return {"type": "FeatureCollection", **self._about(), "features": features}

    def summary(self) -> str:
        """Describe the forecast in one line."""
        H, N = self.values.shape
        sensors = int(self.sensor.sum())
        sure = "" if self.level is None else f", {self.level:g} % intervals"
        begin = local_iso(self.at_s, self.timezone)
        return f"{N} nodes from {sensors} sensors, {H} steps of {self.step_s} s from {begin}{sure}"

    def write(self, path: str | Path, *, suffix: str | None = None) -> Path:
        """Write a .csv, .parquet, .geojson or .json file; the format is `suffix`, by default the path's."""
        path = Path(path)
        form = (path.suffix if suffix is None else suffix).lower()
        if form not in SUFFIXES:
            raise SettingsError(f'{path}: "{form}" is not a form of forecast. Use {", ".join(SUFFIXES)}')
        try:
            write_file(path, self._file(form))
        except OSError as error:
            remedy = "Name a file in a folder that can be written"
            raise SettingsError(f"{path}: cannot be written: {error.strerror}. {remedy}") from None
        return path

    def _file(self, form: str) -> bytes:
        if form == ".csv":
            return self._csv().encode()
        if form == ".parquet":
            file = io.BytesIO()
            self.to_frame().write_parquet(file)
            return file.getvalue()
        data = self.to_geojson() if form == ".geojson" else self.to_json()
        return json.dumps(data, ensure_ascii=False, allow_nan=False).encode()

    def _csv(self) -> str:
        """The table of `to_frame`, without polars, so that it also works where polars is not installed."""
        steps = list(zip(self.utc_times(), self.local_times(), range(1, self.horizon + 1), strict=True))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        bands = self._band()
        writer.writerow((*COLUMNS, *bands))
        numbers = np.stack([self.values, *bands.values()], axis=-1).swapaxes(0, 1).tolist()  # [N,H,1 or 3]
        for *about, sensor, rows in zip(*self._nodes(), numbers, strict=True):
            node = [no_formula(cell) if isinstance(cell, str) else cell for cell in about]
            cells = ["" if math.isnan(value) else value for row in rows for value in row]
            used = str(sensor).lower()
            width = 1 + len(bands)
            each = (cells[width * h : width * (h + 1)] for h in range(len(steps)))
            writer.writerows((*node, used, *step, *values) for step, values in zip(steps, each, strict=True))
        return text.getvalue()

    def _nodes(self) -> tuple[list[Any], ...]:
        """The columns named in NODE_COLUMNS."""
        moved_m = [None if math.isnan(metres) else round(metres, 1) for metres in self.moved_m.tolist()]
        columns = (self.node_ids, self.lon, self.lat, self.street, self.detectors)
        return *(column.tolist() for column in columns), moved_m, self.sensor.tolist()

    def _about(self) -> dict[str, Any]:
        return {
            "at": local_iso(self.at_s, self.timezone),
            "times": self.local_times(),
            "step_s": self.step_s,
            "timezone": self.timezone,
            "quantity": self.quantity,
            "unit": self.unit,
            **({} if self.level is None else {"level": self.level}),
            "notices": list(self.notices),
        }


def _rounded(values: NDArray[np.floating]) -> list[list[float | None]]:
    """[N] the values [H,N] of each node, rounded to the seven digits of a float32; None for NaN."""
    return [[None if math.isnan(x) else float(f"{x:.7g}") for x in row] for row in values.T.tolist()]


def make_forecast(
    trained_on: TrainedOn,
    network: RoadNetwork,
    values: NDArray[np.floating],
    at_s: int,
    *,
    sensor: NDArray[np.bool_],
    timezone: str,
    notices: Iterable[str],
    city: City | None = None,
) -> Forecast:
    """A Forecast from values [H,N]; quantity, unit and step are those of training, the detectors are the city's."""
    detectors = np.zeros(0, np.str_)
    moved_m = np.zeros(0)
    if city is not None and len(city.detectors):
        detectors, moved_m = city.detectors.at_nodes(city.network.node_ids, network.node_ids)
    return Forecast(
        node_ids=network.node_ids,
        lon=network.lon,
        lat=network.lat,
        times_s=Steps(at_s, trained_on.step_s, timezone).times_s(0, len(values)),
        values=values,
        sensor=sensor,
        at_s=at_s,
        step_s=trained_on.step_s,
        timezone=timezone,
        quantity=trained_on.quantity,
        unit=trained_on.unit,
        notices=tuple(notices),
        street=network.streets,
        lines=network.lines,
        detectors=detectors,
        moved_m=moved_m,
    )


def usable(values: NDArray[np.float64], present: NDArray[np.bool_]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """The forecasts [H,N] with NaN for infinite values, and a notice if any present node has no finite forecast."""
    finite = np.isfinite(values)
    wrong = ~finite & present
    if not wrong.any():
        return values, ()
    return np.where(wrong, np.nan, values), (
        f"{int(wrong.sum())} of {int(np.broadcast_to(present, values.shape).sum())} forecasts are no numbers and are "
        "left empty: training has diverged, or readings are out of proportion. Run frigate check, then train again.",
    )
