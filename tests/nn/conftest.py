"""Where the Triton kernels are tested."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.kernels import device_for


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the kernels run: a GPU, or the CPU under Triton's interpreter, there with small tiles."""
    found = device_for("triton")
    if found == "cpu":
        from frigate.nn.ops.cuda import decoder_kernels, layer_kernels, lstm_kernels

        monkeypatch.setattr(layer_kernels, "TUNING", layer_kernels.LayerTuning(programs=2, product_rows=16))
        small: dict[str, Any] = {"forward": (16, 4), "backward": (16, 4)}
        monkeypatch.setattr(lstm_kernels, "TUNING", lstm_kernels.LSTMTuning(**small, sums_block=(32, 4, 1)))
        monkeypatch.setattr(decoder_kernels, "TUNING", decoder_kernels.DecoderTuning(**small))
        mend_products(monkeypatch)
    return found


def mend_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter multiplies the bits of bf16 operands as whole numbers; here it multiplies their values."""
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    plain = interpreter.InterpreterBuilder.create_dot

    def value(x: Any) -> Any:
        if x.dtype.scalar != tl.bfloat16:
            return x
        bits = x.data.view(np.uint16).astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return plain(self, value(a), value(b), *rest)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
