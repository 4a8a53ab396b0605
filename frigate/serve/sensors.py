"""The state of the sensors: ok, late, silent or stuck.

ok        has a reading in one of the last two complete snapshots
late      has none there, but one in the window that a forecast reads
silent    has none in that window
stuck     has reported the same value for six hours (for counts: above 0)
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from frigate.calendar import DAY_S, utc_iso
from frigate.city.faults import STUCK_COUNTS, STUCK_READINGS, STUCK_S
from frigate.serve.city import ServedCity
from frigate.serve.store import SensorFacts, Store

STATES = ("ok", "late", "silent", "stuck")


def sensor_health(store: Store, city: ServedCity, *, now_s: float) -> dict[str, Any]:
    """The state of every sensor of the run, and of every other node that has sent readings."""
    facts = store.sensor_facts(int(now_s - DAY_S) * 1_000_000, int(now_s - STUCK_S) * 1_000_000)
    found = {each.node: each for each in facts if each.node in city.row_of}
    quarantined = store.count_quarantined()
    names = dict.fromkeys([name for name, used in zip(city.node_names, city.sensors.tolist(), strict=True) if used])
    last_boundary_s = city.boundary(now_s)
    limits_us = [int(city.boundaries(last_boundary_s, -k, 1 - k)[0]) * 1_000_000 for k in (2, city.past)]
    others = dict.fromkeys(name for name in (*found, *quarantined) if name in city.row_of and name not in names)
    sensors = [
        {**_health(name, found.get(name), city, limits_us), "quarantined": quarantined.get(name, 0)}
        for name in [*names, *others]
    ]
    counts = Counter(each["state"] for each in sensors)
    return {"sensors": sensors, "counts": {state: counts[state] for state in STATES}}


def _health(name: str, facts: SensorFacts | None, city: ServedCity, limits_us: list[int]) -> dict[str, Any]:
    used = bool(city.sensors[city.row_of[name]])
    if facts is None:
        return {
            "node": name,
            "used": used,
            "last_time": None,
            "last_value": None,
            "state": "silent",
            "readings_last_day": 0,
        }
    enough, least = (STUCK_COUNTS, 0.0) if city.quantity == "count" else (STUCK_READINGS, float("-inf"))
    one_value = facts.least is not None and facts.least == facts.most and facts.least > least
    recent_us, window_us = limits_us
    if facts.last_us < window_us:
        state = "silent"
    elif facts.last_us < recent_us:
        state = "late"
    else:
        state = "stuck" if one_value and facts.lately >= enough else "ok"
    return {
        "node": name,
        "used": used,
        "last_time": utc_iso(facts.last_us / 1e6),
        "last_value": facts.last_value,
        "state": state,
        "readings_last_day": facts.readings,
    }
