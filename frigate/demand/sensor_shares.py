"""The share of each node's vehicles that pass each sensor, and the change of flow everywhere that readings imply.

If a sensor counts 50 % more than usual, the vehicles that pass it are scaled by 1.5 at every node. This is a step of
the calibration (`calibration`) from the usual trip flows, written as a weighted mean over the sensors. A step costs
one gather, cheap enough for every kind of day and hour, every tick of a live forecast and every training step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array
from torch import Tensor

from frigate.demand.calibration import SensorView

MAX_SENSORS = 32  # per node: more do not help
MIN_SHARE = 0.002  # of a node's vehicles
STEPS = 6  # calibration steps towards the readings


@dataclass(frozen=True)
class SensorShares:
    """For each of N nodes, the sensors that its vehicles pass: at most M, those with the largest shares.

    Vehicles that pass several sensors are split evenly between them.
    """

    sensor: NDArray[np.int32]  # [N,M] rows of nodes
    share: NDArray[np.float32]  # [N,M] of the node's vehicles; the shares and `rest` sum to 1
    rest: NDArray[np.float32]  # [N] share of vehicles that pass no sensor


def find_sensor_shares(
    sets: Iterable[tuple[csr_array, SensorView, NDArray[np.floating]]], sensors: NDArray[np.bool_]
) -> SensorShares:
    """The sensor shares, averaged over route sets.

    Each set consists of the trips' node incidence [R,N], their sensor view, and the trip flows [R].
    """
    rows = np.flatnonzero(sensors)
    N = len(sensors)
    total = csr_array((N, len(rows)), dtype=np.float32)
    count = 0
    for through_node, view, numbers in sets:
        flow = np.maximum(through_node.T @ numbers, 1e-12)
        weighted = diags_array(numbers * view.per_trip[:, 0]) @ view.at_sensor
        shares = csr_array(diags_array((1 / flow).astype(np.float32)) @ (through_node.T.tocsr() @ weighted))
        shares.data[shares.data < MIN_SHARE] = 0
        shares.eliminate_zeros()
        total = csr_array(total + shares)
        count = count + 1
    total.data /= max(count, 1)
    node = np.repeat(np.arange(N), np.diff(total.indptr))
    order = np.lexsort((-total.data, node))
    rank = np.arange(len(node)) - total.indptr[node]
    kept = rank < MAX_SENSORS
    node = node[kept]
    rank = rank[kept]
    order = order[kept]
    sensor = np.zeros((N, MAX_SENSORS), np.int32)
    share = np.zeros((N, MAX_SENSORS), np.float32)
    sensor[node, rank] = rows[total.indices[order]]
    share[node, rank] = total.data[order]
    all_shares = np.minimum(np.asarray(total.sum(axis=1)).ravel(), 1)
    share *= (all_shares / np.maximum(share.sum(1), 1e-9))[:, None]
    return SensorShares(sensor, share, (1 - all_shares).astype(np.float32))


def propagate(
    ratio: Tensor, known: Tensor, *, sensor: Tensor, share: Tensor, rest: Tensor, everywhere: Tensor
) -> tuple[Tensor, Tensor]:
    """The change of flow at every node, from the change at the sensors.

    Parameters
    ----------
    ratio
        [B,N] current count / usual count at each sensor.
    known
        [B,N] the sensors with readings. The change at any other sensor is estimated as at a node without one.
    sensor, share, rest
        As in `SensorShares`: [N,M], [N,M] and [N], optionally with a leading dimension of B windows.
    everywhere
        [B,1] the change of vehicles that pass no sensor.

    Returns
    -------
    change, factor
        [B,N] the change of flow at each node; and each sensor's own factor for the vehicles that pass it.
    """
    index = sensor.expand(len(ratio), *sensor.shape[-2:]).flatten(1).long()

    elsewhere = rest * everywhere

    def flow(factor: Tensor) -> Tensor:
        return (factor.gather(1, index).view(len(ratio), *share.shape[-2:]) * share).sum(-1) + elsewhere

    factor = ratio.where(known, everywhere)
    for _ in range(STEPS - 1):
        made = flow(factor)
        factor = torch.where(known, factor * ratio / made.clamp(min=1e-3), made)
    return flow(factor), factor
