"""Why a site was chosen, and why a sensor would be missed little, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frigate.text import percent

if TYPE_CHECKING:
    from frigate.planning.placement import Site

NEARLY_ALL, MOST, HALF = 0.95, 0.6, 0.35


def site_reason(site: Site) -> str:
    """Such as: "About 2,100 vehicles a day pass, most of them seen by no sensor; the nearest is 3 roads away.\""""
    if site.vehicles_per_day is None:
        busy = f"On the map, busier than {100 * site.busier_than:.0f} % of all places"
        seen = f"{_how_many(site.unseen)} its trips" if site.hops >= 0 else ""
    else:
        busy = f"About {_rounded(site.vehicles_per_day)} vehicles a day pass"
        seen = f"{_how_many(site.unseen)} them"
    parts = [busy + (f", {seen} seen by no sensor" if seen else ""), _nearest(site.hops)]
    reason = "; ".join(part for part in parts if part) + "."
    if site.pins:
        names = [pinned.street or str(pinned.node) for pinned in site.pins]
        distinct = list(dict.fromkeys(name for name in names if name != site.street))
        if distinct:
            reason += f" It also tells of {' and '.join(distinct[:2])}."
    return ("Required. " if site.forced else "") + reason


def removal_reason(*, loss: float, elsewhere: float, hops: int) -> str:
    """What is lost with a sensor, and who sees its vehicles instead."""
    near = _nearest(hops)
    seen = "none of its vehicles pass" if elsewhere < 0.005 else f"{percent(elsewhere)} of its vehicles pass"
    return f"Without it the expected error grows by {percent(loss)}; {seen} another sensor" + (
        f"; {near}." if near else "."
    )


def _how_many(share: float) -> str:
    if share >= NEARLY_ALL:
        return "nearly all of"
    if share >= MOST:
        return "most of"
    return "about half of" if share >= HALF else f"{percent(share)} of"


def _nearest(hops: int) -> str:
    if hops < 0:
        return "no sensor is connected to it yet"
    return "a sensor is next to it" if hops <= 1 else f"the nearest sensor is {hops} roads away"


def _rounded(vehicles: float) -> str:
    """Two digits: an estimate is no more exact."""
    if vehicles < 100:
        return f"{vehicles:.0f}"
    digits = len(f"{vehicles:.0f}") - 2
    return f"{round(vehicles, -digits):,.0f}"
