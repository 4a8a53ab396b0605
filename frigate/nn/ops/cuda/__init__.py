"""The CUDA backend: Triton kernels for a whole layer, the LSTM, the decoder, layer norm and sparse sums.

`*_kernels.py` contain the kernels and their launchers; the modules next to them contain the autograd functions. They
are imported on first use, because they need Triton.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frigate.nn.ops.reference import Backend, State, Tensors
from frigate.nn.ops.sparse import SparseMatrix, multiply
from frigate.nn.topology import Topology

HALF = (torch.bfloat16, torch.float16)
MAX_WIDTH = 128
# The LSTM and decoder kernels need up to 146 KiB per program, as on the H100, H200 and later data-centre GPUs. The
# threshold also rules out non-NVIDIA GPUs, which cannot run the inline PTX.
SHARED_BYTES = 200 * 1024
MAX_KNOWN = 14  # known future inputs: with y and a column of ones, they fill the 16 columns of one product
MAX_HIDDEN = 64  # units in the readout's hidden layer


@dataclass(frozen=True)
class CudaBackend(Backend):
    """Falls back to the reference where a kernel does not support the encodings or the GPU."""

    matrix_units: bool  # tensor cores support the type and width of the encodings
    state_on_chip: bool  # and the LSTM's weights and state fit in shared memory
    name = "Triton kernels"
    records_cuda_graphs = True

    @classmethod
    def for_encodings(cls, device: torch.device, dtype: torch.dtype, width: int) -> CudaBackend:
        """The backend for encodings [...,width] of this type."""
        fits = suits_matrix_units(dtype, width)
        shared = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
        return cls(fits, fits and shared >= SHARED_BYTES)

    def gated_layers(
        self, h: Tensor, gates: Tensors, weights: Tensors, topology: Topology, biases: Tensors = ()
    ) -> Tensor:
        if not self.matrix_units:
            return super().gated_layers(h, gates, weights, topology, biases)
        from frigate.nn.ops.cuda.layers import gated_layers

        return gated_layers(h, gates, weights, biases, topology)

    def normalise(self, h: Tensor, norm: nn.LayerNorm) -> Tensor:
        from frigate.nn.ops.cuda.norm import layer_norm

        with torch.autocast(h.device.type, enabled=False):
            return layer_norm(h, norm.weight, norm.bias, norm.eps)

    def encode(self, lstm: nn.LSTM, z: Tensor, state: State) -> State:
        if not (self.state_on_chip and encoder_fits(lstm)):
            return super().encode(lstm, z, state)
        from frigate.nn.ops.cuda.lstm import run_lstm

        return run_lstm(z.flatten(0, 1), *state, *lstm.parameters())

    def decode(
        self, lstm: nn.LSTMCell, readout: nn.Module, state: State, prior: Tensor, y: Tensor, known: Tensor
    ) -> Tensor:
        if not (self.state_on_chip and decoder_fits(lstm, readout)):
            return super().decode(lstm, readout, state, prior, y, known)
        from frigate.nn.ops.cuda.decoder import run_decoder

        (dropout,) = (layer.p if layer.training else 0.0 for layer in readout.modules() if type(layer) is nn.Dropout)
        weights = *lstm.parameters(), *readout.parameters()
        return run_decoder(*state, y, prior, known, *weights, dropout=dropout)

    def sparse_sum(self, matrix: SparseMatrix, features: Tensor) -> Tensor:
        from frigate.nn.ops.cuda.sparse_kernels import row_sums

        return multiply(matrix, features, row_sums)


def suits_matrix_units(dtype: torch.dtype, width: int) -> bool:
    """Whether tensor cores support encodings of this type and width."""
    return dtype in HALF and width % 16 == 0 and 0 < width <= MAX_WIDTH


def encoder_fits(lstm: nn.Module) -> bool:
    """Whether the kernels support this LSTM: one layer and direction, biases, inputs as wide as states."""
    if type(lstm) is not nn.LSTM:
        return False
    plain = lstm.num_layers == 1 and not lstm.bidirectional and lstm.bias and not lstm.proj_size
    return plain and lstm.batch_first and lstm.hidden_size == lstm.input_size


def decoder_fits(lstm: nn.Module, readout: nn.Module) -> bool:
    """Whether the kernels support this decoder: a cell that reads y and known inputs, an MLP that outputs one y."""
    if type(lstm) is not nn.LSTMCell or not isinstance(readout, nn.Sequential):
        return False
    if [type(layer) for layer in readout] != [nn.Linear, nn.ReLU, nn.Dropout, nn.Linear]:
        return False
    inner, outer = (layer for layer in readout if isinstance(layer, nn.Linear))
    small = 1 <= lstm.input_size <= 1 + MAX_KNOWN and inner.out_features <= MAX_HIDDEN and outer.out_features == 1
    return small and lstm.bias and inner.bias is not None and outer.bias is not None
