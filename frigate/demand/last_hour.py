"""What the latest readings change: today's flow over the usual one, everywhere, from the sensors that were read.

From the trip numbers of the usual hour, a few steps of calibration towards what the sensors counted in the last hour.
A sensor's count is taken relative to its own usual count, and with few vehicles is pulled towards it: a sensor that
counted 3 instead of the usual 1 has said little. A sensor without a reading says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from frigate.demand.calibration import Floats, SensorView
from frigate.demand.estimate import TINY, Demand

MAX_RATIO = 8.0  # today over usual at one sensor: beyond it a broken sensor is likelier than a crowd


@dataclass(frozen=True)
class HourSettings:
    """How far the last hour moves the flow."""

    iterations: int = 3
    prior_vehicles: float = 4.0  # usual vehicles that are counted in beside the real ones
    power: float = 0.75  # of the change that is expected to last through the coming hour


class LastHour:
    """The change of flow that the latest readings tell. Holds what does not change between two calls."""

    def __init__(self, demand: Demand, settings: HourSettings | None = None) -> None:
        self.demand = demand
        self.settings = settings or HourSettings()
        self.views = [SensorView.of(trips, demand.sensors) for trips in demand.sets]
        self.usual_counts = demand.hourly_counts[:, demand.sensors]  # [K,V]

    def change(self, total: Floats, steps: Floats, bins: NDArray[np.int64]) -> NDArray[np.float32]:
        """[W,N] what the usual flow is multiplied by, for W windows at once.

        Parameters
        ----------
        total
            [W,V] vehicles that each sensor counted in the window.
        steps
            [W,V] snapshots of the window in which it was read.
        bins
            [W] kind of day and hour of the window.
        """
        usual = self.usual_counts[bins] * steps  # [W,V]
        prior = self.settings.prior_vehicles
        ratio = np.clip((total + prior) / (usual + prior), 1 / MAX_RATIO, MAX_RATIO).T  # [V,W]
        logs = np.zeros((len(bins), self.demand.node_flow.shape[1]), np.float32)
        for trips, view, numbers in zip(self.demand.sets, self.views, self.demand.trips, strict=True):
            before = numbers[:, bins]
            target = (view.by_sensor @ before) * ratio
            after = view.calibrate(before, target, iterations=self.settings.iterations, observed=(steps > 0).T)
            through = trips.through_node.T
            logs += np.log(np.maximum(through @ after, TINY)).T - np.log(np.maximum(through @ before, TINY)).T
        change: NDArray[np.float32] = np.exp(self.settings.power / len(self.views) * logs)
        return change
