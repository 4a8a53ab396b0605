"""The kernels against the reference in fp64, and a recorded training step against an unrecorded one, without pytest.

    python -m tests.nn.gpu_check [cuda]

For a bare GPU machine: it needs what the compute path needs. Prints one line a check; status 1 where one fails.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from frigate.bench.synthetic import Size, synthetic_demand, synthetic_run
from frigate.config import change, preset
from frigate.demand.tables import DemandTables
from frigate.nn.batch import Batch
from frigate.nn.device import autocast
from frigate.nn.forecast_model import ForecastModel
from frigate.nn.ops import describe_kernels, use_kernels
from frigate.nn.ops.cuda.demand_kernels import follow
from frigate.nn.windows import Windows
from frigate.training.run import RunOnCity
from frigate.training.trainer import Trainer

FLOOR = 1e-3  # beside twice what the reference in the same number type is away: rounding turns relus on and off
BASELINES = ("dcrnn", "stgcn", "stgode")  # which use sparse sums


def main(device: str = "cuda") -> int:
    print(f"{device}: {describe_kernels(torch.device(device))}")
    failed = [check(name, torch.device(device)) for name in ("paper", "default", *BASELINES)]
    return int(any([*failed, demand_differs(torch.device(device))]))


def check(name: str, device: torch.device) -> bool:
    still = {"dropout": 0.0, "edge_dropout": 0.0} if name == "default" else {}
    run = synthetic_run(change(preset(name), {"train": {"batch_size": 4}, "model": still}), Size("300", 300, 700))
    data = run.windows("cpu")
    batch = data.batch(np.array([60, 90, 120, 150]), past=12, horizon=12, inputs=torch.from_numpy(run.split.seen))
    exact = in_double(batch)
    wanted = forecast_and_gradients(copy.deepcopy(run.model).double(), exact, "reference")
    there = run.windows(device)
    here = there.batch(
        np.array([60, 90, 120, 150]), past=12, horizon=12, inputs=torch.from_numpy(run.split.seen).to(device)
    )
    by_kernels, by_reference = (
        forecast_and_gradients(copy.deepcopy(run.model).to(device), here, kernels) for kernels in ("auto", "reference")
    )
    failed = False
    for what, exact_value in wanted.items():
        off = far(by_kernels[what], exact_value)
        plain = far(by_reference[what], exact_value)
        failed |= not off <= 2 * plain + FLOOR
        print(f"{name}: {what} {off:.2g} from the reference in fp64, the reference in this type {plain:.2g}")
    return failed | (device.type == "cuda" and name in ("paper", "default") and recording_differs(run, there))


def demand_differs(device: torch.device) -> bool:
    """Whether the kernels of demand follow readings in another way than torch's operations."""
    run = synthetic_run(change(preset("default"), {"train": {"batch_size": 4}}), Size("300", 300, 700))
    batch = run.windows(device).batch(
        np.array([60, 90, 120]), past=12, horizon=12, inputs=torch.from_numpy(run.split.seen).to(device)
    )
    tables = synthetic_demand(300, seed=0, device=device)
    which = torch.zeros(3, dtype=torch.int64, device=device)
    roads = 2 * torch.rand(1, 2, 300, generator=torch.Generator().manual_seed(0)).to(device)
    roads[:, 0], roads[:, 1, ::5] = 1.0, 0.0  # the usual ones; a closed one
    on = torch.arange(12, device=device).expand(3, -1) % 2, torch.arange(3, device=device) % 2
    off = []
    clock = torch.cat([batch.time_past, batch.time_future], dim=1)
    for table, *others in ((tables, None, None), (replace(tables, roads=roads), *on)):
        asked = table, batch.values, batch.observed, clock, which, *others
        made = follow(*asked)
        plain = DemandTables.follow(*asked)
        off += [far(one, other) for one, other in zip(made, plain, strict=True)]
    print(f"demand: kernels {max(off):.2g} from torch's operations (limit 1e-05)")
    return not max(off) <= 1e-5


def recording_differs(run: RunOnCity, data: Windows) -> bool:
    """Whether a recorded step has other gradients than the same step unrecorded."""
    found = []
    for recorded in (False, True):
        model = copy.deepcopy(run.model).to(data.device).train()
        model.supports_recording = recorded
        trainer = Trainer(replace(run, run=replace(run.run, model=model)), data)
        for _ in range(2):  # the second time the step is replayed
            inputs = trainer.inputs
            batch = data.batch(trainer.train_at[:4], past=12, horizon=12, inputs=inputs)
            weight = torch.ones(4, 1, device=data.device) * inputs
            loss = trainer._gradients(batch, weight, trainer._cells(batch, weight))
        assert (trainer.recorded is not None) == recorded
        found.append(
            torch.cat([loss.reshape(1), *(p.grad.flatten() for p in model.parameters() if p.grad is not None)])
        )
    off = far(found[1], found[0])
    print(f"{run.settings.model.preset}: a recorded step {off:.2g} from an unrecorded one (limit 0.001)")
    return not off <= 1e-3


def forecast_and_gradients(model: ForecastModel, batch: Batch, kernels: str) -> dict[str, Tensor]:
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.train()  # or cuDNN keeps nothing for backward; they have no dropout
    with autocast(batch.values.device), use_kernels(kernels):
        forecast = model(batch)
    above = torch.randn(forecast.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (forecast * above.to(forecast)).sum().backward()
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return {"forecast": forecast.detach() - model.value_offset, "gradients": torch.cat(grads)}


def in_double(batch: Batch) -> Batch:
    def double(each: Tensor) -> Tensor:
        return each.double() if each.is_floating_point() else each

    topologies = tuple(type(t)(*(double(each) for each in vars(t).values())) for t in batch.topologies)
    return replace(batch.with_tensors([double(each) for each in batch.tensors]), topologies=topologies)


def far(found: Tensor, wanted: Tensor) -> float:
    return float((found.double().cpu() - wanted.double().cpu()).norm() / wanted.double().norm().cpu())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
