"""Round numbers and times for the axes and colours of drawings."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from frigate.pages.maps import BINS, bin_edges
from frigate.pages.svg import axis, round_step, time_ticks


@given(st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), max_size=30), st.booleans())
def test_map_colours_part_the_range(values: list[float], skewed: bool) -> None:
    array = np.array([*values, np.nan])
    edges = bin_edges(array, skewed=skewed)
    assert len(edges) <= BINS - 1
    assert edges == sorted(set(edges))
    if edges:
        assert np.nanmin(array) < edges[0]
        assert edges[-1] <= np.nanmax(array)


@given(st.lists(st.floats(-1e6, 1e6), max_size=30))
def test_axes_hold_zero_and_every_value(values: list[float]) -> None:
    low, high, step = axis(np.array([*values, np.nan]))
    assert low <= min([0, *values])
    assert max([0, *values]) <= high + 1e-9 * step
    assert low < high
    assert 1 <= round((high - low) / step) <= 8


@given(st.floats(1e-6, 1e12), st.integers(2, 9))
def test_steps_are_round_and_as_small_as_fit(span: float, most: int) -> None:
    step = round_step(span, most)
    assert span / step <= most * (1 + 1e-9)
    assert span / step > most / 2.6
    assert f"{step:.0e}"[0] in "125"


@given(st.integers(-(10**9), 4 * 10**9), st.integers(3600, 10**9))
def test_any_period_has_a_few_ticks_in_order(first_s: int, length_s: int) -> None:
    ticks = time_ticks(first_s, first_s + length_s)
    places = [place for place, _ in ticks]
    assert places == sorted(set(places))
    assert all(first_s <= place <= first_s + length_s for place in places)
    assert 1 <= len(ticks) <= 11
