"""What share of a node's vehicles passes each sensor, and the change of flow everywhere that readings imply.

If a
sensor counts half as much again as usual, then so do, at every node, the vehicles that pass it. That is one step of
the calibration (`calibration`) from the usual trip numbers, written as a weighted mean over the sensors; it costs one
gather, so it is done for every kind of day and hour, at every tick of a live forecast and in every training step.
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

MAX_SENSORS = 32  # of a node: more are no better
MIN_SHARE = 0.002  # of a node's vehicles
STEPS = 6  # towards the readings


@dataclass(frozen=True)
class SensorShares:
    """The sensors that the vehicles of each of N nodes pass: at most M, those of the largest shares."""

    sensor: NDArray[np.int32]  # [N,M] rows of nodes
    share: NDArray[np.float32]  # [N,M] of the node's vehicles; the shares and `rest` sum to 1
    rest: NDArray[np.float32]  # [N] share of the vehicles that pass no sensor


def find_sensor_shares(
    sets: Iterable[tuple[csr_array, SensorView, NDArray[np.floating]]], sensors: NDArray[np.bool_]
) -> SensorShares:
    """The mean over route sets.

    A set is the nodes that its trips pass [R,N], what the sensors see of them, and the trip numbers [R].
    """
    rows, N = np.flatnonzero(sensors), len(sensors)
    total, count = csr_array((N, len(rows)), dtype=np.float32), 0
    for through_node, view, numbers in sets:
        flow = np.maximum(through_node.T @ numbers, 1e-12)
        weighted = diags_array(numbers * view.per_trip[:, 0]) @ view.at_sensor
        shares = csr_array(diags_array((1 / flow).astype(np.float32)) @ (through_node.T.tocsr() @ weighted))
        shares.data[shares.data < MIN_SHARE] = 0
        shares.eliminate_zeros()
        total, count = csr_array(total + shares), count + 1
    total.data /= max(count, 1)
    node = np.repeat(np.arange(N), np.diff(total.indptr))
    order = np.lexsort((-total.data, node))
    rank = np.arange(len(node)) - total.indptr[node]
    kept = rank < MAX_SENSORS
    node, rank, order = node[kept], rank[kept], order[kept]
    sensor, share = np.zeros((N, MAX_SENSORS), np.int32), np.zeros((N, MAX_SENSORS), np.float32)
    sensor[node, rank] = rows[total.indices[order]]
    share[node, rank] = total.data[order]
    all_shares = np.minimum(np.asarray(total.sum(axis=1)).ravel(), 1)
    share *= (all_shares / np.maximum(share.sum(1), 1e-9))[:, None]
    return SensorShares(sensor, share, (1 - all_shares).astype(np.float32))


def propagate(
    ratio: Tensor, known: Tensor, *, sensor: Tensor, share: Tensor, rest: Tensor, everywhere: Tensor
) -> tuple[Tensor, Tensor]:
    """The change of flow at every node from that at the sensors.

    Parameters
    ----------
    ratio
        [B,N] what each sensor counted over what it usually counts.
    known
        [B,N] the sensors that were read. One that was not says nothing: its own change is estimated like any node's.
    sensor, share, rest
        Those of `SensorShares`: [N,M], [N,M] and [N], or one for each of the B windows.
    everywhere
        [B,1] the change of vehicles that pass no sensor.

    Returns
    -------
    change, factor
        [B,N] of the flow of each node; and of the vehicles that pass each sensor, on account of it alone.
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
