"""Pickles read as data: what is allowed comes out equal, the rest is refused by name, bombs end in the sandbox."""

from __future__ import annotations

import collections
import gzip
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from frigate.errors import CityError
from frigate.reading.sandbox import in_sandbox
from frigate.sources.benchmarks.unpickle import Frame, unpickle
from tests.support.errors import raises

PROTOCOLS = (2, 3, 4, 5)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "held.pkl"


def read(file: Path, raw: bytes) -> Any:
    file.write_bytes(raw)
    return unpickle(file)


def attack(file: Path, raw: bytes) -> Any:
    """The same as an import does it: in the sandbox, with limits that end a bomb soon."""
    file.write_bytes(raw)
    with pytest.MonkeyPatch.context() as limited:
        limited.setenv("FRIGATE_READ_MEMORY_GB", "0.3")
        limited.setenv("FRIGATE_READ_SECONDS", "1")
        return in_sandbox(unpickle, file)


ARRAYS = hnp.arrays(
    st.sampled_from(["f4", "f8", ">f8", "i1", "i8", "u2", "?", "U5", "S3", "M8[ns]", "M8[s]"]).map(np.dtype),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
HELD = st.recursive(
    PLAIN | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers(), st.text()), inner, max_size=4)
        | st.sets(st.integers() | st.text(), max_size=4)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b) if isinstance(a, float) else bool(a == b) and type(a) is type(b)


@settings(max_examples=150)
@given(held=HELD, protocol=st.sampled_from(PROTOCOLS))
def test_arrays_and_containers_come_out_equal(
    tmp_path_factory: pytest.TempPathFactory, held: Any, protocol: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.pkl"
    assert same(read(file, pickle.dumps(held, protocol=protocol)), held)


def frames() -> dict[str, pd.DataFrame | pd.Series]:
    times = pd.date_range("2020-01-01", periods=4, freq="5min")
    text = pd.DataFrame(np.arange(12.0).reshape(4, 3), index=times, columns=["a", "b", "c"])
    mixed = text.rename(columns={"a": 7, "b": 8, "c": 9})
    mixed[1] = [1, 2, 3, 4]
    mixed = mixed[[1, 9, 7, 8]]  # two blocks, and the columns of one of them out of order
    return {
        "text columns": text,
        "two blocks": mixed,
        "fortran": pd.DataFrame(np.asfortranarray(np.arange(8, dtype=np.float32).reshape(2, 4))),
        "ranges": pd.DataFrame(np.ones((2, 5), np.int16)),
        "series": text["b"],
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", list(frames()))
def test_frames_come_out_as_arrays(file: Path, name: str, protocol: int) -> None:
    frame = frames()[name]
    held = read(file, gzip.compress(pickle.dumps(frame, protocol=protocol)))
    assert isinstance(held, Frame)
    np.testing.assert_array_equal(held.values, np.asarray(frame).reshape(held.values.shape))
    np.testing.assert_array_equal(held.index, np.asarray(frame.index))
    if isinstance(frame, pd.DataFrame):
        assert held.columns.tolist() == frame.columns.tolist()


class OldManager:
    """A manager as pandas pickled it until 1.2: everything in its state."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    def __reduce__(self) -> tuple[Any, ...]:
        axes = [self.frame.columns, self.frame.index]
        blocks = [{"values": self.frame.to_numpy().T, "mgr_locs": np.arange(len(self.frame.columns))}]
        return type(self.frame._mgr), (), (axes, None, None, {"0.14.1": {"axes": axes, "blocks": blocks}})


class OldFrame:
    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    def __reduce__(self) -> tuple[Any, ...]:
        return pd.DataFrame, (), {"_data": OldManager(self.frame), "_typ": "dataframe"}


def test_names_of_other_versions_are_known(file: Path) -> None:
    frame = frames()["text columns"]
    raw = pickle.dumps(OldFrame(frame), protocol=2)
    for new, old in (
        (b"cpandas\nDataFrame\n", b"cpandas.core.frame\nDataFrame\n"),
        (b"cpandas\nIndex\n", b"cpandas.core.indexes.base\nIndex\n"),
        (b"cpandas\nDatetimeIndex\n", b"cpandas.core.indexes.datetimes\nDatetimeIndex\n"),
        (b"cpandas.core.internals.managers\n", b"cpandas.core.internals\n"),
        (b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"),
    ):
        assert new in raw
        raw = raw.replace(new, old)
    np.testing.assert_array_equal(read(file, raw).values, frame.to_numpy())


def python2_array(values: np.ndarray) -> bytes:
    """A matrix of float32 as Python 2 pickled it: bytes were text, and text was bytes."""
    raw = values.astype("<f4").tobytes()
    shape = b"".join(b"K" + bytes([n]) for n in values.shape)
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR(K\x01("
        + shape
        + b"tcnumpy\ndtype\n(U\x02f4K\x00K\x01tR(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<i", len(raw))
        + raw
        + b"tb"
    )


def test_python_2_wrote_bytes_as_text(file: Path) -> None:
    values = np.array([[1.5, -2.25], [3e30, 0.1]], np.float32)
    raw = b"\x80\x02](]U\x06773869aU\x00" + python2_array(values) + b"e."
    assert pickle.loads(raw, encoding="latin1")[0] == ["773869"]  # it is a pickle to others too
    ids, empty, held = read(file, raw)
    assert (ids, empty) == (["773869"], "")
    np.testing.assert_array_equal(held, values)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("form", ["coo", "csr", "csc"])
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_sparse_matrices(file: Path, protocol: int, form: str, kind: str) -> None:
    dense = np.array([[0, 1.5, 0], [2, 0, 0]])
    sparse = getattr(scipy.sparse, f"{form}_{kind}")(dense)
    np.testing.assert_array_equal(read(file, pickle.dumps(sparse, protocol=protocol)).toarray(), dense)


def test_scalars_of_numpy_and_ordered_dicts(file: Path) -> None:
    held = collections.OrderedDict([(np.int64(3), np.float32(0.5)), ("a", np.bool_(True))])
    assert read(file, pickle.dumps(held)) == {3: 0.5, "a": True}


# What is refused


class Calls:
    def __init__(self, function: Any, *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.args


@pytest.mark.parametrize("protocol", [0, 1, *PROTOCOLS])
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (os.mkdir, ("posix.mkdir", "nt.mkdir")),
        (eval, ("builtins.eval", "__builtin__.eval")),
        (getattr, ("builtins.getattr", "__builtin__.getattr")),
        (np.load, ("numpy.load",)),
        (pd.read_pickle, ("pandas.read_pickle", "pandas.io.pickle.read_pickle")),
        (scipy.sparse.load_npz, ("scipy.sparse.load_npz", "scipy.sparse._matrix_io.load_npz")),
    ],
)
def test_other_names_are_refused_and_not_called(
    file: Path, tmp_path: Path, protocol: int, function: Any, name: tuple[str, ...]
) -> None:
    raw = pickle.dumps([np.ones(2), Calls(function, str(tmp_path / "made"))], protocol=protocol)
    with raises(CityError, "held.pkl", "not allowed") as caught:
        read(file, raw)
    assert any(f" {n} is not allowed" in str(caught.value) for n in name)
    assert not (tmp_path / "made").exists()


def test_a_dotted_name_does_not_reach_through(file: Path) -> None:
    raw = b"\x80\x04\x8c\x05numpy\x8c\x0bndarray.dot\x93."
    with raises(CityError, "numpy.ndarray.dot", "not allowed"):
        read(file, raw)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"\x80\x02U\x01aQ.", "persistent"),
        (b"\x80\x02\x82\x01.", "extension"),
        (b"\x80\x05\x97.", "buffers"),
        (b"(ios\nsystem\n.", "os.system is not allowed"),
        (b"(cos\nsystem\no.", "os.system is not allowed"),
        (b"\x80\x02cnumpy\nndarray\n.", "it holds a class, which is not data"),
        (b"\x80\x02cpandas\nIndex\n)\x81.", "which is not data"),
        (pickle.dumps(np.zeros(2, [("a", "f4")])), "is not read"),
        (pickle.dumps(np.zeros(2, complex)), "an array of 'c16' is not read"),
        (pickle.dumps(pd.DataFrame({"a": ["x", "y"]}, dtype=object)), "Numbers are expected"),
        (b"\x80\x02]q\x00h\x00a.", "contain themselves"),
        (b"\x80\x02" + b"]" * 60 + b"a" * 59 + b".", "over 50 deep"),
        (b"", "is damaged"),
        (b"PK\x03\x04 no pickle", "is damaged"),
    ],
)
def test_refusals_give_the_reason(file: Path, raw: bytes, said: str) -> None:
    with pytest.raises(CityError) as caught:
        read(file, raw)
    assert said in str(caught.value) and "held.pkl" in str(caught.value)


@pytest.mark.parametrize("name", ["numpy\nndarray", "builtins\nset", "_codecs\nencode", "collections\nOrderedDict"])
def test_a_state_cannot_change_what_is_shared(file: Path, name: str) -> None:
    """BUILD on a class: its dict, and its attributes."""
    named = b"\x80\x02c" + name.encode() + b"\n"
    attributes = b"}X\x07\x00\x00\x00__new__K\x01s"
    for state in (attributes, b"N" + attributes + b"\x86"):
        with raises(CityError, "held.pkl"):
            read(file, named + state + b"b.")
    assert same(read(file, pickle.dumps(np.ones(3))), np.ones(3))


def huge(name: str) -> bytes:
    if name == "memo":
        return b"\x80\x02K\x01r\xff\xff\xff\x7f0."
    if name == "bytes":
        return b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"abc."
    if name == "text":
        return b"\x80\x02X" + struct.pack("<I", 1 << 31) + b"abc."
    if name == "shape":
        array = pickle.dumps(np.zeros(1000), protocol=4)
        shape = struct.pack("<BH", 0x4D, 1000)
        assert array.count(shape) == 1
        return array.replace(shape, b"J" + struct.pack("<i", 2**31 - 1))
    if name == "range":
        frame = pickle.dumps(pd.DataFrame(np.ones((99, 2))), protocol=4)
        assert frame.count(b"Kc") == 2  # the shape, and the end of the range
        return frame[: frame.rindex(b"Kc")] + b"J" + struct.pack("<i", 2**31 - 1) + frame[frame.rindex(b"Kc") + 2 :]
    if name == "many bytes":
        return b"\x80\x02c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R."
    if name == "key":  # 2^60 tuples, each hashed
        twice = b"".join(b"h%ch%c\x86q%c0" % (n, n, n + 1) for n in range(60))
        return b"\x80\x02)q\x000}" + twice + b"h\x3cK\x01s."
    inside = bytes(1 << 29)
    if name == "bomb in a text":
        inside = b"\x80\x04\x8e" + struct.pack("<Q", len(inside)) + inside + b"."
    return gzip.compress(inside, 1)


@pytest.mark.parametrize(
    "name", ["memo", "bytes", "text", "shape", "range", "many bytes", "key", "bomb", "bomb in a text"]
)
def test_a_few_bytes_cannot_take_much_memory_or_time(file: Path, name: str) -> None:
    with raises(CityError, "held.pkl"):
        attack(file, huge(name))


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("ends", [[0, 2**62, -(2**62), 2], [0, 5, 1, 2], [0, 1, 1, 3], [0, -1, 2, 2], [1, 1, 2, 2]])
def test_a_sparse_matrix_whose_rows_wrap_around_is_refused(file: Path, form: str, ends: list[int]) -> None:
    matrix = getattr(scipy.sparse, f"{form}_matrix")(np.array([[0, 1.5, 0], [2, 0, 0], [0, 0, 0]]))
    matrix.indptr = np.array(ends)
    with raises(CityError, "held.pkl", "damaged"):
        read(file, pickle.dumps(matrix))


def test_an_object_that_is_referred_to_twice_is_built_once(file: Path) -> None:
    twice = b"".join(b"h%ch%c\x86q%c0" % (n, n, n + 1) for n in range(40))
    held = read(file, b"\x80\x02)q\x000" + twice + b"h(.")  # 2^40 tuples if each were made anew
    assert held[0] is held[1]


def test_a_cut_pickle_is_refused_wherever_it_is_cut(file: Path) -> None:
    raw = pickle.dumps(frames()["text columns"], protocol=4)
    for cut in range(0, len(raw), 7):
        with pytest.raises(CityError):
            read(file, raw[:cut])


def test_altered_pickles_are_read_or_refused(file: Path) -> None:
    rng = np.random.default_rng(0)
    whole = [pickle.dumps(f, protocol=p) for f in frames().values() for p in (2, 4)]
    whole.append(pickle.dumps([["a"], {"a": 0}, scipy.sparse.csr_matrix(np.eye(3))], protocol=2))
    refused = 0
    for _ in range(400):
        raw = bytearray(whole[int(rng.integers(len(whole)))])
        for at in rng.integers(len(raw), size=int(rng.integers(1, 4))):
            raw[at] = int(rng.integers(256))
        try:
            attack(file, bytes(raw))
        except CityError:
            refused += 1
    assert refused > 50
