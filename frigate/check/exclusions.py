"""A ready [exclude] block for city.toml: every period in which a sensor looks broken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from frigate.check.sensors import SensorCheck
from frigate.errors import SettingsError

SHOWN_ENTRIES = 12  # in the text of a check

Entry = tuple[str, str]  # as for --exclude, and why


def exclusions(sensors: Sequence[SensorCheck]) -> tuple[Entry, ...]:
    """What to leave out: sensors that are no use at all, and of others each run of one value."""
    found: list[Entry] = []
    for sensor in sorted(sensors, key=lambda sensor: str(sensor.node_id)):
        if sensor.dead:
            found.append((str(sensor.node_id), "read only 0: keep it if the road is that quiet"))
        elif sensor.unfit:
            found.append((str(sensor.node_id), sensor.unfit))
        else:
            found += [(f"{sensor.node_id}@{each.start}/{each.end}", each.fault) for each in sensor.broken_periods]
    return tuple(found)


def exclude_block(entries: Sequence[Entry], before: Sequence[str] = ()) -> str:
    """The block as TOML; `before` are entries that city.toml has already."""
    lines = ["[exclude]", "readings = ["]
    lines += [f"    {json.dumps(entry, ensure_ascii=False)}," for entry in before]
    lines += [f"    {json.dumps(entry, ensure_ascii=False)},  # {why}" for entry, why in entries if entry not in before]
    return "\n".join([*lines, "]"]) + "\n"


def exclusion_lines(entries: Sequence[Entry], before: Sequence[str] = ()) -> list[str]:
    """The block in the text of a check, or how to have it written where it is long."""
    new = [entry for entry, _ in entries if entry not in before]
    if not new:
        return []
    if len(new) > SHOWN_ENTRIES:
        return [f"To leave these {len(new):,} periods out, have an [exclude] block written with --write-exclude FILE"]
    where = "in place of the [exclude] block in city.toml" if before else "in city.toml"
    return [f"To leave them out, write {where}:", *exclude_block(entries, before).splitlines()]


def write_exclusions(path: Path, entries: Sequence[Entry], before: Sequence[str] = ()) -> Path:
    """Write the block to a new file."""
    if path.exists():
        raise SettingsError(f"{path} exists already. Name another file for the [exclude] block")
    try:
        path.write_text(exclude_block(entries, before), encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}. Name another file for the [exclude] block") from None
    return path
