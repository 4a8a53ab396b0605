"""The demo city: what `frigate demo` trains on, and a city to try things with."""

from __future__ import annotations

from frigate.data.folder import City
from frigate.simulate.traffic import simulate


def demo_city(*, seed: int = 0, intersections: int = 400, days: int = 14, step_s: int = 300, closures: int = 3) -> City:
    """Simulate a town with counts of passing vehicles at every intersection, from a Monday on.

    Parameters
    ----------
    seed
        Everything follows from it.
    intersections
        How many, at least 100.
    days
        Length of the record.
    step_s
        Length of a snapshot in seconds; it divides a day.
    closures
        How many times roads are closed for some hours, up to 60.
    """
    town = simulate(seed=seed, intersections=intersections, days=days, step_s=step_s, closures=closures)
    return City(name=town.name, stream=town.stream)
