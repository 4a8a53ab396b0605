"""A short summary of a forecast: the total, the busiest nodes, and the effect of closing or adding roads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from frigate.forecasting.result import Forecast

LISTED = 5
STREET_LETTERS = 40

Table = list[dict[str, str]]  # one dict of columns per row


def node_totals(forecast: Forecast) -> NDArray[np.float64]:
    """[N] over all steps: the sum for counts, the mean for gauges. NaN at absent nodes."""
    together = np.sum if forecast.quantity == "count" else np.mean
    return np.asarray(together(forecast.values, axis=0))


def total_line(forecast: Forecast, before: Forecast | None = None) -> str:
    """The whole network in one line; `before` is the forecast without the closed or added roads, for comparison."""
    minutes = forecast.horizon * forecast.step_s / 60
    ahead = f"{minutes:g} min" if minutes < 120 else f"{minutes / 60:g} h"
    if forecast.quantity == "count":
        unit = forecast.unit or "vehicles"
        now, *was = (f"{np.nansum(node_totals(each)):,.0f}" for each in (forecast, before) if each is not None)
        changed = f" (before the change {was[0]})" if was else ""
        return f"Total over {ahead}: {now} {unit}{changed}, counted at every node that they pass."
    unit = f" {forecast.unit}" if forecast.unit else ""
    both = np.isfinite(forecast.values) & (True if before is None else np.isfinite(before.values))
    now, *was = (f"{each.values[both].mean():,.4g}" for each in (forecast, before) if each is not None)
    changed = f" (before the change {was[0]})" if was else ""
    return f"Mean {forecast.quantity} over {ahead}: {now}{unit}{changed}."


def busiest(forecast: Forecast) -> tuple[str, Table]:
    """A title, and the nodes with the largest forecasts; for speeds, the slowest nodes."""
    slow = forecast.quantity == "speed"
    title = "Busiest nodes" if forecast.quantity == "count" else "Slowest nodes" if slow else "Highest nodes"
    totals = node_totals(forecast)
    order = np.argsort(totals if slow else -totals, kind="stable")
    return title, [
        _about(forecast, node) | {_heading(forecast): _number(totals[node])}
        for node in order[~np.isnan(totals[order])][:LISTED].tolist()
    ]


def largest_changes(before: NDArray[np.floating], after: NDArray[np.floating], *, count: int) -> list[int]:
    """Rows of the nodes whose values [N] change most, largest change first; none that stays or has no value."""
    change = np.nan_to_num(np.abs(after - before))
    order = np.argsort(-change, kind="stable")[:count]
    rows: list[int] = order[change[order] > 0].tolist()
    return rows


def change_table(forecast: Forecast, before: Forecast) -> Table:
    """The nodes that change most when roads are closed or added. Both forecasts must have the same nodes."""
    was = node_totals(before)
    now = node_totals(forecast)
    return [
        _about(forecast, node)
        | {"before": _number(was[node]), "after": _number(now[node]), "change": f"{now[node] - was[node]:+,.1f}"}
        for node in largest_changes(was, now, count=LISTED)
    ]


def _about(forecast: Forecast, node: int) -> dict[str, str]:
    about = {"node": str(forecast.node_ids[node])}
    if (forecast.street != "").any():
        street = str(forecast.street[node])
        about["street"] = _cut(street)
    if (forecast.detectors != "").any():
        about["detector"] = _cut(str(forecast.detectors[node]))
    return about


def _cut(text: str) -> str:
    return text if len(text) <= STREET_LETTERS else f"{text[: STREET_LETTERS - 3].rstrip()}..."


def _heading(forecast: Forecast) -> str:
    return forecast.unit or ("vehicles" if forecast.quantity == "count" else forecast.quantity)


def _number(value: float) -> str:
    return f"{value:,.1f}"
