"""A result for a person to read, and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from frigate.errors import SettingsError

MEASURES = {
    "step": "training step",
    "step_every": "the same, every node decoded",
    "forecast": "forecast",
    "forecast_graph": "forecast, CUDA graph",
    "tick": "tick",
}


def json_of(result: dict[str, Any]) -> str:
    return json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)


def require_place(file: Path | None, *, as_json: bool) -> None:
    """Refuse before minutes are spent what could not be written after them."""
    if file is None:
        return
    if not as_json:
        raise SettingsError(f"{file}: to write the result there, say --json {file}; a size is said with --size")
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise SettingsError(f"{file} is a folder, or its folder is not there. Give a file in a folder that is")


def rows_of(result: dict[str, Any]) -> list[dict[str, str]]:
    """A table: one row for each preset and measure."""
    rows = []
    for name, told in result["presets"].items():
        ours, usual, faster = told["ours"], told["usual"], told["usual_to_ours"]
        for key, words in MEASURES.items():
            if ours[f"{key}_ms"] is None:
                continue
            of = f", windows: {told['windows']}" if key == "step" else ""
            rows.append(
                {
                    "": f"{name}: {words}{of}",
                    "ours": _ms(ours[f"{key}_ms"]),
                    "usual way": _ms(usual.get(f"{key}_ms")),
                    "times faster": "-" if faster[key] is None else f"{faster[key]:.1f}",
                    "peak, ours": _bytes(ours.get(f"{key}_peak_bytes")),
                    "peak, usual": _bytes(usual.get(f"{key}_peak_bytes")),
                }
            )
    return rows


def notes_of(result: dict[str, Any]) -> list[str]:
    """What the table has no place for."""
    way = next(iter(result["presets"].values()))["usual_way"]
    features = _ms(result["features_ms"]) if result["features_ms"] is not None else result["features_reason"]
    notes = [
        f"{result['hardware']}, {result['threads']} threads, {result['dtype']}; {result['nodes']:,} nodes, "
        f"{result['roads']:,} roads; ours: {result['kernels']}; the usual way: {way}.",
        f"Positions of {result['anchors']} anchors: {_ms(result['positions_ms'])}. Road features: {features}.",
        "A tick is compared with a full forecast the usual way. A training step the usual way decodes every node.",
        f"Peak: {result['peak_is']}.",
    ]
    for name, told in result["presets"].items():
        over = told["over_floor"]
        if over["step"] is not None:
            step, forecast = (told["work"][key]["floor_ms"] for key in ("step", "forecast"))
            notes.append(
                f"{name}: counted bytes and operations allow a step in {_ms(step)} and a forecast in {_ms(forecast)}; "
                f"measured are {over['step']:.1f} and {over['forecast']:.1f} times that."
            )
    return notes


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1e3:,.1f} s" if value >= 1e4 else f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _bytes(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e9:.2f} GB" if value >= 1e8 else f"{value / 1e6:.1f} MB"
