"""The encoder and decoder on a CPU against the reference, values and gradients; and what training stores."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from frigate.nn.ops import CPU, REFERENCE, Backend
from frigate.nn.ops import cpu as cpu_backend
from tests.support.kernels import seeded as seeded_on

SIZES = [(5, 2, 3, 4, 4), (7, 1, 2, 3, 1024), (3, 3, 1, 2, 2), (11, 2, 4, 5, 6), (1, 1, 1, 1, 1), (0, 2, 3, 4, 8)]


def seeded(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [each.requires_grad_() for each in seeded_on(seed, *shapes, device="cpu")]


@pytest.fixture(params=SIZES, ids=str)
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, ...]:
    """N, B, T and D; in blocks of some rows."""
    *sizes, rows = request.param
    monkeypatch.setattr(cpu_backend, "BLOCK_ROWS", rows)
    return tuple(sizes)


def same(one: Callable[[], Tensor], other: Callable[[], Tensor], wanted: list[Tensor]) -> None:
    """Values, gradients, and values without gradients."""
    found, expected = one(), other()
    torch.testing.assert_close(found, expected)
    (above,) = seeded(3, tuple(found.shape))
    gradients = [torch.autograd.grad(each, wanted, above, retain_graph=True) for each in (found, expected, found)]
    for a, b, again in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)
        assert torch.equal(a, again)  # a graph that is kept can be used twice
    with torch.no_grad():
        torch.testing.assert_close(one(), expected)


@pytest.mark.parametrize("snapshots_first", [False, True])
def test_it_encodes_as_the_reference(sizes: tuple[int, ...], snapshots_first: bool) -> None:
    N, B, T, D = sizes
    torch.manual_seed(1)
    lstm = nn.LSTM(D, D, batch_first=True).double()
    z, h, c = seeded(N + 10 * D, (B, T, N, D) if snapshots_first else (N, B, T, D), (N * B, D), (N * B, D))
    x = z.permute(2, 0, 1, 3) if snapshots_first else z
    same(
        lambda: torch.cat(CPU.encode(lstm, x, (h, c))),
        lambda: torch.cat(REFERENCE.encode(lstm, x, (h, c))),
        [z, h, c, *lstm.parameters()],
    )


def test_it_decodes_as_the_reference(sizes: tuple[int, ...]) -> None:
    N, B, H, D = sizes
    torch.manual_seed(1)
    lstm = nn.LSTMCell(3, D).double()
    readout = nn.Sequential(nn.Linear(2 * D + 2, 5), nn.ReLU(), nn.Linear(5, 1)).double()
    h, c, prior, y, known = seeded(N + D, (N * B, D), (N * B, D), (N * B, 2), (N * B, 1), (B, H, 2))
    wanted = [h, c, prior, y, known, *lstm.parameters(), *readout.parameters()]

    def decoded(backend: Backend) -> Tensor:
        return backend.decode(lstm, readout, (h, c), prior, y, known)

    same(lambda: decoded(CPU), lambda: decoded(REFERENCE), wanted)


def test_gates_are_not_stored_for_backward() -> None:
    N, B, T, D = 512, 2, 12, 16
    lstm = nn.LSTM(D, D, batch_first=True)
    z, h, c = (each.float() for each in seeded(0, (N, B, T, D), (N * B, D), (N * B, D)))

    def stored(backend: Backend) -> int:
        """Numbers, each piece of memory counted once."""
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            backend.encode(lstm, z, (h, c))
        return sum(kept.values())

    gates = N * B * T * 4 * D
    assert stored(REFERENCE) > gates > 2 * stored(CPU)
