"""The fused decoder against the loop, values, all gradients and dropout; when it is used; and the model through both.

Without a GPU Triton interprets the kernels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from frigate.nn.batch import Batch
from frigate.nn.calendar import calendar
from frigate.nn.model import MLP, Frigate
from frigate.nn.ops import CPU, REFERENCE, Backend, use_kernels
from frigate.nn.ops.cuda import CudaBackend, decoder_fits, encoder_fits, suits_matrix_units
from tests.support.kernels import seeded
from tests.support.towns import (
    PRESETS,
    build_model,
    in_float64,
    make_town,
    random_network,
    random_stream,
    small_settings,
    windows_on,
)

INPUTS = ("h_0", "c_0", "y_0", "prior", "w_ih", "w_hh", "b_ih", "b_hh", "w1", "b1", "w2", "b2")
BF16 = {"y": 0.003} | dict.fromkeys(INPUTS, 0.012)  # ||difference|| / ||reference||, the reference in fp64


def loop(
    hidden: Tensor,
    cell: Tensor,
    y: Tensor,
    prior: Tensor,
    known: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    *,
    kept: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """The decoder step by step, with a given dropout mask [H,R,hidden]."""
    steps = []
    y = y.reshape(-1, 1)
    for k in range(known.shape[1]):
        inputs = torch.cat([y, known[:, k].repeat(len(hidden) // len(known), 1)], dim=-1)
        hidden, cell = torch.lstm_cell(inputs, (hidden, cell), w_ih, w_hh, b_ih, b_hh)
        z = torch.relu(nn.functional.linear(torch.cat([hidden, cell, prior], dim=-1), w1, b1))
        if kept is not None:
            z = z * kept[k] / (1 - dropout)
        y = nn.functional.linear(z, w2, b2)
        steps.append(y)
    return torch.cat(steps, dim=-1)


def run_decoder(*inputs: Tensor, **options: Any) -> Tensor:
    from frigate.nn.ops.cuda import decoder  # needs Triton

    return decoder.run_decoder(*inputs, **options)


Sizes = tuple[int, int, int, int, int, int, int]  # N, B, H, D, C, P, hidden
SIZES: dict[str, Sizes] = {
    "paper": (9, 4, 3, 64, 0, 32, 32),
    "default": (7, 5, 4, 64, 5, 32, 32),
    "odd": (11, 3, 3, 48, 2, 7, 20),
    "one": (1, 1, 1, 16, 14, 1, 3),
    "wide": (5, 4, 2, 128, 1, 40, 64),
}


def draw(sizes: Sizes, kind: torch.dtype, device: str, *, seed: int = 0) -> tuple[list[Tensor], Tensor]:
    """The inputs in INPUTS's order, rounded to `kind`; and `known`."""
    N, B, H, D, C, P, hidden = sizes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        cell = nn.LSTMCell(1 + C, D)
        mlp = MLP(2 * D + P, hidden, 1)
    data = seeded(seed, (N * B, D), (N * B, D), (N * B,), (N * B, P), (B, H, C), device=device)
    weights = [weight.detach() for weight in (*cell.parameters(), *mlp.parameters())]
    *tensors, known = (each.to(device, kind) for each in (*data[:4], *weights, data[4]))
    return tensors, known


def call(function: Callable[..., Tensor], tensors: list[Tensor], known: Tensor, **options: Any) -> Tensor:
    return function(*tensors[:4], known, *tensors[4:], **options)


def both(
    sizes: Sizes, kind: torch.dtype, device: str, *, dropout: float, clear: bool = False
) -> list[tuple[str, Tensor, Tensor]]:
    """(name, ours, reference) of y and all gradients. `clear`: hidden units well away from relu's corner."""
    from tests.support.decoder_mask import dropout_mask

    N, B, H, *_, hidden = sizes
    tensors, known = draw(sizes, kind, device)
    if clear:
        tensors[9][::2], tensors[9][1::2] = 3.0, -3.0  # b1
    (up,) = seeded(1, (N * B, H), device=device)
    seed = torch.tensor([12345], device=device)
    kept = dropout_mask(seed, horizon=H, rows=N * B, hidden=hidden, dropout=dropout) if dropout else None

    theirs = [each.double().requires_grad_() for each in tensors]
    y = call(loop, theirs, known.double(), kept=kept, dropout=dropout)
    expected = [y, *torch.autograd.grad(y, theirs, up)]
    mine = [each.clone() if i < 4 else each.float() for i, each in enumerate(tensors)]  # fp32 weights, as in use
    mine = [each.requires_grad_() for each in mine]
    y = call(run_decoder, mine, known, dropout=dropout, seed=seed)
    ours = [y, *torch.autograd.grad(y, mine, up.float())]
    for got, given in zip(ours[1:], mine, strict=True):
        assert got.dtype == given.dtype
        assert got.shape == given.shape
    return [(n, a.detach().double(), b.detach()) for n, a, b in zip(("y", *INPUTS), ours, expected, strict=True)]


def check_fp32(sizes: Sizes, device: str, *, dropout: float) -> None:
    for part, ours, expected in both(sizes, torch.float32, device, dropout=dropout):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4, msg=partial("{}: {}".format, part))
        assert (ours - expected).norm() <= 2e-5 * expected.norm(), part


@pytest.mark.parametrize(
    ("name", "dropout"),
    [
        ("paper", 0.0),
        pytest.param("paper", 0.3, marks=pytest.mark.slow),
        pytest.param("default", 0.0, marks=pytest.mark.slow),
        ("default", 0.3),
        pytest.param("odd", 0.0, marks=pytest.mark.slow),
        ("odd", 0.3),
        ("one", 0.0),
        ("one", 0.3),
        pytest.param("wide", 0.0, marks=pytest.mark.slow),
        ("wide", 0.3),
    ],
)
def test_fp32(name: str, dropout: float, device: str) -> None:
    check_fp32(SIZES[name], device, dropout=dropout)


@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.slow), 0.2])
def test_bf16(dropout: float, device: str) -> None:
    """At relu's corner a rounding would turn units on and off, here as in torch."""
    for part, ours, expected in both((12, 3, 5, 64, 5, 32, 32), torch.bfloat16, device, dropout=dropout, clear=True):
        assert far(ours, expected) <= BF16[part], part


def far(ours: Tensor, expected: Tensor) -> float:
    return float((ours.detach().double() - expected).norm() / expected.norm())


def test_mask(device: str) -> None:
    """Its share, its change with the seed, and no pattern over rows, steps or units."""
    from tests.support.decoder_mask import dropout_mask

    def mask(seed: int) -> Tensor:
        given = torch.tensor([seed], device=device)
        return dropout_mask(given, horizon=4, rows=200, hidden=32, dropout=0.2).double()

    first = mask(1)
    second = mask(2)
    assert torch.equal(first, mask(1))
    n = first.numel()
    assert abs(first.mean() - 0.8) < 4 * (0.16 / n) ** 0.5
    assert abs((first * second).mean() - 0.64) < 4 * (0.25 / n) ** 0.5
    for axis in range(3):
        left = first.narrow(axis, 0, first.shape[axis] - 1)
        right = first.narrow(axis, 1, first.shape[axis] - 1)
        assert abs((left * right).mean() - 0.64) < 4 * (0.25 / left.numel()) ** 0.5


def test_gradient_by_differences(device: str) -> None:
    """Dropout's mask is the same forward and backward: the slope along a random direction is the gradient's."""
    tensors, known = draw((6, 2, 3, 16, 3, 8, 16), torch.float32, device, seed=4)
    options = {"seed": torch.tensor([7], device=device), "dropout": 0.5}
    mine = [each.clone().requires_grad_() for each in tensors]
    y = call(run_decoder, mine, known, **options)
    up, *direction = (each.float() for each in seeded(5, y.shape, *(each.shape for each in tensors), device=device))
    given = sum((g * d).sum() for g, d in zip(torch.autograd.grad(y, mine, up), direction, strict=True))
    step = 3e-4
    with torch.no_grad():
        ahead, behind = (
            call(run_decoder, [a + s * d for a, d in zip(tensors, direction, strict=True)], known, **options)
            for s in (step, -step)
        )
        slope = ((ahead - behind) * up).sum() / (2 * step)
    assert abs(float(slope) - float(given)) < 5e-3 * max(1.0, abs(float(given)))


def test_without_gradient_is_the_same(device: str) -> None:
    tensors, known = draw((5, 3, 3, 32, 2, 8, 16), torch.float32, device)
    seed = torch.tensor([3], device=device)
    y = call(run_decoder, [each.clone().requires_grad_() for each in tensors], known, dropout=0.2, seed=seed)
    with torch.no_grad():
        again = call(run_decoder, tensors, known, dropout=0.2, seed=seed)
        other = call(run_decoder, tensors, known, dropout=0.2)  # draws its own seed
    assert y.requires_grad and not again.requires_grad
    assert torch.equal(y, again)
    assert not torch.equal(y, other)


# The model through the kernels, and through torch.

IN_SHORT = [("default", 16, torch.float32), ("paper", 64, torch.bfloat16)]


def small_model(name: str, width: int, *, device: str = "cpu") -> tuple[Frigate, Batch]:
    stream = random_stream([random_network(9, seed=1)], seed=1)
    town = make_town(stream, small_settings(name, layers=1, width=width))
    windows = windows_on(stream, town.topologies, device)
    inputs = torch.ones(9, dtype=torch.bool, device=device)
    batch = windows.batch(np.array([9, 12, 20]), past=4, horizon=3, inputs=inputs)
    return build_model(town.settings, town.scaling).to(device), batch


def forecast_and_gradients(model: Frigate, batch: Batch, z: Tensor, backend: Backend) -> dict[str, Tensor]:
    """From the encodings of the snapshots; of a random linear function of the forecast."""
    z = z.detach().requires_grad_()
    with use_kernels(backend):
        forecast = model.forecast_from(batch, z)
    before = ("length", "embedding", "convolutions")  # what made z
    leaves = {"z": z} | {name: p for name, p in model.named_parameters() if not name.startswith(before)}
    (up,) = seeded(2, forecast.shape, device=str(z.device))
    grads = torch.autograd.grad(forecast, list(leaves.values()), up.to(forecast.dtype))
    return {"forecast": forecast.detach().double()} | dict(zip(leaves, (g.double() for g in grads), strict=True))


@pytest.mark.parametrize(
    ("name", "width", "kind"),
    [
        pytest.param(name, width, kind, marks=() if (name, width, kind) in IN_SHORT else pytest.mark.slow)
        for name in PRESETS
        for width in (16, 64)
        for kind in (torch.float32, torch.bfloat16)
    ],
)
def test_model(name: str, width: int, kind: torch.dtype, device: str) -> None:
    """In 16 bits with hidden units away from relu's corner, and weights' gradients as one: single ones may cancel."""
    model, batch = small_model(name, width, device=device)
    with torch.no_grad():
        for mlp in (model.first, model.readout) if kind == torch.bfloat16 else ():
            mlp.get_parameter("0.bias").copy_(torch.tensor([20.0, -20.0, 20.0, -20.0, 20.0]))
        with use_kernels("reference"):
            z = model.encode_snapshots(batch).to(kind)
    exact = copy.deepcopy(model).double()
    expected = forecast_and_gradients(exact, in_float64(batch), z.double(), REFERENCE)
    found = forecast_and_gradients(model, batch, z, CudaBackend(matrix_units=True, state_on_chip=True))
    assert not torch.equal(found["forecast"], expected["forecast"])  # the kernels computed it
    if kind == torch.float32:
        for part in expected:
            # A gradient that is one number may cancel, and then its rounding is that of its terms.
            assert (found[part] - expected[part]).norm() <= 2e-5 * max(1.0, expected[part].norm()), part
        return
    for part in ("forecast", "z"):
        assert far(found.pop(part), expected.pop(part)) <= 0.02, part
    weights, right = (torch.cat([gradient.flatten() for gradient in each.values()]) for each in (found, expected))
    assert far(weights, right) <= 0.02


@pytest.mark.parametrize("backend", [REFERENCE, CPU])
@pytest.mark.parametrize("name", PRESETS)
def test_the_loop_is_what_the_backends_decode(name: str, backend: Backend) -> None:
    """What the kernels are compared with above; needs no Triton."""
    model, batch = small_model(name, 16)
    model = model.double()
    batch = in_float64(batch)
    *state, prior = seeded(3, (27, 16), (27, 16), (27, model.prior.width), device="cpu")
    y = model.first(torch.cat([*state, prior], dim=-1))
    known = calendar(batch.time_future)[..., : model.calendar_future].double()
    expected = loop(state[0], state[1], y, prior, known, *model.decoder.parameters(), *model.readout.parameters())
    found = backend.decode(model.decoder, model.readout, (state[0], state[1]), prior, y, known)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


# When it is used. These need no Triton.


def fits(*, known: int = 5, units: int = 32, D: int = 64, **replaced: Any) -> bool:
    cell = replaced.get("cell", nn.LSTMCell(1 + known, D))
    return decoder_fits(cell, replaced.get("readout", MLP(2 * D + 3, units, 1, 0.2)))


def test_sizes() -> None:
    assert fits() and fits(known=0) and fits(known=14) and fits(units=64) and fits(D=128)
    assert not (fits(known=15) or fits(units=65))


def test_other_parts_keep_their_own_forward_pass() -> None:
    assert not fits(cell=nn.LSTMCell(6, 64, bias=False))
    assert not fits(cell=nn.GRUCell(6, 64))
    assert not fits(readout=nn.Linear(131, 1))
    assert not fits(readout=MLP(131, 32, 2))
    assert not fits(readout=nn.Sequential(nn.Linear(131, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 1)))
    assert not fits(readout=nn.Sequential(nn.Linear(131, 32, bias=False), nn.ReLU(), nn.Dropout(), nn.Linear(32, 1)))


@pytest.mark.parametrize("name", PRESETS)
def test_both_presets_fit(name: str) -> None:
    """As they are by default, in 16 bits."""
    from frigate.config import ModelSettings, preset

    settings = preset(name).model
    assert isinstance(settings, ModelSettings)
    town = make_town(random_stream([random_network(9, seed=1)], seed=1), settings)
    model = build_model(town.settings, town.scaling)
    assert encoder_fits(model.encoder) and decoder_fits(model.decoder, model.readout)
    assert suits_matrix_units(torch.bfloat16, town.settings.width)
