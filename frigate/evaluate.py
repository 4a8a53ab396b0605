"""Judge a forecaster beside the naive ones on the test period, at nodes without sensors and at sensors.

Windows are streamed: each batch is cut once, given to every forecaster, scored and forgotten.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frigate.batch import Batch, Windows
from frigate.checkpoint import Run, load_run
from frigate.city import City
from frigate.errors import FrigateError, SettingsError
from frigate.metrics import Measure, Scores, Summary, interval
from frigate.positions import hops_to
from frigate.rivals.naive import Forecaster, fit_own_median, naive_rivals, seen_median
from frigate.split import Split, windows_in
from frigate.stream import RoadNetworkStream
from frigate.train import best_device, run_notices, run_windows

ZERO = "zero"
NONE = "constant median"  # E_none: no knowledge of the node
OWN = "own median (a sensor there)"  # E_own: what a sensor at the node would have given
TERCILES = ("low", "medium", "high", "no training reading")
HOPS = ("1", "2", "3", "4-5", "6-10", ">10", "no road to a sensor")
HOPS_UP_TO = (1, 2, 3, 5, 10)

Progress = Callable[[int, int], None]  # windows done, windows in all


@dataclass(frozen=True)
class Row:
    """How one forecaster did. The groups are of the nodes the table is about: unseen, or else sensors."""

    name: str
    kind: Literal["model", "rival", "yardstick"]  # a yardstick knows what no forecaster may know
    unseen: Summary | None  # None: no unseen node has truth in the test period
    at_sensors: Summary | None
    by_step: tuple[Summary | None, ...]  # [H]
    by_tercile: dict[str, Summary]  # of the mean reading in the training period
    by_hops: dict[str, Summary]  # roads to the nearest sensor
    share_of_sensor: Measure | None  # recovered, 1 is all; None: undefined
    relative_to_zero: float | None  # MAE over that of forecasting zero

    @property
    def label(self) -> str:
        """The name as a table shows it: with a star at the yardstick, which `Evaluation.footnote` explains."""
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
class Evaluation:
    """A model's row, then the naive rivals', then the yardstick's; and what they were scored on."""

    city: str
    rows: tuple[Row, ...]
    note: str  # what a reader must know; "" where all is usual
    seen: tuple[str | int, ...]  # node ids
    unseen: tuple[str | int, ...]
    start: str  # of the test period, ISO-8601, the city's time
    end: str
    windows: int
    stride: int
    past: int
    horizon: int
    step_s: int
    quantity: str
    unit: str
    seed: int  # of the intervals
    node_mae: NDArray[np.float64] = field(repr=False, compare=False)  # [N] the model's; NaN where there is no truth

    @property
    def model(self) -> Row:
        return self.rows[0]

    def row(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise SettingsError(f'no row "{name}"; there are {", ".join(row.name for row in self.rows)}')

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
            "rows": [row.to_json() for row in self.rows],
        }

    def table_rows(self) -> list[dict[str, str]]:
        """The table to print: a dict of columns for each forecaster, at unseen nodes or else at sensors."""
        return [_table_row(row, any_unseen=self.model.unseen is not None) for row in self.rows]

    @property
    def footnote(self) -> str:
        """What the star in the table means."""
        if self.model.unseen is None:
            return "* A yardstick, not a rival: each sensor's own median for the hour and kind of day."
        return "* A yardstick, not a rival: it knows the past of the very nodes that are scored, as no forecaster may."


def evaluate(
    run: Run,
    *,
    stride: int = 1,
    device: str | None = None,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> Evaluation:
    """Score a run over its test period beside every naive rival, in the user's unit."""
    at = best_device(device)
    first, stop = run.split.test
    if first < 0 or stop > run.city.stream.num_snapshots:
        raise SettingsError("the city lacks some or all of the run's test period. Give a city that has those readings")
    evaluation = evaluate_forecaster(
        forecaster(run, at),
        run.city,
        run.split,
        run_windows(run, at),
        name=f"frigate ({run.settings.model.preset})",
        past=run.settings.task.past,
        horizon=run.settings.task.horizon,
        stride=stride,
        seed=run.settings.train.seed,
        batch_size=batch_size,
        progress=progress,
    )
    return replace(evaluation, note=" ".join(filter(None, [evaluation.note, *_run_notes(run)])))


def _run_notes(run: Run) -> list[str]:
    paper = (
        "The checkpoint was chosen at the unseen nodes (validation = unseen, as in the paper): scores are flattered."
    )
    return [*run_notices(run), *([paper] if run.settings.train.validation == "unseen" else [])]


def forecaster(run: Run, device: torch.device) -> Forecaster:
    """The run's model on a device: bf16 on a GPU, counts not below 0."""
    model = run.model.to(device).eval()
    least = 0.0 if run.city.stream.quantity == "count" else -torch.inf

    def forecast(batch: Batch) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            result: Tensor = model(batch)
        return result.clamp(min=least)

    return forecast


def score(
    forecasters: Mapping[str, Forecaster],
    windows: Windows,
    current: NDArray[np.int64],
    *,
    past: int,
    horizon: int,
    inputs: NDArray[np.bool_],
    step_s: int,
    quantity: str,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> dict[str, Scores]:
    """Scores over the windows whose last past snapshots are `current`; only nodes where `inputs` are read."""
    read = torch.from_numpy(np.asarray(inputs, bool)).to(windows.device)
    scores = {
        name: Scores(horizon=horizon, num_nodes=len(inputs), step_s=step_s, quantity=quantity) for name in forecasters
    }
    with torch.inference_mode():
        for first in range(0, len(current), batch_size):
            some = current[first : first + batch_size]
            batch = windows.batch(some, past=past, horizon=horizon, inputs=read)
            target, target_observed = batch.target, batch.target_observed
            if target is None or target_observed is None:
                raise SettingsError("the windows carry no truth to score against")
            for name, forecaster in forecasters.items():
                scores[name].add(forecaster(batch), target, target_observed)
            if progress is not None:
                progress(first + len(some), len(current))
    return scores


def evaluate_forecaster(
    model: Forecaster,
    city: City,
    split: Split,
    windows: Windows,
    *,
    name: str,
    past: int,
    horizon: int,
    stride: int = 1,
    seed: int = 0,
    batch_size: int = 16,
    progress: Progress | None = None,
) -> Evaluation:
    """Score `model` over the test period beside every naive rival. All seen nodes are input."""
    if stride < 1:
        raise SettingsError(f"stride = {stride}: must be at least 1")
    stream = city.stream
    current = windows_in(split.test, past=past, horizon=horizon, stride=stride)
    if len(current) == 0:
        raise SettingsError(
            f"the test period has {split.test[1] - split.test[0]} snapshots, but a window takes "
            f"{past} past + {horizon} ahead. Use fewer --past or --horizon, or a longer record"
        )
    rivals = naive_rivals(stream, split)
    own = fit_own_median(stream, split, otherwise=seen_median(stream, split))
    if name in rivals or name == OWN:
        raise SettingsError(f'a model cannot be called "{name}": that is a row of every table')
    scores = score(
        {name: model, **rivals, OWN: own},
        windows,
        current,
        past=past,
        horizon=horizon,
        inputs=split.seen,
        step_s=stream.step_s,
        quantity=stream.quantity,
        batch_size=batch_size,
        progress=progress,
    )
    return Evaluation(
        city=city.name,
        rows=_rows(scores, stream, split, model=name, seed=seed),
        note=_note(scores[name], split),
        seen=tuple(stream.node_ids[split.seen].tolist()),
        unseen=tuple(stream.node_ids[split.unseen].tolist()),
        start=_local_iso(stream, split.test[0]),
        end=_local_iso(stream, split.test[1]),
        windows=len(current),
        stride=stride,
        past=past,
        horizon=horizon,
        step_s=stream.step_s,
        quantity=stream.quantity,
        unit=stream.unit,
        seed=seed,
        node_mae=_node_mae(scores[name]),
    )


def terciles(stream: RoadNetworkStream, split: Split, nodes: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[N] index into TERCILES of these nodes by their mean training reading; -1 for others.

    Equal means stay together, so a third may be larger than another.
    """
    part = slice(*split.train)
    count = stream.observed[part].sum(0)
    total = np.where(stream.observed[part], stream.values[part], 0).sum(0, dtype=np.float64)
    mean = total / np.maximum(count, 1)
    ranked = nodes & (count > 0)
    group = np.where(nodes, TERCILES.index("no training reading"), -1)
    if ranked.any():
        edges = np.quantile(mean[ranked], [1 / 3, 2 / 3])
        group[ranked] = np.searchsorted(edges, mean[ranked], side="left")
    return group


def hop_groups(stream: RoadNetworkStream, split: Split, nodes: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[N] index into HOPS of these nodes, on the roads of the last test snapshot; -1 for others."""
    network = stream.topologies[int(stream.topology_of[split.test[1] - 1])]
    hops = hops_to(network, split.seen)
    group = np.searchsorted(HOPS_UP_TO, hops, side="left")
    group[hops < 0] = HOPS.index("no road to a sensor")
    return np.where(nodes & (hops != 0), group, -1)


def share_of_sensor(model: Scores, none: Scores, own: Scores, nodes: NDArray[np.bool_], *, seed: int) -> Measure | None:
    """(E_none - E_model) / (E_none - E_own) in MAE; None, undefined, where a sensor would not have helped."""
    (e_model, draws_model), (e_none, draws_none), (e_own, draws_own) = (
        scores.mae_draws(nodes, seed=seed) for scores in (model, none, own)
    )
    if not e_own < e_none:
        return None
    gap = draws_none - draws_own
    draws = np.where(gap > 0, (draws_none - draws_model) / np.where(gap > 0, gap, 1), np.nan)
    return interval((e_none - e_model) / (e_none - e_own), draws)


def _rows(
    scores: Mapping[str, Scores], stream: RoadNetworkStream, split: Split, *, model: str, seed: int
) -> tuple[Row, ...]:
    nodes = split.unseen if scores[model].summary(split.unseen) is not None else split.seen
    tercile, hops = terciles(stream, split, nodes), hop_groups(stream, split, nodes)
    zero_mae, _ = scores[ZERO].mae_draws(nodes, seed=seed)
    rows = []
    for name, these in scores.items():
        mae, _ = these.mae_draws(nodes, seed=seed)
        rows.append(
            Row(
                name=name,
                kind="model" if name == model else "yardstick" if name == OWN else "rival",
                unseen=these.summary(split.unseen, seed=seed),
                at_sensors=these.summary(split.seen, seed=seed),
                by_step=these.by_step(nodes, seed=seed),
                by_tercile=these.by_group(tercile, TERCILES, seed=seed),
                by_hops=these.by_group(hops, HOPS, seed=seed),
                share_of_sensor=share_of_sensor(these, scores[NONE], scores[OWN], split.unseen, seed=seed),
                relative_to_zero=mae / zero_mae if zero_mae > 0 and np.isfinite(mae) else None,
            )
        )
    return tuple(rows)


def _node_mae(scores: Scores) -> NDArray[np.float64]:
    count, error = scores.cell_sums[:2].sum(1)
    return np.where(count > 0, error / np.maximum(count, 1), np.nan)


def _note(scores: Scores, split: Split) -> str:
    at_sensors = "These scores are at sensors, whose own past is input, and say nothing about nodes without a sensor."
    if not split.unseen.any():
        return f"All nodes with readings are seen: none is left to score without a sensor. {at_sensors}"
    if scores.summary(split.unseen) is None:
        return f"None of the {int(split.unseen.sum())} unseen nodes has a reading to score. {at_sensors}"
    return ""


def _local_iso(stream: RoadNetworkStream, snapshot: int) -> str:
    # From the stream's own offsets: the machine that evaluates may have no time-zone database.
    last = min(snapshot, stream.num_snapshots - 1)
    offset = timezone(timedelta(seconds=int(stream.utc_offset_s[last])))
    return datetime.fromtimestamp(stream.start_s + snapshot * stream.step_s, UTC).astimezone(offset).isoformat()


def _json(summary: Summary | None) -> dict[str, Any] | None:
    return None if summary is None else summary.to_json()


def _table_row(row: Row, *, any_unseen: bool) -> dict[str, str]:
    summary = row.unseen if any_unseen else row.at_sensors
    columns = {"forecaster": row.label}
    for title, name in (("MAE", "mae"), ("RMSE", "rmse"), ("sMAPE %", "smape"), ("WAPE %", "wape")):
        columns[title] = "-" if summary is None else _with_interval(getattr(summary, name))
    if summary is not None and summary.geh_share is not None:
        columns["GEH<5 %"] = _with_interval(summary.geh_share)
    columns["of zero"] = "-" if row.relative_to_zero is None else f"{row.relative_to_zero:.3f}"
    if any_unseen:
        share = row.share_of_sensor
        columns["share of a sensor"] = "undefined" if share is None else _with_interval(share, percent=True)
        columns["MAE at sensors"] = "-" if row.at_sensors is None else _with_interval(row.at_sensors.mae)
    return columns


def _with_interval(measure: Measure, *, percent: bool = False) -> str:
    if not np.isfinite(measure.value):
        return "undefined"
    if percent:
        return f"{100 * measure.value:z.0f} % [{100 * measure.low:z.0f}, {100 * measure.high:z.0f}]"  # z: 0, never -0
    digits = 3 if abs(measure.value) < 10 else 1
    return f"{measure.value:.{digits}f} [{measure.low:.{digits}f}, {measure.high:.{digits}f}]"


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m frigate.evaluate`: what `frigate evaluate` does, with nothing installed but the compute path."""
    parser = ArgumentParser(prog="python -m frigate.evaluate", description="Score a run on the test period.")
    parser.add_argument("run", metavar="RUN", help="a folder that training wrote")
    parser.add_argument("--city", help="use this city, or cache, instead of the run's own")
    parser.add_argument("--stride", type=int, default=1, help="score every so many windows; 1 is all")
    parser.add_argument("--device", help="cpu or cuda; what there is if not said")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    said = parser.parse_args(arguments)
    try:
        result = evaluate(load_run(said.run, city=said.city), stride=said.stride, device=said.device)
    except FrigateError as error:
        print(f"frigate: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result.to_json(), indent=1, allow_nan=False) if said.json else as_text(result))
    return 0


def as_text(evaluation: Evaluation) -> str:
    """The table, its columns aligned."""
    rows = evaluation.table_rows()
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*text, evaluation.footnote, *([evaluation.note] if evaluation.note else [])])


if __name__ == "__main__":
    sys.exit(main())
