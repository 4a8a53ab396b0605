"""city.toml: the name, step, time zone, quantity and unit of a city."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from frigate.calendar import DAY_S, zone
from frigate.city.reading_options import ReadingOptions
from frigate.city.stream import parse_quantity
from frigate.errors import CityError, did_you_mean
from frigate.reading.times import Clock

FORMAT = 1
STEP_UNITS_S = {"s": 1, "sec": 1, "min": 60, "h": 3600, "d": DAY_S}


@dataclass(frozen=True)
class CityFile:
    """city.toml."""

    name: str
    step_s: int
    timezone: str = "UTC"
    quantity: str = "count"
    unit: str = ""
    text_ids: bool = False  # ids look like integers but are text
    exclude: tuple[str, ...] = ()  # readings to leave out, see `exclude`
    read_as: ReadingOptions = field(default_factory=ReadingOptions)
    clock: Clock = field(default_factory=lambda: Clock(None, ""))

    def to_toml(self) -> str:
        def text(value: str) -> str:
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")

        lines = [
            f"format = {FORMAT}",
            f"name = {text(self.name)}",
            f"step = {text(step_text(self.step_s))}",
            f"timezone = {text(self.timezone)}",
            f"quantity = {text(self.quantity)}",
            f"unit = {text(self.unit)}",
        ]
        lines += ['node_ids = "text"'] if self.text_ids else []
        if self.exclude:
            lines += ["", "[exclude]", f"readings = [{', '.join(map(text, self.exclude))}]"]
        if given := self.read_as.to_json():
            rename = ", ".join(f"{text(theirs)} = {text(ours)}" for theirs, ours in given.pop("rename", {}).items())
            lines += ["", "[import]  # how --append reads more files"]
            lines += [f"{name} = {text(value) if isinstance(value, str) else value}" for name, value in given.items()]
            lines += [f"rename = {{ {rename} }}"] if rename else []
        return "\n".join(lines) + "\n"


def step_text(step_s: int) -> str:
    for unit, seconds in (("d", DAY_S), ("h", 3600), ("min", 60)):
        if step_s % seconds == 0:
            return f"{step_s // seconds}{unit}"
    return f"{step_s}s"


def parse_step(text: str, *, where: str) -> int:
    """Seconds of a step such as "5min", "1h" or "30s", which must divide a day."""
    match = re.fullmatch(r"\s*(\d{1,6})\s*(s|sec|min|h|d)\s*", text)
    if not match:
        raise CityError(f'{where}: step "{text}" is not understood. Write a number and s, min or h, such as "5min"')
    return whole_step(int(match[1]) * STEP_UNITS_S[match[2]], where=where)


def whole_step(step_s: int, *, where: str) -> int:
    if step_s > 0 and DAY_S % step_s == 0:
        return step_s
    good = np.array([s for s in range(1, DAY_S + 1) if DAY_S % s == 0])
    near = [*good[good < step_s][-1:].tolist(), *good[good > step_s][:1].tolist()]
    names = " or ".join(step_text(s) for s in near)
    raise CityError(f"{where}: a step of {step_text(step_s)} does not divide a day. The nearest that do: {names}")


def read_city_file(folder: Path) -> CityFile:
    path = folder / "city.toml"
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # includes invalid UTF-8, huge numbers, deep nesting
        raise CityError(f"city.toml is not valid TOML: {str(error).split(';')[0]}") from None
    known = ("format", "name", "step", "timezone", "quantity", "unit", "node_ids", "exclude", "import")
    for key, value in raw.items():
        if key not in known:
            raise CityError(f"city.toml: {key} is not a known key{did_you_mean(key, known)}. Keys: {', '.join(known)}")
        if key not in ("format", "exclude", "import") and not isinstance(value, str):
            raise CityError(f"city.toml: {key} = {value!r} is not text. Put it in quotes")
    if raw.get("format", FORMAT) != FORMAT:
        found = raw["format"]
        raise CityError(
            f"city.toml: format {found!r} is not known; this version reads format {FORMAT}. Upgrade frigate-forecast"
        )
    if "step" not in raw:
        raise CityError('city.toml has no step. Add a line such as: step = "5min"')
    if raw.get("node_ids", "text") != "text":
        raise CityError(f'city.toml: node_ids = "{raw["node_ids"]}" is not known. Leave it out, or write "text"')
    timezone = str(raw.get("timezone", "UTC"))
    local = zone(timezone)
    remedy = 'Add Z for UTC or an offset such as +02:00, or set timezone = "Europe/Luxembourg" (or yours) in city.toml'
    return CityFile(
        name=str(raw.get("name") or folder.resolve().name),
        step_s=parse_step(str(raw["step"]), where="city.toml"),
        timezone=timezone,
        quantity=parse_quantity(str(raw.get("quantity", "count")), where="city.toml"),
        unit=str(raw.get("unit", "")),
        text_ids="node_ids" in raw,
        exclude=_exclude(raw.get("exclude", {})),
        read_as=ReadingOptions.of(raw.get("import", {}), where="city.toml [import]"),
        clock=Clock(local if "timezone" in raw else None, remedy),
    )


def _exclude(table: object) -> tuple[str, ...]:
    """The entries of [exclude], each written as for --exclude."""
    example = 'readings = ["4411", "2024-03-11/2024-03-15"]'
    if not isinstance(table, dict) or set(table) - {"readings"}:
        unknown = sorted(set(table) - {"readings"}) if isinstance(table, dict) else []
        found = f"{unknown[0]} is not a known key" if unknown else "not a table"
        raise CityError(f"city.toml [exclude]: {found}. Write [exclude] and below it {example}")
    entries = table.get("readings", [])
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise CityError(f"city.toml [exclude]: readings = {entries!r} is not a list of strings. Write {example}")
    return tuple(entries)
