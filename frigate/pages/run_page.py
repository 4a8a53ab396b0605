"""The report of a run: the map page with all its data in one file, which opens without internet.

The page is `page/src/report.ts`, built into `frigate/pages/static/report.html`; this module inserts its data.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frigate.calendar import utc_iso
from frigate.city.city import City
from frigate.city.network import Road
from frigate.errors import SettingsError
from frigate.evaluation.evaluate import with_test_period
from frigate.evaluation.results import Evaluation
from frigate.forecasting.edits import edit_network
from frigate.forecasting.road_flow import closed_roads
from frigate.pages.closure_study import ClosureStudy
from frigate.pages.closures import ClosureView, view_closed_day
from frigate.pages.day import Day, forecast_day
from frigate.pages.map_data import network_container
from frigate.pages.trust import best_baseline, trust_figures
from frigate.pages.wire import encode, rounded
from frigate.reading.files import write_file
from frigate.text import duration, unit_text
from frigate.training.run import Run

FORM = Path(__file__).parent / "static" / "report.html"
PLACEHOLDER = "<!-- containers -->"
MAX_VALUES = 5_000_000  # over all times: about 13 MB in the file
DROPPED_BITS = 13  # of the 23 bits of a float32 mantissa: values are within 0.05 %
EVERY = (1, 2, 3, 4, 6, 12, 24, 48)  # a large city shows every 2nd, 3rd, ... time only


def write_report(
    path: str | Path,
    run: Run,
    evaluation: Evaluation,
    *,
    city: City | None = None,
    test: str | None = None,
    close: Sequence[str | Road] = (),
    study: ClosureStudy | None = None,
    note: str = "",
    device: str | None = None,
) -> Path:
    """Write the page about a run.

    Parameters
    ----------
    path
        File to write; its folder is created.
    run
        The trained run.
    evaluation
        Its evaluation.
    city
        The city that was evaluated. Default: the one that the run was trained on.
    test
        The period that was scored, as in `evaluate`; the report shows its last day.
    close
        One-way roads to close in the report: "A,B" or (A, B).
    study
        A closure study to show instead of `close`.
    note
        A sentence to add, such as how small the model is.
    device
        "cpu" or "cuda". Default: cuda if available.

    Returns
    -------
    Path
        The file.
    """
    path = Path(path)
    page = _page()
    run_on_city = with_test_period(run.on(city), test)
    usual = run_on_city.usual_roads
    shut = closed_roads(usual, edit_network(usual, close=close))
    baseline = best_baseline(evaluation)
    day = forecast_day(run_on_city, baseline="" if baseline is None else baseline.name, device=device)
    closure = None if study is None else study.view
    if shut.any() and study is None:
        unit = unit_text(evaluation.quantity, evaluation.unit, evaluation.step_s)
        closure = view_closed_day(day, day.close(shut), unit)
    shown = slice(None, None, _every(day, closure))
    data = {"network": _network(day), "day": _day(day, evaluation, shown)}
    if closure is not None:
        data["closure"] = _closure(closure, day, shown)
    scripts = [
        f'<script type="application/octet-stream" id="{name}">{_packed(each)}</script>' for name, each in data.items()
    ]
    # A "</script>" in a name would end the script early
    trust = json.dumps(trust_figures(day, evaluation, note), allow_nan=False).replace("<", "\\u003c")
    scripts.append(f'<script type="application/json" id="trust">{trust}</script>')
    write_file(path, page.replace(PLACEHOLDER, "\n".join(scripts), 1))
    return path


def _packed(container: bytes) -> str:
    return base64.b64encode(gzip.compress(container, 6, mtime=0)).decode()


def _page() -> str:
    try:
        page = FORM.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SettingsError(f"{FORM}: the map page is not built. Run `make page`, or install a wheel") from None
    if PLACEHOLDER not in page:
        raise SettingsError(f"{FORM}: the map page is from another version. Run `make page`")
    return page


def _every(day: Day, closure: ClosureView | None) -> int:
    """The report shows every nth time: the smallest n that keeps the file small enough to mail."""
    N = day.network.num_nodes
    E = day.network.num_edges
    values_per_time = N * (2 + (day.baseline is not None)) + E
    if closure is not None and not closure.note:
        values_per_time += N + E
    return next((every for every in EVERY if len(day.rows) / every * values_per_time <= MAX_VALUES), EVERY[-1])


def _network(day: Day) -> bytes:
    run, stream = day.run, day.run.city.stream
    return network_container(
        day.network,
        stream,
        run.split.seen & day.network.present,
        name=run.city.name,
        horizon=run.settings.task.horizon,
        has_demand=False,  # the file contains no trips
        detectors=run.city.detectors,
    )


def _day(day: Day, evaluation: Evaluation, shown: slice) -> bytes:
    task = day.run.settings.task
    step_s = evaluation.step_s
    period = duration(task.horizon * step_s)
    made = f"A new forecast is made every {'hour' if period == '1 h' else period} and shown until the next one."
    words = [f"The last day of the test period. {made}"]
    if shown.step > 1:
        words.append(f"The map shows one time every {duration(shown.step * step_s)}, to keep the file small.")
    closed = day.closed()[shown]
    sets = sorted({tuple(each) for each in closed})
    sensor, near = day.main_sensors()
    arrays: dict[str, NDArray[Any]] = {
        "forecast": _rounded(day.forecast[shown]),
        "observed": _rounded(day.observed[shown]),
        "road_forecast": _rounded(day.road_flow[shown]),
        "error": _relative_error(day, evaluation),
        "main_sensors": sensor,
        "main_sensors_share" if day.has_demand else "main_sensors_m": near,
        "closed_set": np.array([sets.index(tuple(each)) for each in closed], np.uint32),
    }
    if day.baseline is not None:
        arrays["baseline"] = _rounded(day.baseline[shown])
    if evaluation.best_node_mae is not None:
        arrays["skill"] = _skill(day, evaluation)
    return encode({"times": _times(day, shown), "words": words, "closed": sets}, arrays)


def _closure(view: ClosureView, day: Day, shown: slice) -> bytes:
    of_day = not view.note
    arrays = {name: _rounded(each[shown] if of_day else each) for name, each in view.arrays.items()}
    return encode(view.meta(_times(day, shown) if of_day else []), arrays)


def _rounded(values: NDArray[np.floating]) -> NDArray[np.float32]:
    return rounded(values, DROPPED_BITS)


def _times(day: Day, shown: slice) -> list[str]:
    return [utc_iso(time_s) for time_s in day.times_s[shown].tolist()]


def _scored(day: Day, evaluation: Evaluation) -> NDArray[np.bool_]:
    split = day.run.split
    return split.unseen if evaluation.model.unseen is not None else split.seen


def _relative_error(day: Day, evaluation: Evaluation) -> NDArray[np.float32]:
    """[N] the error in % of the mean reading, at the scored nodes."""
    known = _scored(day, evaluation) & (evaluation.node_mean > 0)
    share = evaluation.node_mae / np.where(known, evaluation.node_mean, 1)
    return np.where(known, 100 * share, np.nan).astype(np.float32)


def _skill(day: Day, evaluation: Evaluation) -> NDArray[np.float32]:
    """[N] by how many % the error exceeds the best baseline's, at the scored nodes; below 0 is better."""
    assert evaluation.best_node_mae is not None
    known = _scored(day, evaluation) & (evaluation.best_node_mae > 0)
    share = evaluation.node_mae / np.where(known, evaluation.best_node_mae, 1)
    return np.where(known, 100 * (share - 1), np.nan).astype(np.float32)
