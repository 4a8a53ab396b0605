"""A result of `bench` for a person to read, and where its JSON goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from frigate.errors import SettingsError

MEASURES = {
    "step": "training step",
    "step_all_nodes": "training step, all nodes decoded",
    "forecast": "forecast",
    "forecast_graph": "forecast, CUDA graph",
    "live_update": "live update",
    "demand_update": "demand follows a window's readings",
    "demand_update_graph": "the same, CUDA graph",
}


def require_place(file: Path | None, *, as_json: bool) -> None:
    """Refuse before minutes of measuring what could not be written after them.

    Parameters
    ----------
    file
        Where to write the JSON; None: nowhere.
    as_json
        Whether JSON was asked for.
    """
    if file is None:
        return
    if not as_json:
        raise SettingsError(f"{file}: to write the result there, pass --json {file}. A size is passed with --size")
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise SettingsError(f"{file} is a folder, or its folder does not exist. Name a file in an existing folder")


def rows_of(result: dict[str, Any]) -> list[dict[str, str]]:
    """A table: one row for each preset and measure, by column."""
    rows = []
    for name, found in result["presets"].items():
        ours, baseline, faster = found["ours"], found["baseline"], found["times_faster"]
        for key, words in MEASURES.items():
            if ours[f"{key}_ms"] is None:
                continue
            windows = f", {found['windows']} windows" if key == "step" else ""
            rows.append(
                {
                    "": f"{name}: {words}{windows}",
                    "Frigate": _ms(ours[f"{key}_ms"]),
                    "baseline": _ms(baseline.get(f"{key}_ms")),
                    "times faster": "-" if faster[key] is None else f"{faster[key]:.1f}",
                    "memory": _bytes(ours.get(f"{key}_peak_bytes")),
                    "memory, baseline": _bytes(baseline.get(f"{key}_peak_bytes")),
                }
            )
    return rows


def notes_of(result: dict[str, Any]) -> list[str]:
    """What the table has no room for."""
    baseline = next(iter(result["presets"].values()))["baseline_is"]
    features = _ms(result["features_ms"]) if result["features_ms"] is not None else result["features_reason"]
    notes = [
        f"{result['hardware']}, {result['threads']} threads, {result['dtype']}; {result['nodes']:,} nodes, "
        f"{result['roads']:,} roads. Frigate: {result['kernels']}. Baseline: {baseline}.",
        f"Positions of {result['anchors']} anchors: {_ms(result['positions_ms'])}. Road features: {features}.",
        "The baseline decodes all nodes in a training step, and makes a full forecast for a live update.",
        f"Memory is the peak: {result['peak_is']}.",
    ]
    for name, found in result["presets"].items():
        over = found["over_floor"]
        if over["step"] is not None:
            step, forecast = (found["work"][key]["floor_ms"] for key in ("step", "forecast"))
            notes.append(
                f"{name}: the memory and arithmetic limits of this GPU allow a step in {_ms(step)} and a forecast in "
                f"{_ms(forecast)}; measured are {over['step']:.1f} and {over['forecast']:.1f} times that."
            )
    return notes


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1e3:,.1f} s" if value >= 1e4 else f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _bytes(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e9:.2f} GB" if value >= 1e8 else f"{value / 1e6:.1f} MB"
