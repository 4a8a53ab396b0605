"""Forecast with a run at one point in time: for the run's city or another, optionally with roads closed or added.

A forecast made at time X reads only snapshots that are complete at X.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from frigate.city.city import City
from frigate.city.network import SAME_PLACE_M, Road, RoadNetwork
from frigate.city.periods import When
from frigate.city.stream import RoadNetworkStream
from frigate.forecasting.forecaster import Forecaster
from frigate.forecasting.plan import RoadChange
from frigate.forecasting.result import Forecast
from frigate.training.run import Run


def forecast(
    run: Run,
    network: RoadNetwork | None = None,
    stream: RoadNetworkStream | City | None = None,
    *,
    at: When | None = None,
    close: Sequence[str | Road] = (),
    add: Sequence[str | Road] = (),
    changes: Sequence[RoadChange] = (),
    past: int | None = None,
    horizon: int | None = None,
    level: float | None = None,
    sensors: Literal["seen", "all"] = "seen",
    device: str | None = None,
    memory_gb: float | None = None,
) -> Forecast:
    """Forecast every node of a network for the `horizon` steps after `at`.

    Parameters
    ----------
    run : Run
        The trained model.
    network : RoadNetwork, optional
        The roads from the time of the forecast on. Note that `city.network` has the roads of the last snapshot; for an
        earlier time, use `close` and `add`, which start from the roads of that time. Default: the roads as recorded,
        each change from its time on.
    stream : RoadNetworkStream or City, optional
        The readings, of this or another city. Default: the city the run was trained on, from its folder.
    at : datetime, text or seconds since 1970 UTC, optional
        Only snapshots complete at this time are read. Text is ISO-8601, in the city's time zone if it names none, or a
        time from the end of the stream on: "08:00", "tomorrow 08:00" or "monday 08:00". Up to 14 days after the end.
        Default: the end of the stream.
    close, add : sequence of "A,B" or (A, B)
        One-way roads to close and to add ("A,B,120" gives the length in metres) from the time of the forecast on,
        relative to `network` or to the roads as recorded.
    changes : sequence of RoadChange
        Roads to close and to add from a time until another.
    past, horizon : int, optional
        Number of snapshots to read and steps to forecast. Default: as in training.
    level : float, optional
        Also give intervals (`Forecast.lower`, `Forecast.upper`) that hold the true value at this percentage of places
        and hours, such as 90. They were measured when training ended. Default: none.
    sensors : "seen" or "all"
        "all" also reads the nodes held out for testing (unseen in the run's split).
    device : str, optional
        "cpu" or "cuda". Default: cuda if available.
    memory_gb : float, optional
        Memory limit for activations; a network that needs more is forecast in blocks of nodes, with the same result up
        to rounding. Default: 4 on a CPU, most of the free memory on a GPU.

    Returns
    -------
    Forecast
        In the unit of the readings the model was trained on.
    """
    forecaster, roads = ask(run, network, stream, sensors=sensors, device=device, memory_gb=memory_gb)
    return forecaster.forecast(
        at, close=close, add=add, changes=changes, past=past, horizon=horizon, level=level, **roads
    )


def ask(
    run: Run, network: RoadNetwork | None, source: RoadNetworkStream | City | None, **options: Any
) -> tuple[Forecaster, dict[str, Any]]:
    """The forecaster to ask, and the roads ahead to ask it for.

    A network with other nodes than the city's is a city of its own, with the readings of the nodes they share.
    """
    source = run.open_city() if source is None else source
    stream = source.stream if isinstance(source, City) else source
    if network is None or np.array_equal(network.same_nodes(stream.network), np.arange(stream.num_nodes)):
        return Forecaster(run, source, **options), {"network": network}
    forecaster = Forecaster(run, stream.on(network), **options)
    forecaster.notices += _left_out(stream, network)
    forecaster.city = source if isinstance(source, City) else None
    return forecaster, {}


def _left_out(window: RoadNetworkStream, network: RoadNetwork) -> list[str]:
    column = network.same_nodes(window.networks[0])
    there = np.isin(np.arange(window.num_nodes), column[network.present])
    lost = int((window.sensors & ~there).sum())
    all_ = int(window.sensors.sum())
    where = f"are not on this network, by id and place (within {SAME_PLACE_M:g} m)"
    return [f"{lost} of {all_} nodes with readings {where}: left out."] if lost else []
