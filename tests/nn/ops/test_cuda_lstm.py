"""The fused LSTM against `nn.LSTM`, values and all gradients; and when it is used.

Without a GPU Triton interprets the kernels.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from frigate.nn.ops.cuda import encoder_fits, suits_matrix_units
from tests.support.kernels import seeded

NAMES = ("h_T", "c_T", "x", "h_0", "c_0", "w_ih", "w_hh", "b_ih", "b_hh")
# ||difference|| / ||reference||, the reference in fp64 from the same rounded inputs.
BF16 = {"h_T": 0.005, "c_T": 0.005} | dict.fromkeys(NAMES[2:], 0.012)


def run_lstm(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    from frigate.nn.ops.cuda import lstm  # needs Triton

    return lstm.run_lstm(*inputs)


def draw(R: int, T: int, D: int, *, seed: int, device: str) -> tuple[nn.LSTM, list[Tensor]]:
    """An LSTM in fp64, and x, h_0 and c_0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.LSTM(D, D, batch_first=True).double()
    return net.to(device), seeded(seed, (R, T, D), (R, D), (R, D), device=device)


def weights_of(net: nn.LSTM) -> list[Tensor]:
    """In fp32, as under autocast."""
    return [weight.detach().float().requires_grad_() for weight in net.parameters()]


def both(R: int, T: int, D: int, kind: torch.dtype, device: str) -> list[tuple[str, Tensor, Tensor]]:
    """(name, ours, reference) of the outputs and all gradients; both from inputs rounded to `kind`."""
    net, data = draw(R, T, D, seed=0, device=device)
    for weight in net.parameters():
        weight.data = weight.data.to(kind).double()
    data = [each.to(kind) for each in data]
    up = [each.to(kind) for each in seeded(1, (R, D), (R, D), device=device)]

    theirs = [each.double().requires_grad_() for each in data]
    _, (h, c) = net(theirs[0], (theirs[1][None], theirs[2][None]))
    leaves = [*theirs, *net.parameters()]
    reference = [h[0], c[0], *torch.autograd.grad([h[0], c[0]], leaves, [each.double() for each in up])]

    mine = [*(each.clone().requires_grad_() for each in data), *weights_of(net)]
    h, c = run_lstm(*mine)
    ours = [h, c, *torch.autograd.grad([h, c], mine, up)]
    for got, given in zip(ours[2:], mine, strict=True):
        assert got.dtype == given.dtype
        assert got.shape == given.shape
    return [(n, a.detach().double(), b.detach()) for n, a, b in zip(NAMES, ours, reference, strict=True)]


def check_fp32(R: int, T: int, D: int, device: str) -> None:
    for name, ours, reference in both(R, T, D, torch.float32, device):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-4, msg=partial("{}: {}".format, name))
        assert (ours - reference).norm() <= 1e-5 * reference.norm(), name


SIZES = [(5, 3, 16), (40, 4, 48), (35, 5, 64), (1, 1, 32), (33, 2, 128), (70, 3, 16)]


@pytest.mark.parametrize(("R", "T", "D"), SIZES)
def test_fp32(R: int, T: int, D: int, device: str) -> None:
    """Rows that are multiples of nothing; at 128 the weights are read in every step."""
    check_fp32(R, T, D, device)


@pytest.mark.parametrize(
    ("R", "T", "D", "kind"),
    [
        (40, 5, 64, torch.bfloat16),
        (20, 3, 32, torch.float16),
        pytest.param(20, 12, 32, torch.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_16_bits(R: int, T: int, D: int, kind: torch.dtype, device: str) -> None:
    for name, ours, reference in both(R, T, D, kind, device):
        assert (ours - reference).norm() <= BF16[name] * reference.norm(), name


def test_without_gradient_is_the_same(device: str) -> None:
    net, data = draw(37, 4, 32, seed=1, device=device)
    inputs = [*(each.float() for each in data), *weights_of(net)]
    with_gradient = run_lstm(*inputs)
    with torch.no_grad():
        without = run_lstm(*inputs)
    for a, b in zip(with_gradient, without, strict=True):
        assert a.requires_grad and not b.requires_grad
        assert torch.equal(a, b)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of the interpreter: infinity is meant
def test_large_inputs_stay_finite(device: str) -> None:
    net, data = draw(9, 3, 16, seed=2, device=device)
    weights = [100 * weight.detach() for weight in weights_of(net)]
    inputs = [(100 * each).float().requires_grad_() for each in data]
    h, c = run_lstm(*inputs, *weights)
    assert all(each.isfinite().all() for each in (h, c, *torch.autograd.grad(h.sum() + c.sum(), inputs)))


def test_no_rows_and_other_layouts(device: str) -> None:
    net, data = draw(6, 3, 16, seed=3, device=device)
    weights = weights_of(net)
    (x, h0, c0) = (each.float() for each in data)
    h, c = run_lstm(x[:0], h0[:0], c0[:0], *weights)
    grads = torch.autograd.grad(h.sum() + c.sum(), weights)
    assert h.shape == c.shape == (0, 16)
    assert not any(each.any() for each in grads)
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    for a, b in zip(run_lstm(turned, h0, c0, *weights), run_lstm(x, h0, c0, *weights), strict=True):
        assert torch.equal(a, b)


# When it is used. These need no Triton.


@pytest.mark.parametrize("D", [8, 16, 24, 64, 112, 128, 144])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_widths_and_types(D: int, kind: torch.dtype) -> None:
    assert suits_matrix_units(kind, D) == (kind != torch.float32 and D in (16, 64, 112, 128))


def test_the_presets_encoder_fits() -> None:
    assert encoder_fits(nn.LSTM(64, 64, batch_first=True))


@pytest.mark.parametrize(
    "net",
    [
        nn.LSTM(16, 16, num_layers=2, batch_first=True),
        nn.LSTM(16, 16, bidirectional=True, batch_first=True),
        nn.LSTM(16, 16, bias=False, batch_first=True),
        nn.LSTM(16, 16, proj_size=8, batch_first=True),
        nn.LSTM(16, 32, batch_first=True),
        nn.LSTM(16, 16),
        nn.GRU(16, 16, batch_first=True),
        type("Other", (nn.LSTM,), {})(16, 16, batch_first=True),
    ],
    ids=str,
)
def test_another_network_keeps_its_own_forward_pass(net: nn.Module) -> None:
    assert not encoder_fits(net)
