"""The gated sum: every implementation against loops and against `reference`, values and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from frigate.batch import Topology
from frigate.nn import aggregate as module
from frigate.nn.aggregate import Aggregate, aggregate, csr, implementation, reference
from tests.towns import bare_topology

FAST = {"csr": csr, "triton": module.triton}
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


def device_for(name: str) -> str:
    if name != "triton":
        return "cpu"
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    return "cuda"


def random_roads(num_nodes: int, num_edges: int, seed: int) -> Topology:
    """Distinct roads, no self-loops; some nodes have none."""
    rng = np.random.default_rng(seed)
    pair = rng.permutation(num_nodes * num_nodes)[: num_edges + num_nodes]
    u, v = pair // num_nodes, pair % num_nodes
    keep = np.flatnonzero(u != v)[:num_edges]
    return bare_topology(num_nodes, u[keep].tolist(), v[keep].tolist())


def random_inputs(topology: Topology, C: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(topology.num_nodes, C, generator=generator, dtype=torch.float64)
    gates = torch.rand(topology.num_edges, generator=generator, dtype=torch.float64)
    return features.to(dtype), gates.to(dtype)


def run(
    function: Aggregate, features: Tensor, gates: Tensor, topology: Topology, seed: int, device: str
) -> list[Tensor]:
    """Both sums and the gradients of a random linear function of them."""
    features, gates = (x.to(device, copy=True).requires_grad_() for x in (features, gates))
    out, in_ = function(features, gates, topology.to(device))
    generator = torch.Generator().manual_seed(seed + 1)
    weights = torch.randn(2, *out.shape, generator=generator, dtype=torch.float64).to(device, out.dtype)
    grads = torch.autograd.grad((out * weights[0]).sum() + (in_ * weights[1]).sum(), [features, gates])
    return [x.detach().cpu() for x in (out, in_, *grads)]


def check_equal(name: str, topology: Topology, *, C: int, dtype: torch.dtype, seed: int) -> None:
    device = device_for(name)
    features, gates = random_inputs(topology, C, dtype, seed)
    expected = run(reference, features.double(), gates.double(), topology, seed, "cpu")
    found = run(FAST[name], features, gates, topology, seed, device)
    for right, left in zip(expected, found, strict=True):
        assert left.dtype == dtype
        scale = max(1.0, float(right.abs().max())) if right.numel() else 1.0
        torch.testing.assert_close(left.double(), right, rtol=0, atol=TOLERANCE[dtype] * scale)


@pytest.mark.parametrize("function", [reference, csr])
def test_equals_the_equations_as_loops(function: Aggregate) -> None:
    topology = random_roads(9, 20, seed=3)
    features, gates = random_inputs(topology, 2, torch.float64, seed=3)
    out, in_ = torch.zeros(9, 2, dtype=torch.float64), torch.zeros(9, 2, dtype=torch.float64)
    for road, (v, u) in enumerate(zip(topology.senders.tolist(), topology.receivers.tolist(), strict=True)):
        out[v] += gates[road] * features[u]
        in_[u] += gates[road] * features[v]
    found_out, found_in = function(features, gates, topology)
    torch.testing.assert_close(found_out, out)
    torch.testing.assert_close(found_in, in_)


@pytest.mark.parametrize("name", FAST)
@settings(deadline=None, max_examples=40)
@given(
    num_nodes=st.integers(1, 37),
    density=st.floats(0, 1),
    C=st.integers(1, 19),
    double=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_random_graphs(name: str, num_nodes: int, density: float, C: int, double: bool, seed: int) -> None:
    topology = random_roads(num_nodes, int(density * num_nodes * (num_nodes - 1)), seed)
    dtype = torch.float64 if double and name != "triton" else torch.float32  # the kernels sum in fp32
    check_equal(name, topology, C=C, dtype=dtype, seed=seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("C", [1, 7, 64, 1031])
@pytest.mark.parametrize("name", FAST)
def test_widths_that_are_multiples_of_nothing(name: str, C: int, dtype: torch.dtype) -> None:
    if name == "triton" and dtype == torch.float64:
        pytest.skip("the kernels sum in fp32")
    check_equal(name, random_roads(101, 257, seed=C), C=C, dtype=dtype, seed=C)


@pytest.mark.parametrize("name", FAST)
def test_empty_neighbourhoods_get_zero(name: str) -> None:
    device = device_for(name)
    topology = bare_topology(6, [1, 1, 4], [3, 4, 1])  # 0, 2 and 5 have no road; 3 none that leaves
    features, gates = random_inputs(topology, 5, torch.float32, seed=0)
    out, in_, grad_features, _ = run(FAST[name], features, gates, topology, 0, device)
    assert out.any(dim=1).tolist() == [False, True, False, False, True, False]
    assert in_.any(dim=1).tolist() == [False, True, False, True, True, False]
    assert grad_features.any(dim=1).tolist() == [False, True, False, True, True, False]
    check_equal(name, topology, C=5, dtype=torch.float32, seed=0)


@pytest.mark.parametrize("name", FAST)
def test_no_road_at_all(name: str) -> None:
    device = device_for(name)
    topology = bare_topology(5, [], [])
    features, gates = random_inputs(topology, 3, torch.float32, seed=0)
    out, in_, grad_features, grad_gates = run(FAST[name], features, gates, topology, 0, device)
    assert out.shape == in_.shape == grad_features.shape == (5, 3)
    assert not (out.any() or in_.any() or grad_features.any())
    assert grad_gates.shape == (0,)


@pytest.mark.parametrize("name", FAST)
def test_no_column_at_all(name: str) -> None:
    """A topology that no snapshot of a part of a batch has."""
    device = device_for(name)
    topology = random_roads(7, 12, seed=1)
    features, gates = random_inputs(topology, 0, torch.float32, seed=0)
    out, in_, _, grad_gates = run(FAST[name], features, gates, topology, 0, device)
    assert out.shape == in_.shape == (7, 0)
    assert not grad_gates.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FAST)
def test_hub_with_thousands_of_roads(name: str, dtype: torch.dtype) -> None:
    if name == "triton" and dtype == torch.float64:
        pytest.skip("the kernels sum in fp32")
    rim = list(range(1, 3002))
    topology = bare_topology(3002, [0] * len(rim) + rim, rim + [0] * len(rim))
    check_equal(name, topology, C=3, dtype=dtype, seed=5)


@pytest.mark.parametrize("function", [reference, csr])
@pytest.mark.parametrize("num_edges", [0, 11])
def test_gradcheck(function: Aggregate, num_edges: int) -> None:
    topology = random_roads(6, num_edges, seed=2)
    features, gates = (x.requires_grad_() for x in random_inputs(topology, 3, torch.float64, seed=2))
    # gradcheck is untyped, and feeds tensors alone
    assert torch.autograd.gradcheck(lambda x, g: function(x, g, topology), (features, gates))


def test_one_gradient_alone() -> None:
    topology = random_roads(8, 15, seed=4)
    features, gates = random_inputs(topology, 4, torch.float64, seed=4)
    both = run(csr, features, gates, topology, 4, "cpu")
    for wanted in (0, 1):
        inputs = [features.clone(), gates.clone()]
        inputs[wanted].requires_grad_()
        out, in_ = csr(inputs[0], inputs[1], topology)
        weights = torch.randn(2, *out.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        (alone,) = torch.autograd.grad((out * weights[0]).sum() + (in_ * weights[1]).sum(), [inputs[wanted]])
        torch.testing.assert_close(alone, both[2 + wanted])


def test_the_device_decides() -> None:
    assert implementation(torch.device("cpu")) is csr
    assert implementation(torch.device("meta")) is reference
    topology = random_roads(8, 15, seed=4)
    features, gates = random_inputs(topology, 4, torch.float32, seed=4)
    for left, right in zip(aggregate(features, gates, topology), csr(features, gates, topology), strict=True):
        assert torch.equal(left, right)
