"""The table of docs/place.md, from what `placement.py` wrote."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

from bench_tables import table

FOLDER = Path(__file__).parent / "results" / "placement"
RULES = ("place", "random", "farthest", "busiest", "even")
ERRORS = {"level": "level", "hour": "next hour"}


def read() -> dict[str, dict[str, Any]]:
    """What was measured, by city."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}


def errors(data: dict[str, Any], start: str, of: str) -> dict[str, float]:
    """The error of each rule, the mean over the seeds."""
    return {rule: mean(seed[rule][of] for seed in data["mae"][start].values()) for rule in RULES}


def placement(_: object) -> str:
    """A row for each city, start and error."""
    rows = []
    for city, data in read().items():
        for start in data["mae"]:
            for of, label in ERRORS.items():
                found = errors(data, start, of)
                less = 100 * (1 - found["place"] / found["random"])
                cells = [f"{found[rule]:.3f}" if found[rule] < 10 else f"{found[rule]:.1f}" for rule in RULES]
                seeds = ", ".join(data["mae"][start])
                rows.append([f"{city}, {start}", seeds, label, *cells, f"{less:.1f} %".replace("-", "−")])
    head = ["sites chosen", "seeds", "error", "`frigate place`", *RULES[1:], "less than random"]
    return table(head, rows)
