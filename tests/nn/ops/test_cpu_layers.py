"""The gated layers on a CPU against the reference, values and gradients; and a whole model on both backends."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from frigate.nn.ops import REFERENCE, choose_backend, use_kernels
from frigate.nn.ops.cpu import layers
from frigate.nn.ops.cpu.layers import BLOCK_ROWS, gated_layers
from frigate.nn.topology import Topology
from tests.support.towns import PRESETS, bare_topology, build_model, in_float64, random_roads, random_town

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
Inputs = tuple[Tensor, Tensor, Tensor, Tensor | None]


def messages(h: Tensor, gates: Tensor, topology: Topology) -> tuple[Tensor, Tensor]:
    """The equations as loops: the gated sums over out- and over in-neighbours."""
    out = torch.zeros_like(h)
    in_ = torch.zeros_like(h)
    for road, (v, u) in enumerate(zip(topology.senders.tolist(), topology.receivers.tolist(), strict=True)):
        out[v] += gates[road] * h[u]
        in_[u] += gates[road] * h[v]
    return out, in_


def cpu_layer(h: Tensor, gates: Tensor, weight: Tensor, bias: Tensor | None, topology: Topology) -> Tensor:
    return gated_layers(h, [gates], [weight], [] if bias is None else [bias], topology)


def reference(h: Tensor, gates: Tensor, weight: Tensor, bias: Tensor | None, topology: Topology) -> Tensor:
    return REFERENCE.gated_layers(h, [gates], [weight], topology, [] if bias is None else [bias])


def random_inputs(topology: Topology, *, M: int, D: int, dtype: torch.dtype, seed: int, bias: bool = True) -> Inputs:
    """h, gates, W_1 and b. All that comes before the relu is far from 0, where rounding would decide its gradient."""
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(topology.num_nodes, M, D, generator=generator, dtype=torch.float64)
    gates = torch.rand(topology.num_edges, generator=generator, dtype=torch.float64)
    weight = torch.randn(D, 3 * D, generator=generator, dtype=torch.float64) / (3 * D) ** 0.5
    sums = torch.cat([h, *messages(h, gates, topology)], dim=-1) @ weight.T
    b = None
    if bias:
        b = torch.randn(D, generator=generator, dtype=torch.float64)
        for column in range(D):  # in the widest gap between the sums near it
            ordered = torch.sort(torch.cat([sums[..., column].flatten(), b.new_tensor([-9.0, 9.0])])).values
            near = ordered[(ordered - b[column]).abs().argsort()[:20]].sort().values
            widest = int(near.diff().argmax())
            b[column] = -(near[widest] + near[widest + 1]) / 2
    return h.to(dtype), gates.to(dtype), weight.to(dtype), None if b is None else b.to(dtype)


def run(function: object, inputs: Inputs, topology: Topology, *, wanted: str = "hgwb", seed: int = 0) -> list[Tensor]:
    """The layer, and the gradients of a random linear function of it to the inputs that are wanted."""
    assert callable(function)
    ready = [
        None if x is None else x.detach().clone(memory_format=torch.preserve_format).requires_grad_(name in wanted)
        for x, name in zip(inputs, "hgwb", strict=True)
    ]
    y = function(*ready, topology)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64).to(y.dtype)
    asked = [x for x in ready if x is not None and x.requires_grad]
    return [y.detach(), *torch.autograd.grad((y * upstream).sum(), asked)]


def check_equal(inputs: Inputs, topology: Topology, *, wanted: str = "hgwb") -> None:
    h, gates, weight, bias = inputs
    doubles = h.double(), gates.double(), weight.double(), None if bias is None else bias.double()
    expected = run(reference, doubles, topology, wanted=wanted)
    for right, left in zip(expected, run(cpu_layer, inputs, topology, wanted=wanted), strict=True):
        assert left.dtype == inputs[0].dtype and left.shape == right.shape
        scale = max(1.0, float(right.abs().max())) if right.numel() else 1.0
        torch.testing.assert_close(left.double(), right, rtol=0, atol=TOLERANCE[left.dtype] * scale)


def test_the_reference_is_the_equations_as_loops() -> None:
    topology = random_roads(9, 20, seed=3)
    inputs = h, gates, weight, bias = random_inputs(topology, M=2, D=3, dtype=torch.float64, seed=3)
    assert bias is not None
    joined = torch.cat([h, *messages(h, gates, topology)], dim=-1)
    torch.testing.assert_close(reference(*inputs, topology), torch.relu(joined @ weight.T + bias))


@settings(max_examples=60)
@given(
    num_nodes=st.integers(1, 37),
    density=st.floats(0, 1),
    M=st.integers(1, 5),
    D=st.integers(1, 9),
    double=st.booleans(),
    bias=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_random_graphs(num_nodes: int, density: float, M: int, D: int, double: bool, bias: bool, seed: int) -> None:
    topology = random_roads(num_nodes, int(density * num_nodes * (num_nodes - 1)), seed)
    dtype = torch.float64 if double or not bias else torch.float32
    check_equal(random_inputs(topology, M=M, D=D, dtype=dtype, seed=seed, bias=bias), topology)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("N", "M"), [(BLOCK_ROWS // 3, 7), (BLOCK_ROWS + 1, 3), (101, 97)])
def test_more_snapshots_than_fit_a_block(N: int, M: int, dtype: torch.dtype) -> None:
    topology = random_roads(N, 2 * N, seed=N)
    check_equal(random_inputs(topology, M=M, D=3, dtype=dtype, seed=N), topology)


def test_empty_neighbourhoods() -> None:
    topology = bare_topology(6, [1, 1, 4], [3, 4, 1])  # 0, 2 and 5 have no road; 3 none that leaves
    inputs = random_inputs(topology, M=2, D=5, dtype=torch.float32, seed=0)
    check_equal(inputs, topology)
    h, _, weight, bias = inputs
    assert bias is not None
    alone = torch.relu(h[[0, 2, 5]] @ weight[:, :5].T + bias)
    torch.testing.assert_close(cpu_layer(*inputs, topology)[[0, 2, 5]], alone)


@pytest.mark.parametrize(("N", "M"), [(5, 2), (7, 0), (0, 4)])
def test_no_road_no_snapshot_no_node(N: int, M: int) -> None:
    topology = random_roads(7, 12, seed=1) if M == 0 else bare_topology(N, [], [])
    inputs = random_inputs(topology, M=M, D=3, dtype=torch.float32, seed=0)
    check_equal(inputs, topology)
    assert cpu_layer(*inputs, topology).shape == (N, M, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hub_with_thousands_of_roads(dtype: torch.dtype) -> None:
    rim = list(range(1, 3002))
    topology = bare_topology(3002, [0] * len(rim) + rim, rim + [0] * len(rim))
    check_equal(random_inputs(topology, M=2, D=3, dtype=dtype, seed=5), topology)


@pytest.mark.parametrize("num_edges", [0, 11])
@pytest.mark.parametrize("bias", [True, False])
def test_gradcheck(num_edges: int, bias: bool) -> None:
    topology = random_roads(6, num_edges, seed=2)
    inputs = random_inputs(topology, M=3, D=2, dtype=torch.float64, seed=2, bias=bias)
    given = [x.requires_grad_() for x in inputs if x is not None]
    # gradcheck is untyped, and feeds tensors alone
    assert torch.autograd.gradcheck(lambda h, g, w, b=None: cpu_layer(h, g, w, b, topology), given)


@pytest.mark.parametrize("wanted", ["h", "g", "w", "b", "gwb", "hwb", "hgb"])
def test_only_some_gradients(wanted: str) -> None:
    """Gates that were dropped, frozen weights, the first layer of readings alone."""
    topology = random_roads(8, 15, seed=4)
    check_equal(random_inputs(topology, M=3, D=4, dtype=torch.float64, seed=4), topology, wanted=wanted)


def test_the_order_in_memory_does_not_matter() -> None:
    topology = random_roads(9, 20, seed=6)
    h, gates, weight, bias = random_inputs(topology, M=3, D=4, dtype=torch.float64, seed=6)
    expected = run(cpu_layer, (h, gates, weight, bias), topology)
    for order in ((1, 0, 2), (2, 1, 0)):
        strided = h.permute(order).contiguous().permute(torch.tensor(order).argsort().tolist())
        assert not strided.is_contiguous()
        for right, left in zip(expected, run(cpu_layer, (strided, gates, weight, bias), topology), strict=True):
            torch.testing.assert_close(left, right)
    wide = torch.cat([h, h], dim=-1)[..., :4]
    torch.testing.assert_close(cpu_layer(wide, gates, weight, bias, topology), expected[0])


def test_layers_one_after_the_other_copy_nothing() -> None:
    """The result lies snapshot by snapshot, as the next layer reads it."""
    topology = random_roads(9, 20, seed=6)
    inputs = random_inputs(topology, M=3, D=4, dtype=torch.float32, seed=6)
    assert cpu_layer(*inputs, topology).transpose(0, 1).is_contiguous()


@pytest.mark.parametrize("M", [1, 5])
def test_without_gradients_it_is_the_same_and_keeps_nothing(M: int, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = random_roads(30, 90, seed=8)
    monkeypatch.setattr(layers, "BLOCK_ROWS", 64)
    h, gates, weight, _ = random_inputs(topology, M=M, D=4, dtype=torch.float32, seed=8, bias=False)
    gates_of = [gates] * 3
    weights = [torch.nn.Parameter(weight) for _ in range(3)]
    expected = gated_layers(h, gates_of, weights, [], topology)
    made: list[torch.Size] = []
    real = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda x: (x.ndim == 3 and made.append(x.shape)) or real(x))
    with torch.no_grad():
        assert torch.equal(gated_layers(h, gates_of, weights, [], topology), expected)
    assert made == [(M, 30, 4)]  # the result: nothing for a layer before the last
    gated_layers(h, gates_of, weights, [], topology)
    assert len(made) == 4
    gated_layers(h, gates_of, [weight.detach() for weight in weights], [], topology)  # nothing asks for gradients
    assert len(made) == 5


def test_nothing_that_happened_to_be_in_memory_matters() -> None:
    """torch then fills fresh memory with what is no number."""
    topology = random_roads(30, 50, seed=2)
    inputs = random_inputs(topology, M=4, D=4, dtype=torch.float64, seed=2)
    expected = run(cpu_layer, inputs, topology)
    torch.use_deterministic_algorithms(True)
    try:
        found = run(cpu_layer, inputs, topology)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_backward_can_be_had_twice() -> None:
    topology = random_roads(12, 30, seed=3)
    h, gates, weight, _ = random_inputs(topology, M=3, D=4, dtype=torch.float64, seed=3, bias=False)
    for each in (h, gates, weight):
        each.requires_grad_()
    y = gated_layers(h, [gates, gates], [weight, weight], [], topology)
    first, again = (torch.autograd.grad(y.sum(), [h, gates, weight], retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_a_type_that_has_no_sparse_product_is_computed_too(kind: torch.dtype) -> None:
    topology = random_roads(8, 15, seed=4)
    given = [x for x in random_inputs(topology, M=2, D=4, dtype=torch.float64, seed=4, bias=False) if x is not None]

    def gradients(kind: torch.dtype) -> list[Tensor]:
        h, gates, weight = (x.detach().to(kind).requires_grad_() for x in given)
        y = choose_backend(h.device, kind, 4).gated_layers(h, [gates], [weight], topology)
        return [y.detach(), *torch.autograd.grad(y.sum(), [h, gates, weight])]

    for short, double in zip(gradients(kind), gradients(torch.float64), strict=True):
        assert short.dtype == kind
        assert float((short.double() - double).norm() / double.norm()) < 0.05


@pytest.mark.parametrize("topologies", [1, 2])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_forecast_at_some_nodes_is_that_of_all(preset: str, topologies: int) -> None:
    town = random_town(preset, seed=3, topologies=topologies)
    model = build_model(town.settings, town.scaling).eval()
    batch = town.batch([14, 15, 16])
    expected = model(batch)
    for nodes in (torch.tensor([5, 0, 3]), slice(4), torch.tensor([], dtype=torch.int64)):
        torch.testing.assert_close(model.forecast_at(batch, nodes), expected[..., nodes], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("topologies", [1, 2])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_model_has_the_gradients_of_the_reference(preset: str, topologies: int) -> None:
    """Layers, norm, encoder and decoder together, without dropout."""
    town = random_town(preset, seed=3, topologies=topologies)
    model = build_model(town.settings, town.scaling).double()
    batch = in_float64(town.batch([14, 15, 16, 17]))

    def gradients(kernels: str) -> list[Tensor]:
        with use_kernels(kernels):
            forecast = model(batch)
        upstream = torch.randn(forecast.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        return [forecast.detach(), *torch.autograd.grad((forecast * upstream).sum(), list(model.parameters()))]

    for right, left in zip(gradients("reference"), gradients("auto"), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9 * max(1.0, float(right.abs().max())))
