"""A file of scenarios (TOML): the period, and for each scenario its name and its dated changes.

begin = "2024-03-18T06:00"
end = "2024-03-18T20:00"

[[scenario]]
name = "Bridge works"
change = [{ close = ["Tanner Bridge"], begin = "08:00", end = "17:00" }]
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frigate.city.periods import When
from frigate.errors import SettingsError, did_you_mean
from frigate.forecasting.plan import RoadChange
from frigate.forecasting.scenarios import Scenario

MAX_BYTES = 1_000_000
MAX_SCENARIOS = 20
IN_FILE = ("begin", "end", "scenario")
IN_SCENARIO = ("name", "change")
IN_CHANGE = ("close", "add", "begin", "end")


@dataclass(frozen=True)
class ScenarioFile:
    """What a file asks for."""

    scenarios: tuple[Scenario, ...]
    begin: When | None = None
    end: When | None = None


def read_scenarios(path: str | Path) -> ScenarioFile:
    """Read a file of scenarios. Roads, streets and times are checked when they are forecast."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SettingsError(f"{path}: larger than {MAX_BYTES:,} bytes. Give a file of scenarios")
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"{path}: not TOML ({error})") from None
    _refuse_unknown(data, IN_FILE, str(path))
    tables = _tables(data.get("scenario"), f"{path}: [[scenario]]")
    if len(tables) > MAX_SCENARIOS:
        raise SettingsError(f"{path}: {len(tables)} scenarios. Compare at most {MAX_SCENARIOS} at once")
    scenarios = tuple(_scenario(table, f"{path}: scenario {k + 1}") for k, table in enumerate(tables))
    return ScenarioFile(scenarios, *(_time(data.get(name), f"{path}: {name}") for name in ("begin", "end")))


def _scenario(table: dict[str, Any], where: str) -> Scenario:
    name = table.get("name")
    if not isinstance(name, str) or not name.strip():
        raise SettingsError(f'{where} has no name. Give it one, as name = "Bridge works"')
    where = f'{where}, "{name}"'
    _refuse_unknown(table, IN_SCENARIO, where)
    changes = _tables(table.get("change"), f"{where}: change")
    return Scenario(name.strip(), tuple(_change(each, f"{where}, change {k + 1}") for k, each in enumerate(changes)))


def _change(table: dict[str, Any], where: str) -> RoadChange:
    _refuse_unknown(table, IN_CHANGE, where)
    close, add = (_roads(table.get(name, []), f"{where}: {name}") for name in ("close", "add"))
    if not close and not add:
        raise SettingsError(f'{where} closes and adds no road. Name one, as close = ["41,42"]')
    begin, end = (_time(table.get(name), f"{where}: {name}") for name in ("begin", "end"))
    return RoadChange(close, add, begin, end)


def _tables(value: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value or not all(isinstance(each, dict) for each in value):
        raise SettingsError(f"{where}: at least one table is expected. See docs/scenarios.md for an example")
    return value


def _roads(value: object, where: str) -> list[str]:
    roads = [value] if isinstance(value, str) else value
    if not isinstance(roads, list) or not all(isinstance(road, str) for road in roads):
        raise SettingsError(f'{where} = {value!r}: a list of texts is expected, such as ["41,42", "Tanner Bridge"]')
    return roads


def _time(value: object, where: str) -> When | None:
    if value is None or isinstance(value, str):
        return value
    if hasattr(value, "isoformat"):  # TOML has dates and times of its own
        return str(value.isoformat())
    raise SettingsError(f'{where} = {value!r}: a time is expected, such as "2024-03-18T08:00" or "08:00"')


def _refuse_unknown(table: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in table:
        if name not in known:
            hint = did_you_mean(name, list(known))
            raise SettingsError(f'{where}: "{name}" is not known{hint}. There can be {", ".join(known)}')
