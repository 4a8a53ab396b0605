"""The LSTM on a CPU against torch's own, values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from frigate.nn.ops.cpu import lstm as cpu_lstm
from frigate.nn.ops.cpu.lstm import BlockedLstm
from frigate.nn.ops.reference import is_standard

SIZES = [(5, 2, 3, 4, 3, 4), (7, 1, 2, 3, 4, 1024), (3, 3, 1, 2, 2, 2), (11, 2, 4, 5, 5, 6), (1, 1, 1, 1, 1, 1)]


@pytest.fixture(params=SIZES, ids=str)
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, ...]:
    """N, B, T, X and D; in blocks of some rows."""
    *sizes, rows = request.param
    monkeypatch.setattr(cpu_lstm, "BLOCK_ROWS", rows)
    return tuple(sizes)


def inputs(N: int, B: int, T: int, X: int, D: int, *, snapshots_first: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(N + 10 * D)
    x = torch.randn(B, T, N, X, generator=generator, dtype=torch.float64).permute(2, 0, 1, 3)
    state = [torch.randn(N * B, D, generator=generator, dtype=torch.float64) for _ in range(2)]
    return [each.requires_grad_() for each in (x if snapshots_first else x.contiguous(), *state)]


def net_of(X: int, D: int) -> nn.LSTM:
    torch.manual_seed(1)
    return nn.LSTM(X, D, batch_first=True).double()


def by_torch(net: nn.LSTM, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    N, B, T, X = x.shape
    _, (h, c) = net(x.reshape(N * B, T, X), (h[None], c[None]))
    return h[0], c[0]


def gradients(state: tuple[Tensor, Tensor], wanted: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    up = [torch.randn(each.shape, generator=generator, dtype=torch.float64) for each in state]
    total = torch.stack([(a * b).sum() for a, b in zip(state, up, strict=True)]).sum()
    return list(torch.autograd.grad(total, wanted))


@pytest.mark.parametrize("snapshots_first", [False, True])
def test_it_is_the_lstm(sizes: tuple[int, ...], snapshots_first: bool) -> None:
    N, B, T, X, D = sizes
    net = net_of(X, D)
    given = inputs(N, B, T, X, D, snapshots_first=snapshots_first)
    wanted = [*given, *net.parameters()]
    found = BlockedLstm(net)(*given)
    expected = by_torch(net, *given)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(gradients(found, wanted), gradients(expected, wanted), strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(BlockedLstm(net)(*given), found, strict=True))


def test_steps_one_by_one_share_their_buffers(sizes: tuple[int, ...]) -> None:
    """As in a decoder: what a step left behind is no other step's, forward or back, and no input is written to."""
    N, B, T, X, D = sizes
    net = net_of(X, D)
    given = inputs(N, B, T, X, D)
    before = [each.detach().clone() for each in given]
    wanted = [*given, *net.parameters()]
    cell = BlockedLstm(net)
    (x, *state) = given
    for step in range(T):
        state = list(cell(x[:, :, step : step + 1], *state))
    for a, b in zip(gradients((state[0], state[1]), wanted), gradients(by_torch(net, *given), wanted), strict=True):
        torch.testing.assert_close(a, b)
    assert all(torch.equal(a, b) for a, b in zip(before, given, strict=True))


def test_gradcheck() -> None:
    net = net_of(2, 3)
    given = inputs(3, 2, 2, 2, 3)
    assert torch.autograd.gradcheck(BlockedLstm(net), given)


def test_without_gradients_only_one_state_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of(3, 4)
    (x, h, c) = (each.detach() for each in inputs(6, 1, 9, 3, 4))
    made = []
    real = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda self, *size: made.append(size) or real(self, *size))

    def states() -> int:
        made.clear()
        BlockedLstm(net)(x, h, c)
        return made.count((h.shape,))

    with torch.no_grad():
        assert states() == 2
    assert states() == 18
    assert [each.requires_grad_(False) for each in net.parameters()] and states() == 2


def test_backward_can_be_had_twice(sizes: tuple[int, ...]) -> None:
    N, B, T, X, D = sizes
    net = net_of(X, D)
    given = inputs(N, B, T, X, D)
    h, c = BlockedLstm(net)(*given)
    first, again = (torch.autograd.grad((h + c).sum(), given, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_no_nodes() -> None:
    h, c = BlockedLstm(net_of(2, 3))(torch.zeros(0, 2, 4, 2).double(), *(torch.zeros(0, 3).double() for _ in range(2)))
    assert h.shape == c.shape == (0, 3)


@pytest.mark.parametrize(
    ("net", "standard"),
    [
        (nn.LSTM(3, 4), True),
        (nn.LSTMCell(3, 4), True),
        (nn.LSTM(3, 4, num_layers=2), False),
        (nn.LSTM(3, 4, bidirectional=True), False),
        (nn.LSTM(3, 4, bias=False), False),
        (nn.LSTM(3, 4, proj_size=2), False),
        (nn.LSTMCell(3, 4, bias=False), False),
        (nn.GRU(3, 4), False),
    ],
)
def test_only_what_it_can_compute_is_computed_so(net: nn.Module, standard: bool) -> None:
    assert is_standard(net) == standard
