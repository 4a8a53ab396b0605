"""The binary container: what goes in comes out, byte for byte as the page reads it."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from frigate.errors import ServiceError
from frigate.pages.wire import DTYPES, decode, encode
from tests.support.errors import raises

ARRAYS = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.sampled_from(list(DTYPES.values())).flatmap(
        lambda dtype: hnp.arrays(np.dtype(dtype), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    ),
    max_size=4,
)


@given(ARRAYS, st.dictionaries(st.text(max_size=8).filter("arrays".__ne__), st.text() | st.integers(), max_size=4))
def test_written_and_read_again_is_the_same(arrays: dict[str, np.ndarray], meta: dict[str, object]) -> None:
    data = encode(meta, arrays)
    back, found = decode(data)
    assert back == meta and list(found) == list(arrays) and len(data) % 8 == 0
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].tobytes() == array.tobytes()
        assert found[name].shape == array.shape


def test_the_layout_is_that_of_the_contract() -> None:
    """Read by hand, as the page does: every array begins at a multiple of 8, so that a typed array can lie over it."""
    data = encode({"name": "Köln"}, {"a": np.array([1, 2, 3], np.uint8), "b": np.array([[0.5, np.nan]], np.float64)})
    (length,) = struct.unpack_from("<I", data, 4)
    header = json.loads(data[8 : 8 + length].decode())
    assert data[:4] == b"FRG1" and (8 + length) % 8 == 0 and header["name"] == "Köln"
    assert header["arrays"] == {
        "a": {"dtype": "u8", "shape": [3], "offset": 0},
        "b": {"dtype": "f64", "shape": [1, 2], "offset": 8},
    }
    assert data[8 + length : 11 + length] == b"\1\2\3"
    assert struct.unpack_from("<d", data, 8 + length + 8) == (0.5,)


def test_a_mask_is_sent_as_bytes_and_other_orders_are_brought_to_ours() -> None:
    _, arrays = decode(encode({}, {"mask": np.array([True, False]), "big": np.arange(6, dtype=">u4").reshape(2, 3).T}))
    assert arrays["mask"].dtype == np.uint8 and arrays["mask"].tolist() == [1, 0]
    assert arrays["big"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_body_that_is_no_container_is_refused() -> None:
    whole = encode({"x": 1}, {"a": np.arange(100, dtype=np.float32)})
    for bad in (b"", b"FRG1", b"PNG\0" + whole[4:], whole[:20], whole[:-16], b"FRG1\x08\0\0\0[1,2,3] "):
        with raises(ServiceError, str(len(bad))):
            decode(bad)
    with raises(ServiceError, '"n"', "int64"):
        encode({}, {"n": np.arange(3)})
    with pytest.raises(ValueError, match="Out of range float"):
        encode({"x": float("nan")}, {})
