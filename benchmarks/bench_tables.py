"""The tables of docs/performance.md, from the JSON of `frigate bench` and of benchmarks/profile_step.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from textwrap import fill
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BENCHES = ("bench-h200-chengdu", "bench-h200-beijing", "bench-cpu-chengdu")  # of `frigate bench --json`


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def benches() -> dict[str, dict[str, Any]]:
    """What `frigate bench` found, by file; those that are there."""
    paths = {name: RESULTS / f"{name}.json" for name in BENCHES}
    return {name: json.loads(p.read_text(encoding="utf-8")) for name, p in paths.items() if p.exists()}


def bench_presets(found: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """A label, and what was measured of a preset, `paper` first."""
    return [
        (f"{'GPU' if data['device'] == 'cuda' else 'CPU'}, {data['size']}, `{name}`", told)
        for data in found.values()
        for name, told in data["presets"].items()
    ]


def not_measured(names: Iterable[str]) -> str:
    return "\n".join(f"- Not measured yet: `benchmarks/results/{name}.json` is not there." for name in names)


def milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def gigabytes(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 1e6:,.0f} MB"


def bench_facts(_: object) -> str:
    """Where, with what, how often."""
    found = benches()
    lines = []
    for name, data in found.items():
        way = next(iter(data["presets"].values()))["baseline_is"]
        often = data["repeats"]
        versions = ", ".join(f"{k} {v}" for k, v in data["versions"].items())
        cores = "" if data["device"] == "cuda" else f", {data['threads']} threads"
        lines.append(
            f"- `{name}.json`: {data['hardware']}{cores}, {data['dtype']} ({versions}); {data['nodes']:,} nodes, "
            f"{data['roads']:,} roads. Ours: {data['kernels']}. The plain baseline: {way}. Medians of {often['step']} "
            f"steps, {often['forecast']} forecasts, {often['live_update']} live updates after {often['warm']}; "
            f"{data['clock']}. Peak: {data['peak_is']}. `{data['command']}`"
        )
    lines = [fill(line, 118, subsequent_indent="  ", break_on_hyphens=False) for line in lines]
    return "\n".join(filter(None, [*lines, not_measured(n for n in BENCHES if n not in found)]))


def bench_times(_: object) -> str:
    """Ours, the plain baseline, and the ratio, of each measure."""
    found = benches()
    rows = []
    if not found:
        return not_measured(BENCHES)
    words = {
        "step": "training step",
        "step_all_nodes": "the same, every node decoded",
        "forecast": "forecast",
        "forecast_graph": "forecast, CUDA graph",
        "live_update": "live update",
        "demand_update": "demand update",
        "demand_update_graph": "demand update, CUDA graph",
    }
    for label, told in bench_presets(found):
        for key, what in words.items():
            ours = told["ours"]
            baseline = told["baseline"]
            ratio = told["times_faster"].get(key)
            if ours.get(f"{key}_ms") is None:
                continue
            size = f", windows: {told['windows']}" if key == "step" else ""
            peaks = (gigabytes(way.get(f"{key}_peak_bytes")) for way in (ours, baseline))
            times = (milliseconds(way.get(f"{key}_ms")) for way in (ours, baseline))
            rows.append([f"{label}: {what}{size}", *times, "-" if ratio is None else f"{ratio:.1f}", *peaks])
    return table(["", "ours", "plain baseline", "times faster", "peak, ours", "peak, baseline"], rows)


def bench_static(_: object) -> str:
    """What is computed once for a network, on the host."""
    found = benches()
    if not found:
        return not_measured(BENCHES)
    rows = [
        [name, milliseconds(data["positions_ms"]), milliseconds(data["features_ms"])] for name, data in found.items()
    ]
    return table(["file", "positions, 16 anchors", "road features"], rows)


def bench_roofline(_: object) -> str:
    """Bytes and operations counted, the least time for them, the time measured."""
    names = [name for name in BENCHES if "cpu" not in name]
    found = {name: data for name, data in benches().items() if data["ceilings"] is not None}
    if not found:
        return not_measured(names)
    rows = []
    for label, told in bench_presets(found):
        for key in ("step", "forecast"):
            work = told["work"][key]
            over = told["over_floor"][key]
            own = told["ours"]
            best = (
                own["step_ms"] if key == "step" else min(filter(None, (own["forecast_ms"], own["forecast_graph_ms"])))
            )
            counted = (gigabytes(work["bytes"]), f"{work['flops'] / 1e9:,.0f}")
            rows.append([f"{label}: {key}", *counted, *map(milliseconds, (work["floor_ms"], best)), f"{over:.1f}"])
    reached = "; ".join(
        f"{data['hardware']} ({data['size']}): {data['ceilings']['copy_tb_per_s']:.2f} TB/s copied, read and written "
        f"bytes counted, and {data['ceilings']['matmul_tflop_per_s']:.0f} TFLOP/s in a product of matrices"
        for data in found.values()
    )
    head = ["", "bytes", "GFLOP", "lower bound", "measured", "times the bound"]
    missing = not_measured(name for name in names if name not in found)
    return "\n\n".join(
        filter(None, [fill(f"Ceilings reached in the same runs: {reached}.", 118), table(head, rows), missing])
    )


def bench_parts(_: object) -> str:
    """Where the bytes and operations of a training step of `paper` are."""
    found = {name: data for name, data in benches().items() if data["ceilings"] and "paper" in data["presets"]}
    if not found:
        return not_measured(name for name in BENCHES if "cpu" not in name)
    data = next(iter(found.values()))
    told = data["presets"]["paper"]
    rows = [
        [part["name"], gigabytes(part["bytes"]), f"{part['flops'] / 1e9:,.0f}"]
        + [milliseconds(part[key]) for key in ("bytes_ms", "flops_ms")]
        for part in told["work"]["step"]["parts"]
    ]
    about = f"A step of {told['windows']} windows, {data['size']}, `paper`:\n\n"
    return about + table(["part", "bytes", "GFLOP", "by bytes", "by operations"], rows)


def bench_profile(_: object) -> str:
    """Where a step's time goes."""
    data = json.loads((RESULTS / "profile-h200-chengdu.json").read_text(encoding="utf-8"))
    parts = {
        "layers": ("_layer",),
        "layers, backward": ("_back", "_products"),
        "encoder": ("_lstm",),
        "encoder, back": ("_grad_lstm",),
        "decoder": ("_decoder",),
        "decoder, back": ("_grad_decoder",),
        "sums for the weights of both": ("_sums",),
    }
    took = {name: sum(row["ms"] for row in data["rows"] if row["kernel"] in kernels) for name, kernels in parts.items()}
    known = sum(row["times"] for row in data["rows"] if row["kernel"] in {k for each in parts.values() for k in each})
    took[f"{data['launches'] - known:.0f} others"] = data["kernels_ms"] - sum(took.values())
    rows = [[name, milliseconds(ms), f"{100 * ms / data['kernels_ms']:.0f} %"] for name, ms in took.items()]
    return table(["kernels", "time", "share"], [*rows, ["all", milliseconds(data["kernels_ms"]), ""]])


TABLES: dict[str, Callable[[object], str]] = {
    "bench-facts": bench_facts,
    "bench-times": bench_times,
    "bench-static": bench_static,
    "bench-roofline": bench_roofline,
    "bench-parts": bench_parts,
    "profile": bench_profile,
}
