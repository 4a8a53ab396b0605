"""The gated messages: every implementation against loops and against `reference`, values and gradients.

Without a GPU the Triton kernels are tested where Triton is installed and interprets them (TRITON_INTERPRET=1).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from frigate.nn import aggregate as module
from frigate.nn.aggregate import Messages, csr, gated_messages, implementation, reference
from frigate.nn.batch import Topology
from frigate.nn.norm import _on_gpu as module_norm
from frigate.nn.sparse import Sparse
from tests.support.kernels import device_for
from tests.support.towns import bare_topology, random_roads

FAST = {"csr": csr, "triton": module.triton}
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


def random_inputs(topology: Topology, D: int, dtype: torch.dtype, seed: int, *, M: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(topology.num_nodes, M, D, generator=generator, dtype=torch.float64)
    gates = torch.rand(topology.num_edges, generator=generator, dtype=torch.float64)
    return h.to(dtype), gates.to(dtype)


def run(function: Messages, h: Tensor, gates: Tensor, topology: Topology, seed: int, device: str) -> list[Tensor]:
    """Both sums and the gradients of a random linear function of the messages."""
    h, gates = (x.to(device, copy=True).requires_grad_() for x in (h, gates))
    messages = function(h, gates, topology.to(device))
    own, out, in_ = messages.chunk(3, dim=-1)
    assert torch.equal(own, h)
    generator = torch.Generator().manual_seed(seed + 1)
    weights = torch.randn(messages.shape, generator=generator, dtype=torch.float64).to(device, messages.dtype)
    grads = torch.autograd.grad((messages * weights).sum(), [h, gates])
    return [x.detach().cpu() for x in (out, in_, *grads)]


def check_equal(name: str, topology: Topology, *, D: int, dtype: torch.dtype, seed: int, M: int = 2) -> None:
    device = device_for(name)
    h, gates = random_inputs(topology, D, dtype, seed, M=M)
    expected = run(reference, h.double(), gates.double(), topology, seed, "cpu")
    found = run(FAST[name], h, gates, topology, seed, device)
    for right, left in zip(expected, found, strict=True):
        assert left.dtype == dtype
        scale = max(1.0, float(right.abs().max())) if right.numel() else 1.0
        torch.testing.assert_close(left.double(), right, rtol=0, atol=TOLERANCE[dtype] * scale)


@pytest.mark.parametrize("function", [reference, csr])
def test_equals_the_equations_as_loops(function: Messages) -> None:
    topology = random_roads(9, 20, seed=3)
    h, gates = random_inputs(topology, 2, torch.float64, seed=3)
    out, in_ = torch.zeros_like(h), torch.zeros_like(h)
    for road, (v, u) in enumerate(zip(topology.senders.tolist(), topology.receivers.tolist(), strict=True)):
        out[v] += gates[road] * h[u]
        in_[u] += gates[road] * h[v]
    torch.testing.assert_close(function(h, gates, topology), torch.cat([h, out, in_], dim=-1))


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=40)
@given(
    num_nodes=st.integers(1, 37),
    density=st.floats(0, 1),
    M=st.integers(1, 5),
    D=st.integers(1, 9),
    double=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_random_graphs(name: str, num_nodes: int, density: float, M: int, D: int, double: bool, seed: int) -> None:
    topology = random_roads(num_nodes, int(density * num_nodes * (num_nodes - 1)), seed)
    dtype = torch.float64 if double and name != "triton" else torch.float32  # the kernels sum in fp32
    check_equal(name, topology, D=D, dtype=dtype, seed=seed, M=M)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("D", [1, 7, 64, 1031])
@pytest.mark.parametrize("name", FAST)
def test_widths_that_are_multiples_of_nothing(name: str, D: int, dtype: torch.dtype) -> None:
    if name == "triton" and dtype == torch.float64:
        pytest.skip("the kernels sum in fp32")
    check_equal(name, random_roads(101, 257, seed=D), D=D, dtype=dtype, seed=D)


@pytest.mark.parametrize("name", FAST)
def test_empty_neighbourhoods_get_zero(name: str) -> None:
    device = device_for(name)
    topology = bare_topology(6, [1, 1, 4], [3, 4, 1])  # 0, 2 and 5 have no road; 3 none that leaves
    h, gates = random_inputs(topology, 5, torch.float32, seed=0)
    out, in_, grad_h, _ = run(FAST[name], h, gates, topology, 0, device)
    assert out.any(dim=(1, 2)).tolist() == [False, True, False, False, True, False]
    assert in_.any(dim=(1, 2)).tolist() == [False, True, False, True, True, False]
    # A node's gradient is at least its own place in the messages; without roads it is that alone.
    alone = torch.randn(6, 2, 15, generator=torch.Generator().manual_seed(1), dtype=torch.float64)[..., :5]
    assert torch.isclose(grad_h.double(), alone).all(dim=(1, 2)).tolist() == [True, False, True, False, False, True]
    check_equal(name, topology, D=5, dtype=torch.float32, seed=0)


@pytest.mark.parametrize("name", FAST)
def test_no_road_at_all(name: str) -> None:
    device = device_for(name)
    topology = bare_topology(5, [], [])
    h, gates = random_inputs(topology, 3, torch.float32, seed=0)
    out, in_, grad_h, grad_gates = run(FAST[name], h, gates, topology, 0, device)
    assert out.shape == in_.shape == grad_h.shape == (5, 2, 3)
    assert not (out.any() or in_.any())
    assert grad_gates.shape == (0,)


@pytest.mark.parametrize("name", FAST)
def test_no_column_at_all(name: str) -> None:
    """A topology that no snapshot of a part of a batch has."""
    device = device_for(name)
    topology = random_roads(7, 12, seed=1)
    h, gates = random_inputs(topology, 3, torch.float32, seed=0, M=0)
    out, in_, _, grad_gates = run(FAST[name], h, gates, topology, 0, device)
    assert out.shape == in_.shape == (7, 0, 3)
    assert not grad_gates.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FAST)
def test_hub_with_thousands_of_roads(name: str, dtype: torch.dtype) -> None:
    if name == "triton" and dtype == torch.float64:
        pytest.skip("the kernels sum in fp32")
    rim = list(range(1, 3002))
    topology = bare_topology(3002, [0] * len(rim) + rim, rim + [0] * len(rim))
    check_equal(name, topology, D=3, dtype=dtype, seed=5)


@pytest.mark.parametrize("function", [reference, csr])
@pytest.mark.parametrize("num_edges", [0, 11])
def test_gradcheck(function: Messages, num_edges: int) -> None:
    topology = random_roads(6, num_edges, seed=2)
    h, gates = (x.requires_grad_() for x in random_inputs(topology, 3, torch.float64, seed=2))
    # gradcheck is untyped, and feeds tensors alone
    assert torch.autograd.gradcheck(lambda x, g: function(x, g, topology), (h, gates))


def test_one_gradient_alone() -> None:
    topology = random_roads(8, 15, seed=4)
    h, gates = random_inputs(topology, 4, torch.float64, seed=4)
    both = run(csr, h, gates, topology, 4, "cpu")
    for wanted in (0, 1):
        inputs = [h.clone(), gates.clone()]
        inputs[wanted].requires_grad_()
        messages = csr(inputs[0], inputs[1], topology)
        weights = torch.randn(messages.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        (alone,) = torch.autograd.grad((messages * weights).sum(), [inputs[wanted]])
        torch.testing.assert_close(alone, both[2 + wanted])


def test_the_device_decides() -> None:
    assert implementation(torch.zeros(1)) is csr
    assert implementation(torch.zeros(1, device="meta")) is implementation(torch.zeros(1).bfloat16()) is reference
    topology = random_roads(8, 15, seed=4)
    h, gates = random_inputs(topology, 4, torch.float32, seed=4)
    assert torch.equal(gated_messages(h, gates, topology), csr(h, gates, topology))


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=40)
@given(num_nodes=st.integers(1, 30), count=st.integers(0, 90), C=st.integers(1, 9), seed=st.integers(0, 10_000))
def test_a_sparse_product_equals_the_dense_one(name: str, num_nodes: int, count: int, C: int, seed: int) -> None:
    """Coordinates in any order, some twice; value and gradient."""
    device = device_for(name)
    if name == "triton" and device == "cpu":
        pytest.skip("the product asks for a GPU before it asks for Triton")
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.randint(num_nodes, (2, count), generator=generator)
    weight, x = torch.randn(count, generator=generator), torch.randn(num_nodes, C, generator=generator)
    dense = torch.zeros(num_nodes, num_nodes).index_put((rows, columns), weight, accumulate=True)
    grad = torch.randn(num_nodes, C, generator=generator)
    features = x.to(device).requires_grad_()
    product = Sparse.of(rows.to(device), columns.to(device), weight.to(device), num_nodes=num_nodes) @ features
    (back,) = torch.autograd.grad((product * grad.to(device)).sum(), [features])
    torch.testing.assert_close(product.detach().cpu(), dense @ x, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(back.cpu(), dense.T @ grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 1), (3, 64), (257, 7), (5, 90, 24), (0, 8)])
def test_the_norm_is_a_layer_norm(shape: tuple[int, ...]) -> None:
    """The kernels against torch's own, value and gradients."""
    device = device_for("triton")
    generator = torch.Generator().manual_seed(sum(shape))
    D = shape[-1]
    x = 3 + 2 * torch.randn(shape, generator=generator)
    weight, bias, grad = (torch.randn(size, generator=generator) for size in ((D,), (D,), shape))
    found = run_norm(lambda *given: module_norm(*given, 1e-5), x, weight, bias, grad, device)
    expected = run_norm(lambda x, w, b: functional.layer_norm(x, (D,), w, b), x, weight, bias, grad, "cpu")
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)


def run_norm(
    function: Callable[[Tensor, Tensor, Tensor], Tensor],
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    grad: Tensor,
    device: str,
) -> list[Tensor]:
    inputs = [given.to(device).requires_grad_() for given in (x, weight, bias)]
    y = function(*inputs)
    return [part.detach().cpu() for part in (y, *torch.autograd.grad((y * grad.to(device)).sum(), inputs))]


@given(st.integers(1, 30), st.integers(0, 60), st.integers(0, 10**6))
def test_every_node_is_visited_once(num_nodes: int, num_edges: int, seed: int) -> None:
    topology = random_roads(num_nodes, min(num_edges, num_nodes * (num_nodes - 1)), seed)
    assert sorted(topology.visits.tolist()) == list(range(num_nodes))


def test_neighbours_are_visited_soon_after_each_other() -> None:
    place = np.random.default_rng(0).permutation(200)  # a street whose nodes have any numbers
    topology = bare_topology(200, place[:-1].tolist(), place[1:].tolist())
    turn = np.argsort(topology.visits.numpy())
    assert np.abs(turn[place[:-1]] - turn[place[1:]]).max() == 1
