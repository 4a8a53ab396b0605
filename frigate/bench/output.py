"""Formats the result of `bench` as a table and notes."""

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
    "demand_update": "demand update",
    "demand_update_graph": "demand update, CUDA graph",
}


def require_place(file: Path | None, *, as_json: bool) -> None:
    """Refuse a file that cannot be written before minutes of measuring.

    Parameters
    ----------
    file
        Where to write the JSON; None: nowhere.
    as_json
        Whether --json was given.
    """
    if file is None:
        return
    if not as_json:
        raise SettingsError(f"{file}: to write the result to this file, pass --json {file}. For a size, use --size")
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise SettingsError(f"{file} is a folder, or its folder does not exist. Choose a file in an existing folder")


def rows_of(result: dict[str, Any]) -> list[dict[str, str]]:
    """A table with a row for each preset and measure."""
    rows = []
    for name, found in result["presets"].items():
        ours = found["ours"]
        baseline = found["baseline"]
        faster = found["times_faster"]
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
    """Notes below the table."""
    baseline = next(iter(result["presets"].values()))["baseline_is"]
    features = _ms(result["features_ms"]) if result["features_ms"] is not None else result["features_reason"]
    notes = [
        f"{result['hardware']}, {result['threads']} threads, {result['dtype']}; {result['nodes']:,} nodes, "
        f"{result['roads']:,} roads. Frigate: {result['kernels']}. Baseline: {baseline}.",
        f"Positions of {result['anchors']} anchors: {_ms(result['positions_ms'])}. Road features: {features}.",
        "The baseline decodes all nodes in a training step, and its live update is a full forecast.",
        f"Memory is the peak: {result['peak_is']}.",
    ]
    for name, found in result["presets"].items():
        over = found["over_floor"]
        if over["step"] is not None:
            step, forecast = (found["work"][key]["floor_ms"] for key in ("step", "forecast"))
            notes.append(
                f"{name}: at this GPU's memory and arithmetic limits, a step would take {_ms(step)} and a forecast "
                f"{_ms(forecast)}; measured: {over['step']:.1f} and {over['forecast']:.1f} times as long."
            )
    return notes


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1e3:,.1f} s" if value >= 1e4 else f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _bytes(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e9:.2f} GB" if value >= 1e8 else f"{value / 1e6:.1f} MB"
