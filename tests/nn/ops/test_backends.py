"""Which backend is chosen, and the operations that all have: normalise, sparse_sum, embed, take_nodes.

Without a GPU Triton interprets the kernels.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from frigate.errors import SettingsError
from frigate.nn import ops
from frigate.nn.ops import (
    CPU,
    REFERENCE,
    Backend,
    choose_backend,
    describe_kernels,
    records_cuda_graphs,
    use_kernels,
)
from frigate.nn.ops.cuda import CudaBackend
from frigate.nn.ops.sparse import SparseMatrix
from tests.support.errors import raises
from tests.support.kernels import device_for, seeded

BACKENDS = {"reference": REFERENCE, "cpu": CPU, "triton": CudaBackend(matrix_units=True, state_on_chip=True)}


def test_device_type_and_choice_decide() -> None:
    cpu = torch.device("cpu")
    meta = torch.device("meta")
    assert choose_backend(cpu, torch.float32, 64) is choose_backend(cpu, torch.float64, 7) is CPU
    assert choose_backend(cpu, torch.bfloat16, 64) is choose_backend(meta, torch.float32, 64) is REFERENCE
    assert describe_kernels(cpu) == "CPU kernels"
    with use_kernels("reference"):
        assert choose_backend(cpu, torch.float32, 64) is REFERENCE
        assert choose_backend(torch.device("cuda"), torch.bfloat16, 64) is REFERENCE
        assert describe_kernels(cpu) == "plain torch operations"
        with use_kernels("auto"):
            assert choose_backend(cpu, torch.float32, 64) is CPU
        with use_kernels(BACKENDS["triton"]):
            assert choose_backend(cpu, torch.float32, 64) is BACKENDS["triton"] and records_cuda_graphs(cpu)
    assert choose_backend(cpu, torch.float32, 64) is CPU and not records_cuda_graphs(cpu)
    with raises(SettingsError, "kernels", "auto or reference"), use_kernels("fast"):
        pass
    assert choose_backend(cpu, torch.float32, 64) is CPU


def test_every_operation_is_computed_by_the_kernels_in_use() -> None:
    """Each operation of a backend has its function, which asks this backend and passes on all that it is given."""
    used = []

    class Spy(Backend):
        def __getattribute__(self, name: str) -> Any:
            used.append(name)
            return lambda *given: given

    operations = [name for name, each in vars(Backend).items() if callable(each)]
    assert len(operations) == 7
    x = torch.zeros(2, 2)
    lstm = nn.LSTM(2, 2)
    for name in operations:
        function = getattr(ops, name)
        given: tuple[Any, ...] = tuple(
            lstm if each == "lstm" else (x, x) if each == "state" else x
            for each in inspect.signature(function).parameters
            if each not in ("beside", "biases")
        )
        given += ((x,),) if name == "gated_layers" else (x, x) if name == "embed" else ()
        with use_kernels(Spy()):
            assert function(*given) == given
    assert used == operations


def gradients(function: Callable[..., Tensor], inputs: list[Tensor], above: Tensor, device: str) -> list[Tensor]:
    """The function's value and the gradients of its inputs."""
    ready = [each.to(device, copy=True).requires_grad_() for each in inputs]
    y = function(*ready)
    return [part.detach().cpu() for part in (y, *torch.autograd.grad((y * above.to(device)).sum(), ready))]


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=20)
@given(num_nodes=st.integers(1, 20), count=st.integers(0, 60), C=st.integers(1, 9), seed=st.integers(0, 10_000))
def test_a_sparse_sum_is_a_dense_product(name: str, num_nodes: int, count: int, C: int, seed: int) -> None:
    """Coordinates in any order, some twice; value and gradient."""
    device = device_for(name)
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.randint(num_nodes, (2, count), generator=generator)
    weight = torch.randn(count, generator=generator)
    x = torch.randn(num_nodes, C, generator=generator)
    dense = torch.zeros(num_nodes, num_nodes).index_put((rows, columns), weight, accumulate=True)
    grad = torch.randn(num_nodes, C, generator=generator)
    matrix = SparseMatrix.of(rows.to(device), columns.to(device), weight.to(device), num_nodes=num_nodes)
    product, back = gradients(lambda features: BACKENDS[name].sparse_sum(matrix, features), [x], grad, device)
    torch.testing.assert_close(product, dense @ x, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(back, dense.T @ grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_sparse_sum_keeps_the_shape(name: str) -> None:
    device = device_for(name)
    (features,) = seeded(0, (4, 3, 2), device=device)
    index = torch.arange(4, device=device)
    matrix = SparseMatrix.of(index, index.flip(0), torch.ones(4, device=device), num_nodes=4)
    assert torch.equal(BACKENDS[name].sparse_sum(matrix, features.float()), features.float().flip(0))


@pytest.mark.parametrize("snapshots_first", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 4, 64), (257, 1, 7), (5, 90, 24), (0, 2, 8)])
@pytest.mark.parametrize("name", BACKENDS)
def test_normalise_is_a_layer_norm(name: str, shape: tuple[int, ...], snapshots_first: bool) -> None:
    """Value and gradients, whatever the order in memory."""
    device = device_for(name)
    generator = torch.Generator().manual_seed(sum(shape))
    x = 3 + 2 * torch.randn(shape, generator=generator)
    grad = torch.randn(shape, generator=generator)
    norm = nn.LayerNorm(shape[-1])
    for weight in norm.parameters():
        nn.init.normal_(weight)
    expected = gradients(norm, [x], grad, "cpu")
    norm = norm.to(device)

    def normalise(h: Tensor) -> Tensor:
        h = h.transpose(0, 1).contiguous().transpose(0, 1) if snapshots_first else h
        return BACKENDS[name].normalise(h, norm)

    for left, right in zip(gradients(normalise, [x], grad, device), expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", [REFERENCE, CPU])
def test_embedded_readings_stand_beside_the_rest(backend: Backend) -> None:
    readings, weights, beside = seeded(1, (2, 3, 5, 2), (2, 4), (5, 2, 3, 6), device="cpu")
    alone = backend.embed(readings, weights)
    both = backend.embed(readings, weights, beside)
    assert torch.equal(both[..., :4], alone) and torch.equal(both[..., 4:], beside)
    for n, b, t in ((0, 0, 0), (4, 1, 2), (2, 0, 1)):
        torch.testing.assert_close(alone[n, b, t], readings[b, t, n] @ weights)


def test_encodings_lie_snapshot_by_snapshot_on_a_cpu_and_node_by_node_elsewhere() -> None:
    """As the layers and the LSTM read them, also where only some nodes go on: no copy is needed between them."""
    readings, weights, beside = seeded(1, (2, 3, 5, 2), (2, 4), (5, 2, 3, 6), device="cpu")
    nodes = torch.tensor([4, 0])
    for backend, order in ((REFERENCE, (0, 1, 2, 3)), (CPU, (1, 2, 0, 3))):
        h = backend.embed(readings, weights, beside)
        taken = backend.take_nodes(h, nodes)
        assert h.permute(order).is_contiguous() and taken.permute(order).is_contiguous()
        assert torch.equal(taken, h[nodes]) and torch.equal(backend.take_nodes(h, slice(1, 3)), h[1:3])
