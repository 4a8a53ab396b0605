"""Triton kernels that adjust demand to a window's readings: `DemandTables.follow` in eight launches.

In plain torch this is some 130 operations on small tensors, dominated by launch overhead. The kernels are split where
all nodes must finish before any can continue: at the network-wide change, and at each step's factors.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from frigate.calendar import HOURS, PART_S, PARTS
from frigate.demand.sensor_shares import STEPS
from frigate.demand.tables import (
    FADES_S,
    MAX_RATIO,
    NEW_ROADS,
    PRIOR_VEHICLES,
    PRIOR_VEHICLES_EVERYWHERE,
    DemandTables,
)

NODES = 64  # per program


@triton.jit
def _between_bins(clock, step, there, step_s, HOURS: tl.constexpr):
    """`between_bins` of frigate/calendar.py: the two bins to interpolate between, and the weight of the second."""
    second = tl.load(clock + step * 3, there, 0).to(tl.int32)
    of_kind = HOURS * tl.load(clock + step * 3 + 2, there, 0).to(tl.int32)
    middle = second + step_s // 2 - 1800 + 86400  # plus a day, so that it is not negative
    hour = middle // 3600
    share = (middle - 3600 * hour).to(tl.float32) / 3600
    return hour % HOURS + of_kind, (hour + 1) % HOURS + of_kind, share


@triton.jit
def _week_part(clock, step, there, step_s, PARTS: tl.constexpr, PART_S: tl.constexpr):
    """`week_parts` of frigate/calendar.py: the part of the week of each snapshot."""
    second = tl.load(clock + step * 3, there, 0).to(tl.int32)
    weekday = tl.load(clock + step * 3 + 1, there, 0).to(tl.int32)
    return PARTS * weekday + (second + step_s // 2) % 86400 // PART_S


@triton.jit
def _compare(
    values,
    observed,
    clock,
    which,
    past_on,
    usual,
    week,
    recent,
    is_sensor,
    roads,
    past,
    counted,
    expected,
    known,
    news,
    sums,
    new_roads,
    step_s,
    N,
    T: tl.constexpr,
    H: tl.constexpr,
    WIDE: tl.constexpr,
    K: tl.constexpr,
    W: tl.constexpr,
    G: tl.constexpr,
    HAS_ROADS: tl.constexpr,
    HAS_RECENT: tl.constexpr,
    HOURS: tl.constexpr,
    PARTS: tl.constexpr,
    PART_S: tl.constexpr,
    NODES: tl.constexpr,
):
    """The usual flow in each snapshot, the observed and expected count of each node, and their sums over sensors.

    Also how new each node's roads are, 0 to 1: so much of its change persists.
    """
    window = tl.program_id(1).to(tl.int64)
    node = tl.program_id(0) * NODES + tl.arange(0, NODES)
    step = tl.arange(0, WIDE)
    row = tl.load(which + window)
    first, second, share = _between_bins(clock + window * (T + H) * 3, step, step < T, step_s, HOURS)
    there = (step < T)[:, None] & (node < N)[None, :]
    table = usual + row * K * N + node[None, :]
    low = tl.load(table + first[:, None].to(tl.int64) * N, there, 0.0)
    high = tl.load(table + second[:, None].to(tl.int64) * N, there, 0.0)
    part = _week_part(clock + window * (T + H) * 3, step, step < T, step_s, PARTS, PART_S)
    factor = tl.load(week + (row * W + part[:, None].to(tl.int64)) * N + node[None, :], there, 1.0)
    usually = (low + share[:, None] * (high - low)) * factor
    if HAS_RECENT:
        usually *= tl.load(recent + (window * (T + H) + step[:, None]) * N + node[None, :], there, 1.0)
    new = tl.zeros([NODES], tl.float32)
    if HAS_ROADS:
        on = tl.load(past_on + window * T + step, step < T, 0)
        measured_on = tl.load(roads + (row * G + on[:, None]) * N + node[None, :], there, 1.0)
        usually *= measured_on
        new += tl.minimum(tl.sum(tl.abs(tl.log(tl.maximum(measured_on, 1e-4))), axis=0) / T / new_roads, 1.0)
    tl.store(news + window * N + node, new, node < N)
    at = (window * T + step[:, None]) * N + node[None, :]
    tl.store(past + at, usually, there)
    read = tl.load(observed + at, there, 0) != 0
    count = tl.sum(tl.where(read, tl.load(values + at, there, 0.0), 0.0), axis=0)
    expect = tl.sum(tl.where(read, usually, 0.0), axis=0)
    sensor = tl.load(is_sensor + row * N + node, node < N, 0) != 0
    speaks = (tl.max(read.to(tl.int32), axis=0) > 0) & sensor
    tl.store(counted + window * N + node, count, node < N)
    tl.store(expected + window * N + node, expect, node < N)
    tl.store(known + window * N + node, speaks.to(tl.int8), node < N)
    partial = sums + (window * tl.num_programs(0) + tl.program_id(0)) * 2
    tl.store(partial, tl.sum(tl.where(speaks, count, 0.0)))
    tl.store(partial + 1, tl.sum(tl.where(speaks, expect, 0.0)))


@triton.jit
def _begin(
    counted,
    expected,
    known,
    sums,
    ratio,
    factor,
    everywhere,
    prior,
    prior_everywhere,
    max_ratio,
    N,
    PARTS: tl.constexpr,
    WIDE: tl.constexpr,
    NODES: tl.constexpr,
):
    """The network-wide change, the ratio of each node, and the initial factors."""
    window = tl.program_id(1).to(tl.int64)
    part = tl.arange(0, WIDE)
    whole = tl.sum(tl.load(sums + (window * PARTS + part) * 2, part < PARTS, 0.0))
    usually = tl.sum(tl.load(sums + (window * PARTS + part) * 2 + 1, part < PARTS, 0.0))
    change = (whole + prior_everywhere) / (usually + prior_everywhere)
    tl.store(everywhere + window, change)  # every program writes the same value
    node = tl.program_id(0) * NODES + tl.arange(0, NODES)
    at = window * N + node
    there = node < N
    mine = (tl.load(counted + at, there, 0.0) + prior * change) / (tl.load(expected + at, there, 0.0) + prior)
    mine = tl.minimum(tl.maximum(mine, 1 / max_ratio), max_ratio)
    tl.store(ratio + at, mine, there)
    tl.store(factor + at, tl.where(tl.load(known + at, there, 0) != 0, mine, change), there)


@triton.jit
def _flow(factor, everywhere, sensor, share, rest, row, window, node, N, M: tl.constexpr, SENSORS: tl.constexpr):
    """The change at each node, from the factors of the sensors that its vehicles pass."""
    column = tl.arange(0, SENSORS)
    at = (row * N + node[:, None]) * M + column[None, :]
    there = (node < N)[:, None] & (column < M)[None, :]
    on = tl.load(sensor + at, there, 0)
    made = tl.sum(tl.load(share + at, there, 0.0) * tl.load(factor + window * N + on, there, 0.0), axis=1)
    return made + tl.load(rest + row * N + node, node < N, 0.0) * tl.load(everywhere + window)


@triton.jit
def _row_of_shares(which, ahead_on, window, L: tl.constexpr, BY_ROADS: tl.constexpr):
    """The window's row in the sensor shares: by demand and, with BY_ROADS, by the topology of the coming hour."""
    row = tl.load(which + window) * L
    if BY_ROADS:
        row += tl.load(ahead_on + window)
    return row


@triton.jit
def _step(
    factor,
    ratio,
    known,
    everywhere,
    which,
    ahead_on,
    sensor,
    share,
    rest,
    found,
    N,
    L: tl.constexpr,
    BY_ROADS: tl.constexpr,
    M: tl.constexpr,
    SENSORS: tl.constexpr,
    NODES: tl.constexpr,
):
    """One more step of the factors towards the readings."""
    window = tl.program_id(1).to(tl.int64)
    node = tl.program_id(0) * NODES + tl.arange(0, NODES)
    at = window * N + node
    there = node < N
    shares_row = _row_of_shares(which, ahead_on, window, L, BY_ROADS)
    made = _flow(factor, everywhere, sensor, share, rest, shares_row, window, node, N, M, SENSORS)
    better = tl.load(factor + at, there, 0.0) * tl.load(ratio + at, there, 0.0) / tl.maximum(made, 1e-3)
    tl.store(found + at, tl.where(tl.load(known + at, there, 0) != 0, better, made), there)


@triton.jit
def _ahead(
    factor,
    everywhere,
    clock,
    which,
    ahead_on,
    sensor,
    share,
    rest,
    usual,
    week,
    recent,
    below,
    is_sensor,
    spread,
    roads,
    news,
    forecast,
    about,
    max_ratio,
    power,
    fades_s,
    step_s,
    N,
    T: tl.constexpr,
    H: tl.constexpr,
    WIDE: tl.constexpr,
    K: tl.constexpr,
    W: tl.constexpr,
    G: tl.constexpr,
    HAS_ROADS: tl.constexpr,
    HAS_RECENT: tl.constexpr,
    L: tl.constexpr,
    BY_ROADS: tl.constexpr,
    M: tl.constexpr,
    SENSORS: tl.constexpr,
    HOURS: tl.constexpr,
    PARTS: tl.constexpr,
    PART_S: tl.constexpr,
    NODES: tl.constexpr,
):
    """The change at each node, and the resulting demand forecast."""
    window = tl.program_id(1).to(tl.int64)
    node = tl.program_id(0) * NODES + tl.arange(0, NODES)
    row = tl.load(which + window)
    shares_row = _row_of_shares(which, ahead_on, window, L, BY_ROADS)
    change = _flow(factor, everywhere, sensor, share, rest, shares_row, window, node, N, M, SENSORS)
    log = tl.log(tl.minimum(tl.maximum(change, 1 / max_ratio), max_ratio))
    rerouted = tl.full([NODES], 1.0, tl.float32)
    if HAS_ROADS:
        rerouted = tl.load(roads + (row * G + tl.load(ahead_on + window)) * N + node, node < N, 0.0)
    note = about + (window * N + node) * 4
    tl.store(note, log, node < N)
    tl.store(note + 1, tl.load(spread + row * N + node, node < N, 0.0), node < N)
    tl.store(note + 2, tl.load(is_sensor + row * N + node, node < N, 0).to(tl.float32), node < N)
    tl.store(note + 3, rerouted, node < N)
    step = tl.arange(0, WIDE)
    first, second, part = _between_bins(clock + (window * (T + H) + T) * 3, step, step < H, step_s, HOURS)
    there = (step < H)[:, None] & (node < N)[None, :]
    low_at = (row * K + first[:, None]) * N + node[None, :]
    high_at = (row * K + second[:, None]) * N + node[None, :]
    low = tl.load(usual + low_at, there, 0.0)
    high = tl.load(usual + high_at, there, 0.0)
    of_week = _week_part(clock + (window * (T + H) + T) * 3, step, step < H, step_s, PARTS, PART_S)
    factor = tl.load(week + (row * W + of_week[:, None].to(tl.int64)) * N + node[None, :], there, 1.0)
    if HAS_RECENT:
        factor *= tl.load(recent + (window * (T + H) + T + step[:, None]) * N + node[None, :], there, 1.0)
    persists = (power * tl.exp(-(step + 1).to(tl.float32) * step_s / fades_s))[:, None]
    persists += (1 - persists) * tl.load(news + window * N + node, node < N, 0.0)[None, :]
    flow = (low + part[:, None] * (high - low)) * factor * tl.exp(persists * log[None, :])
    low = tl.load(below + low_at, there, 0.0)
    high = tl.load(below + high_at, there, 0.0)
    flow = tl.maximum(flow - (low + part[:, None] * (high - low)), 0.0) * rerouted[None, :]
    tl.store(forecast + (window * H + step[:, None]) * N + node[None, :], flow, there)


def follow(
    tables: DemandTables,
    values: Tensor,
    observed: Tensor,
    clock: Tensor,
    which: Tensor,
    past_on: Tensor | None,
    ahead_on: Tensor | None,
    recent: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`DemandTables.follow` on a GPU."""
    usual = tables.usual
    week = tables.week
    below = tables.below
    is_sensor = tables.is_sensor
    spread = tables.spread
    sensor = tables.sensor
    share = tables.share
    rest = tables.rest
    roads = tables.roads
    (B, T, N) = values.shape
    sizes = {"K": usual.shape[1], "W": week.shape[1]}
    calendar = {"HOURS": HOURS, "PARTS": PARTS, "PART_S": PART_S}
    (L, _, M) = sensor.shape[1:]
    H = clock.shape[1] - T
    given = {"HAS_ROADS": roads is not None, "G": 1 if roads is None else roads.shape[1]}
    given["HAS_RECENT"] = recent is not None
    shares = {"L": L, "BY_ROADS": L > 1 and ahead_on is not None, "M": M, "SENSORS": triton.next_power_of_2(M)}
    roads, past_on, ahead_on, recent = (  # for None, a dummy pointer that no kernel reads
        (which if x is None else x).contiguous() for x in (roads, past_on, ahead_on, recent)
    )
    values, observed, clock = (x.contiguous() for x in (values, observed, clock))
    parts = triton.cdiv(N, NODES)
    grid = parts, B
    past = torch.empty_like(values)
    forecast = values.new_empty(B, H, N)
    about = values.new_empty(B, N, 4)
    counted, expected, ratio, factor, better, news = values.new_empty(6, B, N)
    known = torch.empty(B, N, dtype=torch.int8, device=values.device)
    sums = values.new_empty(B, parts, 2)
    everywhere = values.new_empty(B)
    if not B * N:
        return past, forecast, about
    _compare[grid](
        values,
        observed,
        clock,
        which,
        past_on,
        usual,
        week,
        recent,
        is_sensor,
        roads,
        past,
        counted,
        expected,
        known,
        news,
        sums,
        NEW_ROADS,
        tables.step_s,
        N,
        T=T,
        H=H,
        WIDE=triton.next_power_of_2(T),
        **sizes,
        **given,
        **calendar,
        NODES=NODES,
    )
    _begin[grid](
        counted,
        expected,
        known,
        sums,
        ratio,
        factor,
        everywhere,
        PRIOR_VEHICLES,
        PRIOR_VEHICLES_EVERYWHERE,
        MAX_RATIO,
        N,
        PARTS=parts,
        WIDE=triton.next_power_of_2(parts),
        NODES=NODES,
    )
    for _ in range(STEPS - 1):
        _step[grid](
            factor, ratio, known, everywhere, which, ahead_on, sensor, share, rest, better, N, **shares, NODES=NODES
        )
        factor, better = better, factor
    _ahead[grid](
        factor,
        everywhere,
        clock,
        which,
        ahead_on,
        sensor,
        share,
        rest,
        usual,
        week,
        recent,
        below,
        is_sensor,
        spread,
        roads,
        news,
        forecast,
        about,
        MAX_RATIO,
        tables.power,
        FADES_S,
        tables.step_s,
        N,
        T=T,
        H=H,
        WIDE=triton.next_power_of_2(H),
        **sizes,
        **given,
        **shares,
        **calendar,
        NODES=NODES,
    )
    return past, forecast, about
