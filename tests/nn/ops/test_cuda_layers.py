"""The gated layer's Triton kernels against the layer in plain operations, values and gradients.

Without a GPU Triton interprets them.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from frigate.nn.ops import REFERENCE, Backend
from frigate.nn.ops.cuda import CudaBackend
from frigate.nn.topology import Topology
from tests.support.towns import bare_topology, random_roads

CUDA = CudaBackend(matrix_units=True, state_on_chip=True)
NAMES = ("y", "h", "gates", "weight", "bias")


def hub(spokes: int) -> Topology:
    """Node 0 has a road from and to every other; the last node has none."""
    ends = list(range(1, spokes + 1))
    return bare_topology(spokes + 2, [0] * spokes + ends, ends + [0] * spokes)


def inputs(topology: Topology, M: int, D: int, seed: int, *, bias: bool = True) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(topology.num_nodes, M, D, generator=generator)
    gates = torch.rand(topology.num_edges, generator=generator)
    weight = torch.randn(D, 3 * D, generator=generator) / (3 * D) ** 0.5
    return [h, gates, weight, *([torch.randn(D, generator=generator)] if bias else [])]


def run(backend: Backend, topology: Topology, told: list[Tensor], kind: torch.dtype, device: str) -> dict[str, Tensor]:
    """The layer's output and the gradients of a random linear function of it, in fp64."""
    h, *others = (x.to(device).clone().requires_grad_() for x in told)
    y = backend.gated_layers(h.to(kind), others[:1], others[1:2], topology.to(device), others[2:])
    direction = torch.randn(y.shape, generator=torch.Generator().manual_seed(9)).to(device)
    (y.float() * direction).sum().backward()
    found = [y.detach(), h.grad, *(x.grad for x in others)]
    return {name: value.double().cpu() for name, value in zip(NAMES, found, strict=False) if value is not None}


def number_type(device: str) -> torch.dtype:
    """Of the encodings: 16 bits on a GPU, as in use; the interpreter's sums are compared in 32."""
    return torch.bfloat16 if device == "cuda" else torch.float32


def away(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm().clamp(min=1e-9))


@pytest.mark.parametrize(
    ("topology", "M", "D", "bias"),
    [
        (random_roads(13, 40, 0), 5, 16, True),
        (random_roads(7, 12, 1), 17, 48, False),
        (random_roads(5, 9, 2), 70, 64, True),
        (hub(20), 3, 32, False),
        (bare_topology(4, [], []), 2, 16, True),
        (bare_topology(2, [0], [1]), 1, 128, False),
    ],
    ids=["sparse", "odd", "tall", "hub", "no roads", "wide"],
)
def test_the_kernels_are_the_layer(topology: Topology, M: int, D: int, bias: bool, device: str) -> None:
    told = inputs(topology, M, D, 3, bias=bias)
    kind = number_type(device)
    got = run(CUDA, topology, told, kind, device)
    want = run(REFERENCE, topology, [x.to(kind).double() for x in told], torch.float64, "cpu")
    limit = 2e-2 if device == "cuda" else 1e-5
    assert got.keys() == want.keys()
    assert {name: away(got[name], want[name]) <= limit for name in want} == dict.fromkeys(want, True)


@pytest.mark.parametrize("D", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_layers_in_a_row_are_one_after_the_other(D: int, device: str) -> None:
    topology = random_roads(7, 18, 6)
    kind = number_type(device)
    draws = [inputs(topology, 4, D, seed, bias=False) for seed in range(3)]

    def found(backend: Backend, kind: torch.dtype, wide: torch.dtype, device: str) -> list[Tensor]:
        h = draws[0][0].to(device, kind).requires_grad_()
        gates, weights = ([draw[i].to(device, wide, copy=True).requires_grad_() for draw in draws] for i in (1, 2))
        z = backend.gated_layers(h, gates, weights, topology.to(device))
        grads = torch.autograd.grad(z.to(wide).square().sum(), [h, *gates, *weights])
        with torch.no_grad():
            assert torch.equal(backend.gated_layers(h, gates, weights, topology.to(device)), z)
        return [each.detach().double().cpu() for each in (z, *grads)]

    limit = 5e-2 if device == "cuda" else 1e-5
    row = found(CUDA, kind, torch.float32, device)
    loop = found(REFERENCE, torch.float64, torch.float64, "cpu")
    assert all(away(a, b) <= limit for a, b in zip(row, loop, strict=True))


@pytest.mark.parametrize("shape", [(0, 2, 16), (3, 0, 16)])
def test_nothing_to_do_is_no_fault(shape: tuple[int, int, int], device: str) -> None:
    N, M, D = shape
    topology = bare_topology(N, [0] * (N > 0), [1] * (N > 0))
    told = inputs(topology, M, D, 0)
    got = run(CUDA, topology, told, torch.float32, device)
    assert got["y"].shape == shape
    assert all(not got[name].any() for name in ("gates", "weight", "bias"))
