"""The results of an evaluation: rows of scores, as JSON and as tables."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from frigate.errors import SettingsError
from frigate.evaluation.coverage import IntervalScores
from frigate.evaluation.metrics import Measure, Summary
from frigate.evaluation.places import PlaceSkill, VolumeClass
from frigate.notebook import card, table
from frigate.text import percent, table_lines, unit_text

TextTable = list[dict[str, str]]  # for each row, its cells by column


@dataclass(frozen=True)
class ScoreRow:
    """The scores of a forecaster. The groups are of unseen nodes, or of sensors if no unseen node can be scored."""

    name: str
    kind: Literal["model", "baseline", "yardstick"]  # a yardstick uses data that no forecaster would have
    unseen: Summary | None  # None: no unseen node has a reading in the test period
    at_sensors: Summary | None
    by_step: tuple[Summary | None, ...]  # [H]
    by_tercile: dict[str, Summary]  # of the mean reading in the training period
    by_hops: dict[str, Summary]  # roads to the nearest sensor
    share_of_sensor: Measure | None  # 1: all of it is recovered; None: undefined
    relative_to_zero: float | None  # MAE divided by that of forecasting zero

    @property
    def label(self) -> str:
        """The name in a table: the yardstick has a star, which `Evaluation.footnote` explains."""
        return f"{self.name} *" if self.kind == "yardstick" else self.name

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "unseen": _json(self.unseen),
            "at_sensors": _json(self.at_sensors),
            "by_step": [_json(summary) for summary in self.by_step],
            "by_tercile": {name: _json(summary) for name, summary in self.by_tercile.items()},
            "by_hops": {name: _json(summary) for name, summary in self.by_hops.items()},
            "share_of_sensor": None if self.share_of_sensor is None else self.share_of_sensor.to_json(),
            "relative_to_zero": self.relative_to_zero,
        }


@dataclass(frozen=True)
class Comparison:
    """The model's MAE minus that of the best baseline, at the scored nodes."""

    baseline: str
    mae: Measure  # the same nodes are drawn for both

    def to_json(self) -> dict[str, Any]:
        return {"baseline": self.baseline, "mae": self.mae.to_json()}


@dataclass(frozen=True)
class BrokenShare:
    """What readings of sensors that look broken at that time (`frigate.city.faults`) do to the model's scores."""

    nodes: int  # scored nodes with such readings
    of_readings: float  # their share of the readings scored
    of_error: float  # their share of the sum of absolute errors
    mae_without: float  # MAE over all other readings

    def line(self) -> str:
        return (
            f"Periods in which {self.nodes:,} sensor{'s look' if self.nodes > 1 else ' looks'} broken have "
            f"{percent(self.of_readings)} of the readings scored and {percent(self.of_error)} of the error; "
            f"MAE without them: {self.mae_without:.4g}. frigate check lists them."
        )


@dataclass(frozen=True)
class Evaluation:
    """Rows for the model, the baselines and the yardstick, and what they were scored on."""

    city: str
    rows: tuple[ScoreRow, ...]
    note: str  # caveats for the reader, or ""
    seen: tuple[str | int, ...]  # node ids
    unseen: tuple[str | int, ...]
    start: str  # of the test period, ISO 8601, local time
    end: str
    windows: int
    stride: int
    past: int
    horizon: int
    step_s: int
    quantity: str
    unit: str
    seed: int  # of the intervals
    node_mae: NDArray[np.float64] = field(repr=False, compare=False)  # [N] the model's; NaN without readings
    node_mean: NDArray[np.float64] = field(repr=False, compare=False)  # [N] mean size of the readings scored
    best_node_mae: NDArray[np.float64] | None = field(repr=False, compare=False)  # [N] of the best possible there
    node_geh: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)  # [N] mean; None: no counts
    own_past: tuple[ScoreRow, ...] = ()  # baselines for sensors only, if `rows` are of unseen nodes
    minus_best: Comparison | None = None  # None: there is no baseline
    intervals: IntervalScores | None = None  # None: the run has no intervals
    skill: tuple[PlaceSkill, ...] = ()  # without a sensor, and at sensors
    geh_by_volume: Mapping[str, tuple[VolumeClass, ...]] = field(default_factory=dict)  # "unseen" and "at_sensors"
    broken: BrokenShare | None = None  # None: no sensor looks broken in the test period

    def __repr__(self) -> str:
        lines, _ = table_lines(self.table_rows(), width=sys.maxsize)
        return "\n".join(filter(None, [self.summary(), *lines, self.comparison_line(), self.note, self.footnote]))

    def _repr_html_(self) -> str:
        unit = unit_text(self.quantity, self.unit, self.step_s)
        shown = {"scored": self.summary(), "unit": unit, "compared": self.comparison_line() or "no baseline"}
        if self.note:
            shown["note"] = self.note
        return card(f"Evaluation of {self.model.name}", shown, table(self.table_rows(), self.footnote))

    @property
    def model(self) -> ScoreRow:
        return self.rows[0]

    def row(self, name: str) -> ScoreRow:
        for row in self.rows:
            if row.name == name:
                return row
        raise SettingsError(f'no row "{name}". Rows: {", ".join(row.name for row in self.rows)}')

    def to_json(self) -> dict[str, Any]:
        return {
            "city": self.city,
            "note": self.note,
            "test": {
                "start": self.start,
                "end": self.end,
                "windows": self.windows,
                "stride": self.stride,
                "past": self.past,
                "horizon": self.horizon,
                "step_s": self.step_s,
            },
            "quantity": self.quantity,
            "unit": self.unit,
            "seed": self.seed,
            "interval": "95 %, nodes resampled",
            "nodes": {"seen": list(self.seen), "unseen": list(self.unseen)},
            "minus_best": None if self.minus_best is None else self.minus_best.to_json(),
            "rows": [row.to_json() for row in self.rows],
            "own_past": [row.to_json() for row in self.own_past],
            "broken": None if self.broken is None else asdict(self.broken),
            "intervals": None if self.intervals is None else self.intervals.to_json(),
            "skill": [asdict(each) for each in self.skill],
            "geh_by_volume": {
                where: [each.to_json() for each in classes] for where, classes in self.geh_by_volume.items()
            },
        }

    def table_rows(self) -> TextTable:
        """The main table: a row for each forecaster, at unseen nodes or else at sensors."""
        return [_table_row(row, any_unseen=self.model.unseen is not None) for row in self.rows]

    def sensor_table(self) -> TextTable:
        """The table at sensors, with baselines that repeat a sensor's own past; empty if that is the main table."""
        if self.model.unseen is None or self.model.at_sensors is None:
            return []
        rows = [row for row in (*self.rows[:-1], *self.own_past, self.rows[-1]) if row.at_sensors is not None]
        return [_measures(row.label.removesuffix(" *"), row.at_sensors) for row in rows]

    def summary(self) -> str:
        """What was scored, in one line."""
        nodes = f"{len(self.unseen)} unseen nodes" if self.model.unseen is not None else f"{len(self.seen)} sensors"
        return f"{self.city}: {nodes}, {self.windows} windows from {self.start} to {self.end}"

    def comparison_line(self) -> str:
        """The model compared with the best baseline, in one line; "" if there is none."""
        if self.minus_best is None:
            return ""
        best = self.minus_best
        return f"MAE minus that of the best baseline, {best.baseline}: {_with_interval(best.mae, signed=True)}."

    def volume_table(self) -> TextTable:
        """GEH by hourly volume, without a sensor or else at sensors; empty for gauges."""
        classes = self.geh_by_volume.get("unseen") or self.geh_by_volume.get("at_sensors") or ()
        return [
            {
                "vehicles an hour": each.name,
                "hourly counts": f"{each.hours:,}",
                "GEH<5 %": f"{each.good:.1f}",
                "mean GEH": f"{each.mean:.2f}",
            }
            for each in classes
        ]

    def detail_tables(self) -> dict[str, TextTable]:
        """Title -> table of MAE: by step ahead, traffic volume and roads to the nearest sensor. Without empty ones."""
        steps = {f"{i} ({i * self.step_s / 60:g} min)": i - 1 for i in range(1, self.horizon + 1)}
        by_step = [
            _detail_row("step ahead", name, [row.by_step[i] for row in self.rows], self) for name, i in steps.items()
        ]
        tables = {"MAE by step ahead": by_step}
        for title, first, groups in (
            ("MAE by mean training reading", "reading", [row.by_tercile for row in self.rows]),
            ("MAE by roads to the nearest sensor", "roads", [row.by_hops for row in self.rows]),
        ):
            tables[title] = [
                _detail_row(first, name, [group.get(name) for group in groups], self) for name in groups[0]
            ]
        return {title: rows for title, rows in tables.items() if rows}

    @property
    def footnote(self) -> str:
        """The meaning of the star in the table."""
        if self.model.unseen is None:
            return "* A yardstick, not a baseline: each sensor's own median for the hour and kind of day."
        return "* A yardstick, not a baseline: it uses past readings of the scored nodes, which no forecaster has."


def _json(summary: Summary | None) -> dict[str, Any] | None:
    return None if summary is None else summary.to_json()


def _table_row(row: ScoreRow, *, any_unseen: bool) -> dict[str, str]:
    columns = _measures(row.label, row.unseen if any_unseen else row.at_sensors)
    columns["of zero"] = "-" if row.relative_to_zero is None else f"{row.relative_to_zero:.3f}"
    if any_unseen:
        share = row.share_of_sensor
        columns["share of a sensor"] = "undefined" if share is None else _with_interval(share, percent=True)
        columns["MAE at sensors"] = "-" if row.at_sensors is None else _with_interval(row.at_sensors.mae)
    return columns


def _measures(label: str, summary: Summary | None) -> dict[str, str]:
    columns = {"forecaster": label}
    for title, name in (("MAE", "mae"), ("RMSE", "rmse"), ("sMAPE %", "smape"), ("WAPE %", "wape")):
        columns[title] = "-" if summary is None else _with_interval(getattr(summary, name))
    if summary is not None and summary.geh_share is not None:
        columns["GEH<5 %"] = _with_interval(summary.geh_share)
    return columns


def _detail_row(first: str, name: str, summaries: list[Summary | None], evaluation: Evaluation) -> dict[str, str]:
    """The model with its interval, the others without; then the number of scored nodes."""
    columns = {first: name}
    for row, summary in zip(evaluation.rows, summaries, strict=True):
        text = "-" if summary is None else _with_interval(summary.mae)
        columns[row.label] = text if row.kind == "model" else text.partition(" [")[0]
    nodes = summaries[0].nodes if summaries[0] is not None else 0
    return {**columns, "nodes": str(nodes)}


def _with_interval(measure: Measure, *, percent: bool = False, signed: bool = False) -> str:
    if not np.isfinite(measure.value):
        return "undefined"
    known = np.isfinite(measure.low)
    if percent:
        if not known:
            return f"{100 * measure.value:z.0f} %"
        return f"{100 * measure.value:z.0f} % [{100 * measure.low:z.0f}, {100 * measure.high:z.0f}]"  # z: 0, never -0
    form = f"{'+z' if signed else ''}.{3 if abs(measure.value) < 10 else 1}f"
    if not known:
        return f"{measure.value:{form}}"
    return f"{measure.value:{form}} [{measure.low:{form}}, {measure.high:{form}}]"
