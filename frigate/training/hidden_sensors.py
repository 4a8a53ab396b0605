"""Sensors to hide in each training window, so that the model learns to forecast at nodes without a sensor.

Nodes with the same detector (`Detectors.together`) are hidden together, as in the split: one would reveal the other.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from frigate.draws import Draw, generator, keys_of
from frigate.errors import SettingsError
from frigate.nn.windows import Windows
from frigate.roads.nearest_sensors import sensors_around, uncovered_share
from frigate.training.run import RunOnCity

MAX_AREAS = 0.25  # largest share of the masks that hide a whole area
KEPT_OUT = 40  # sensors in no loss
KEPT_OUT_SHARE = (0.1, 0.2)  # their least and largest share of all


def draw_hidden(
    rng: np.random.Generator,
    sensors: NDArray[np.bool_],
    windows: int,
    hide: tuple[float, float],
    together: NDArray[np.int64] | slice = slice(None),
) -> NDArray[np.bool_]:
    """[B,N] the sensors hidden in each window: first draw a share for the window, then sensors at random.

    `together` [N] are the nodes whose draws count, as in `Detectors.together`; default: each its own.
    """
    share = rng.uniform(*hide, size=(windows, 1))
    return (rng.random((windows, len(sensors)))[:, together] < share) & sensors


def training_masks(run: RunOnCity) -> NDArray[np.bool_]:
    """[C,N] the masks of hidden sensors for training with demand, from few hidden to many; none without a step to take.

    Masks imitate how sensors are missing in the city: scattered and, if it has areas without sensors, whole areas too.
    """
    train = run.settings.train
    sensors = run.split.training
    network = run.city.network
    together = run.city.detectors.together(network.num_nodes)
    rng = generator(train.seed, Draw.HIDDEN_SETS)
    shares = np.linspace(*train.hide, train.masks)
    masks = (rng.random((train.masks, len(sensors)))[:, together] < shares[:, None]) & sensors
    areas = round(train.masks * min(MAX_AREAS, uncovered_share(network, sensors, rng)))
    every = train.masks // max(1, areas)
    for k in range((every - 1) // 2, every * areas, every):
        around = sensors_around(network, sensors, int(rng.choice(np.flatnonzero(sensors))), shares[k])
        masks[k] = np.isin(together, together[around]) & sensors
    return masks if train.epochs else masks[:0]


def kept_out_sensors(run: RunOnCity) -> NDArray[np.bool_]:
    """[N] training sensors that are in no loss: they show what the learned correction is worth at other places.

    Each of them is read like any sensor, except where it is scored.
    """
    sensors = run.split.training
    network = run.city.network
    by_key = np.argsort(keys_of(network.node_ids), kind="stable")
    rows = by_key[sensors[by_key]]
    together = run.city.detectors.together(network.num_nodes)
    share = float(np.clip(KEPT_OUT / max(len(rows), 1), *KEPT_OUT_SHARE))
    drawn = generator(run.settings.train.seed, Draw.KEPT_OUT).permutation(rows)[: round(share * len(rows))]
    kept_out: NDArray[np.bool_] = np.isin(together, together[drawn]) & sensors
    return kept_out


def middle_mask(masks: NDArray[np.bool_]) -> int:
    """The middle one of the masks [C,N] that hide any sensor."""
    some = np.flatnonzero(masks.any(1))
    if len(some) == 0:
        raise SettingsError("no sensor is ever hidden. Raise hide, or use validation = seen")
    return int(some[len(some) // 2])


def training_windows(run: RunOnCity, device: torch.device | str) -> Windows:
    """The city for training: with one demand per mask of hidden sensors, then those without the sensors kept out, and
    of all training nodes.
    """
    if run.scaling.demand is None:
        return run.windows(device)
    hidden = [*training_masks(run), kept_out_sensors(run)]
    return run.windows(device, sensors=[*(run.split.training & ~np.array(hidden)), run.split.training])
