"""The kernels with which demand follows a window's readings compute what the plain torch operations do."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from frigate.calendar import BINS, WEEK_PARTS
from frigate.demand.tables import DemandTables
from frigate.nn.batch import Batch
from tests.support.kernels import device_for
from tests.support.towns import following

DEMANDS, TOPOLOGIES = 3, 4


def clock_of(seconds: Tensor, weekend: Tensor) -> Tensor:
    """[...,3] of seconds since midnight."""
    weekday = torch.where(weekend, 5 + seconds % 2, seconds % 5)
    return torch.stack([seconds, weekday, weekend.long()], dim=-1)


def tables(nodes: int, sensors: int, *, networks: int, roads: bool, step_s: int = 300, device: str) -> DemandTables:
    rng = torch.Generator().manual_seed(nodes)
    share = torch.rand(DEMANDS, networks, nodes, sensors, generator=rng)
    made = DemandTables(
        usual=20 * torch.rand(DEMANDS, BINS, nodes, generator=rng),
        week=0.5 + torch.rand(DEMANDS, WEEK_PARTS, nodes, generator=rng),
        is_sensor=torch.rand(DEMANDS, nodes, generator=rng) < 0.4,
        spread=torch.rand(DEMANDS, nodes, generator=rng),
        sensor=torch.randint(nodes, share.shape, generator=rng, dtype=torch.int32),
        share=0.7 * share / share.sum(-1, keepdim=True),
        rest=0.3 * torch.rand(DEMANDS, networks, nodes, generator=rng),
        roads=2 * torch.rand(DEMANDS, TOPOLOGIES, nodes, generator=rng) if roads else None,
        below=3 * torch.rand(DEMANDS, BINS, nodes, generator=rng),
        power=0.7,
        step_s=step_s,
    )
    if made.roads is not None:
        made.roads[:, 1:, ::6], made.roads[:, 1:, 1::6] = 0.0, 1.0  # closed, and as usual
        made.roads[:, 1:, 2::6] = 1.02
    tensors: dict[str, Any] = {
        name: value.to(device) for name, value in vars(made).items() if isinstance(value, Tensor)
    }
    return replace(made, **tensors)


def windows(count: int, past: int, horizon: int, nodes: int, device: str) -> Batch:
    """Readings from nothing to far beyond what a ratio may be; a value that was not read is none."""
    rng = torch.Generator().manual_seed(past)
    observed = torch.rand(count, past, nodes, generator=rng) < 0.6
    observed[:, :, ::5] = False
    values = torch.poisson(torch.rand(count, past, nodes, generator=rng) ** 8 * 4000, generator=rng)
    times = torch.randint(86_400, (count, past + horizon), generator=rng)
    clock = clock_of(times, torch.rand(times.shape, generator=rng) < 0.3).to(device)
    return Batch(
        values=values.where(observed, torch.nan).to(device),
        observed=observed.to(device),
        time_past=clock[:, :past],
        time_future=clock[:, past:],
        topologies=(),
        topology_of=torch.zeros(count, past, dtype=torch.int64),
    )


def compare(table: DemandTables, batch: Batch, *on: Tensor, recent: Tensor | None = None) -> tuple[Tensor, ...]:
    from frigate.nn.ops.cuda.demand_kernels import follow

    which = [k % DEMANDS for k in range(batch.num_windows)]
    names = ("usual_past", "demand", "demand_node")
    told = (following(table, batch, which, *on, by=by, recent=recent) for by in (follow, DemandTables.follow))
    made, plain = (tuple(getattr(each, name) for name in names) for each in told)
    for name, a, b in zip(names, made, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5, msg=partial("{}: {}".format, name))
    return made


@pytest.mark.parametrize(("networks", "roads"), list(product((1, TOPOLOGIES), (False, True))))
def test_the_kernels_follow_readings_as_torch_does(networks: int, roads: bool) -> None:
    device = device_for("triton")
    batch = windows(4, 5, 7, 150, device)
    table = tables(150, 6, networks=networks, roads=roads, device=device)
    rng = torch.Generator().manual_seed(1)
    on = torch.randint(TOPOLOGIES, (4, 6), generator=rng).to(device)
    _, forecast, about = compare(table, batch, on[:, :5], on[:, 5])
    assert forecast.isfinite().all() and about[..., 0].std() > 0.1
    if not roads:
        compare(table, batch)  # of one network nothing need be said


def test_days_unlike_the_usual_ones_are_compared_with_what_is_usual_now() -> None:
    device = device_for("triton")
    batch = windows(4, 5, 7, 150, device)
    table = tables(150, 6, networks=1, roads=False, device=device)
    recent = 0.5 + torch.rand(4, 12, 150, generator=torch.Generator().manual_seed(2)).to(device)
    past, forecast, _ = compare(table, batch, recent=recent)
    usual, as_usual, _ = compare(table, batch)
    torch.testing.assert_close(past, usual * recent[:, :5])
    assert not torch.allclose(forecast, as_usual)


def test_windows_without_a_reading_have_the_usual_flow() -> None:
    device = device_for("triton")
    batch = windows(2, 3, 4, 70, device)
    batch = replace(batch, observed=torch.zeros_like(batch.observed))
    table = tables(70, 32, networks=1, roads=False, device=device)
    _, _, about = compare(replace(table, rest=1 - table.share.sum(-1)), batch)
    torch.testing.assert_close(about[..., 0], torch.zeros_like(about[..., 0]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("step_s", [60, 300, 3600, 86_400])
def test_every_time_of_day_falls_between_the_same_hours(step_s: int) -> None:
    device = device_for("triton")
    seconds = torch.arange(0, 86_400, 37).unfold(0, 389, 389)  # [6,389]
    weekend = torch.arange(len(seconds))[:, None].expand_as(seconds) % 2 == 0
    clock = clock_of(seconds, weekend).to(device)
    batch = replace(windows(len(seconds), 389, 389, 1, device), time_past=clock, time_future=clock)
    compare(tables(1, 1, networks=1, roads=False, step_s=step_s, device=device), batch)
