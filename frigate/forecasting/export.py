"""Export a run as a single file for serving: a torch.export program, or ONNX.

The numbers of nodes, roads and neighbour pairs are dynamic; past and horizon are the run's. The file is written to a
temporary path, loaded, run on several networks and compared with the model, and only then moved into place.
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import datetime
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from frigate.calendar import DAY_S, wall_clock
from frigate.city.city import City
from frigate.city.network import Edges, Road, RoadNetwork
from frigate.city.stream import RoadNetworkStream
from frigate.config import ModelSettings
from frigate.demand.tables import DEMAND_NODE
from frigate.errors import CheckpointError, FrigateError, MissingExtraError, SettingsError
from frigate.forecasting.forecast import ask
from frigate.forecasting.forecaster import Request
from frigate.nn.batch import BATCH_SHAPES, Batch
from frigate.nn.forecast_model import ForecastModel
from frigate.nn.predictor import Predictor
from frigate.nn.scaling import NEAR_SENSORS
from frigate.nn.topology import TOPOLOGY_SHAPES, Topology, make_topology
from frigate.reading.files import replacing_file
from frigate.roads.features import FEATURE_WIDTH
from frigate.training.run import Run

OUTPUT = "forecast"  # [H,N]
YEAR_S = 365 * DAY_S
OPEN = {"N": "nodes", "E": "roads", "P": "pairs"}  # dynamic sizes, and their names in the file
WINDOW = {name: shape.letters[1:] for name, shape in BATCH_SHAPES.items() if shape.read}  # one window: without B
DEMAND = tuple(field.name for field in fields(Batch) if field.name in WINDOW and field.default is None)
ROADS = {name: shape.letters for name, shape in TOPOLOGY_SHAPES.items() if shape.read}
# Every input with its shape, in order. A program has those that its model reads.
SHAPES = {name: WINDOW[name] for name in WINDOW if name not in DEMAND} | ROADS | {name: WINDOW[name] for name in DEMAND}
TOLERANCE = 1e-5  # relative to the largest forecast or the readings' spread, whichever is larger; rounding is some 1e-7
NEEDED = ("onnx", "onnxscript", "onnxruntime")

Inputs = dict[str, NDArray[Any]]
Program = Callable[[Inputs], NDArray[np.float32]]


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how far its forecasts are from the model's, in the user's unit."""

    path: Path
    differences: dict[str, float]  # largest difference on each test network
    seconds: float

    def summary(self) -> str:
        away = max(self.differences.values())
        return f"{self.path}: {self.path.stat().st_size / 1e6:.1f} MB, at most {away:.1g} from the model's forecasts"


def export_program(run: Run, path: str | Path, city: City | None = None) -> Exported:
    """Write a torch.export program. `torch.export.load(path).module()(**inputs)` returns the forecast [H,N].

    Parameters
    ----------
    run : Run
        The run of a Frigate model.
    path : path
        The .pt2 file to write.
    city : City, optional
        Compare program and model on this city, in addition to synthetic networks. Default: the city the run was
        trained on, if its folder can be opened.
    """
    return _export(run, Path(path), city, ".pt2", torch.export.save, _torch_program)


def export_onnx(run: Run, path: str | Path, city: City | None = None) -> Exported:
    """Write an ONNX model, for onnxruntime and other runtimes. Needs the extra `export`.

    Parameters
    ----------
    run, city
        As for `export_program`.
    path : path
        The .onnx file to write.
    """
    for package in NEEDED:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "export")
    return _export(run, Path(path), city, ".onnx", _save_onnx, _onnx_program)


def inputs(
    run: Run,
    network: RoadNetwork | None = None,
    stream: RoadNetworkStream | City | None = None,
    *,
    at: datetime | str | int | None = None,
    close: Sequence[str | Road] = (),
    add: Sequence[str | Road] = (),
    sensors: Literal["seen", "all"] = "seen",
) -> Inputs:
    """The inputs of the exported program for a forecast, named as in `SHAPES`.

    The arguments are those of `forecast`. A program takes one network for all snapshots: if the roads change within the
    window or ahead, those of the first step ahead are used throughout.
    """
    _frigate(run)
    return _arrays(run, *_request(run, network, stream, at=at, close=close, add=add, sensors=sensors))


def write_sample(run: Run, path: str | Path, city: City | None = None) -> Path:
    """Write the inputs at the end of a city's readings as .npz, with `node_ids` and the model's `forecast` [H,N].

    Default: the city the run was trained on, from its folder.
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise SettingsError(f"{path}: a sample is a .npz file. Name it so")
    request, topology = _request(run, None, city)
    arrays = _arrays(run, request, topology)
    node_ids = request.forecast.node_ids
    node_ids = node_ids.astype(str) if node_ids.dtype == object else node_ids
    with _beside(path) as beside, beside.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays, **{OUTPUT: _by_model(run, arrays), "node_ids": node_ids})
    return path


def check_parity(run: Run, program: Program, cases: dict[str, Inputs]) -> dict[str, float]:
    """The largest difference between a program and the run's model on each input. Raises an error on a mismatch."""
    found = {}
    for name, arrays in cases.items():
        want = _by_model(run, arrays)
        got = program(arrays)
        if got.shape != want.shape:
            raise FrigateError(f"{name}: the program gives {got.shape}, the model {want.shape}. {_REMEDY}")
        difference = float(np.abs(got.astype(np.float64) - want).max())
        limit = TOLERANCE * max(run.scaling.value_scale, float(np.abs(want).max()))
        if not difference <= limit:  # NaN is a mismatch too
            raise FrigateError(
                f"{name}: the program differs from the model by {difference:.3g}, more than {limit:.3g}. {_REMEDY}"
            )
        found[name] = difference
    return found


_REMEDY = "It is not written. Export with another version of torch (or of onnx, onnxscript, onnxruntime)"


class PlainForecast(nn.Module):
    """The model's forecast [H,N] from plain tensors. Not clamped, because clamping could mask differences in a check.

    Uses the reference backend, whose index_add every runtime supports.
    """

    def __init__(self, model: ForecastModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        none = inputs["values"].new_zeros(inputs["values"].shape[1], 0)
        unread = inputs["senders"][:0]  # the reference backend does not read the CSR indices
        topology = Topology(
            **{name: inputs.get(name, none) for name in ROADS},
            presence=inputs["observed"][0],  # only its length is read
            out_start=unread,
            in_start=unread,
            in_order=unread,
            visit_order=unread,
        )
        batch = Batch.of_window({name: inputs[name] for name in WINDOW if name in inputs}, topology)
        made: Tensor = self.model(batch)[0]
        return made

    # The names of a program's inputs are those of the function that is exported.
    forward.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter("self", Parameter.POSITIONAL_OR_KEYWORD),
            *(Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in SHAPES),
        ]
    )


def _plain(run: Run) -> PlainForecast:
    model = copy.deepcopy(_frigate(run)[0]).cpu().eval().requires_grad_(False)
    if model.reach is None:
        raise SettingsError("the model has other parts than paper and default have: only those are exported")
    return PlainForecast(model)


def _export(
    run: Run,
    path: Path,
    city: City | None,
    suffix: str,
    save: Callable[[Any, Path], None],
    load: Callable[[Path], Program],
) -> Exported:
    if path.suffix != suffix:
        raise SettingsError(f"{path}: the file's name has to end in {suffix}")
    began = time.perf_counter()
    plain = _plain(run)
    with _beside(path) as beside:
        with _quiet():
            save(_traced(plain, _synthetic(run, nodes=40, seed=0)), beside)
        found = check_parity(run, load(beside), _cases(run, city))
    return Exported(path, found, time.perf_counter() - began)


def _traced(plain: PlainForecast, example: Inputs) -> torch.export.ExportedProgram:
    dims = {letter: torch.export.Dim(name) for letter, name in OPEN.items()}
    with torch.no_grad():
        # strict: the non-strict tracer would treat len() of a tensor as a constant
        program = torch.export.export(
            plain, (), _tensors(example), dynamic_shapes=_open_sizes(example, dims), strict=True
        )
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # contains local paths
    return program


def _open_sizes(names: Iterable[str], dims: Mapping[str, object]) -> dict[str, Any]:
    """The dynamic dimensions of each input, by the letters in SHAPES."""
    return {name: {i: dims[letter] for i, letter in enumerate(SHAPES[name]) if letter in dims} for name in names}


def _save_onnx(program: torch.export.ExportedProgram, path: Path) -> None:
    names = [node.name for node in program.graph.nodes if node.name in SHAPES]
    made = torch.onnx.export(
        program,
        dynamo=True,
        output_names=[OUTPUT],
        dynamic_shapes=_open_sizes(names, OPEN),
        verbose=False,
        custom_translation_table={torch.ops.aten.index_add.default: _onnx_index_add},
    )
    if made is None:
        raise FrigateError("torch.onnx gave no program. Use another version of torch")
    made.save(path, external_data=False)  # one file


def _onnx_index_add(x: Any, dim: int, index: Any, source: Any, alpha: float = 1.0) -> Any:
    """x.index_add(dim, index, source) as ONNX operators.

    torch would use ScatterND, for which onnxruntime's threads overwrite each other's sums if an index occurs twice
    (onnxruntime issues 18048 and 23396). ScatterElements is slower but correct.
    """
    from onnxscript import opset18

    op: Any = opset18  # its type hints are for eager mode
    others = op.Constant(value_ints=[i for i in range(len(source.shape)) if i != dim])
    where = op.Expand(op.Unsqueeze(index, others), op.Shape(source))
    return op.ScatterElements(x, where, source, axis=dim, reduction="add")


def _torch_program(path: Path) -> Program:
    module = torch.export.load(path).module()

    def call(arrays: Inputs) -> NDArray[np.float32]:
        with torch.no_grad():
            return np.asarray(module(**_tensors(arrays)).numpy())

    return call


def _onnx_program(path: Path) -> Program:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda arrays: np.asarray(session.run([OUTPUT], arrays)[0])


def _cases(run: Run, city: City | None) -> dict[str, Inputs]:
    """Synthetic networks of several sizes and, if available with enough snapshots, a real city."""
    small = _synthetic(run, nodes=23, seed=1)
    large = _synthetic(run, nodes=171, seed=2)
    blind = {**small, "values": np.zeros_like(small["values"]), "observed": np.zeros_like(small["observed"])}
    cases = {"synthetic, 23 nodes": small, "synthetic, 171 nodes": large, "without a reading": blind}
    with suppress(CheckpointError):  # export must work on a machine without the city
        city = city or run.open_city()
    if city is not None and city.stream.num_snapshots >= run.settings.task.past:
        cases[city.name] = inputs(run, stream=city)
    return cases


def _synthetic(run: Run, *, nodes: int, seed: int) -> Inputs:
    """Random inputs with the right shapes and plausible values."""
    _, settings = _frigate(run)
    task = run.settings.task
    scaling = run.scaling
    rng = np.random.default_rng([seed, 7])
    T = task.past
    H = task.horizon
    N = nodes
    ends = rng.integers(0, N, (2, 5 * N // 2))
    ends = np.unique(ends[:, ends[0] != ends[1]], axis=1)
    pairs = np.unique(np.concatenate([ends, ends[::-1]], axis=1), axis=1)
    observed = rng.random((T, N)) < 0.5
    delta = rng.uniform(0.2, 3, ends.shape[1])
    near_m = rng.exponential(5 * scaling.length_scale_m, (N, NEAR_SENSORS))
    sizes = {"K": settings.anchors, "R": FEATURE_WIDTH if settings.roads else 0}
    made: Inputs = {
        "values": np.where(observed, scaling.value_offset + scaling.value_scale * rng.random((T, N)), 0),
        "observed": observed,
        "time_past": wall_clock(rng.integers(0, YEAR_S, T)),
        "time_future": wall_clock(rng.integers(0, YEAR_S, H)),
        "senders": ends[0],
        "receivers": ends[1],
        "length_m": np.multiply(delta, scaling.length_scale_m),
        "neighbour_of": pairs[0],
        "neighbour": pairs[1],
        "positions": rng.random((N, sizes["K"])),
        "road_features": rng.normal(size=(N, sizes["R"])),
        "near_sensor": rng.integers(0, N, (N, NEAR_SENSORS)),
        "near_distance_m": np.where(rng.random((N, NEAR_SENSORS)) < 0.3, np.inf, near_m),
        "usual_past": scaling.value_scale * rng.random((T, N)),
        "demand": scaling.value_scale * rng.random((H, N)),
        "demand_node": rng.random((N, len(DEMAND_NODE))),
    }
    return {name: _typed(made[name]) for name in _names(run)}


def _names(run: Run) -> list[str]:
    """The inputs that the run's model reads."""
    _, settings = _frigate(run)
    left_out = [] if settings.anchors else ["positions"]
    left_out += [] if settings.roads else ["road_features", "near_sensor", "near_distance_m"]
    left_out += [] if run.scaling.demand is not None else DEMAND
    return [name for name in SHAPES if name not in left_out]


def _request(
    run: Run, network: RoadNetwork | None, source: RoadNetworkStream | City | None, **when: Any
) -> tuple[Request, Topology]:
    """The model input of `forecast`, and the roads of the first step ahead, which stand for those of all snapshots."""
    sensors = when.pop("sensors", "seen")
    forecaster, changes = ask(run, network, source, sensors=sensors, device="cpu")
    request = forecaster.request(**when, **changes)
    batch = request.batch
    task = run.settings.task
    if (batch.past, batch.horizon) != (task.past, task.horizon):
        raise SettingsError(
            f"{batch.past} snapshots and {batch.horizon} steps after them: an exported program has exactly {task.past} "
            f"and {task.horizon}. Take a time that has so many snapshots right before it"
        )
    return request, forecaster.windows().views.view(request.networks[0]).topology


def _arrays(run: Run, request: Request, topology: Topology) -> Inputs:
    names = _names(run)
    batch = request.batch
    row = 0 if batch.holds is None else int(batch.holds[:, 0].nonzero()[0])
    tensors = {name: getattr(batch, name)[row] if name in WINDOW else getattr(topology, name) for name in names}
    return {name: _typed(tensor.numpy()) for name, tensor in tensors.items()}


def _by_model(run: Run, arrays: Inputs) -> NDArray[np.float32]:
    """[H,N] from the model itself, with its normal backend."""
    N = arrays["values"].shape[1]
    nowhere = np.zeros(N)
    network = RoadNetwork(
        np.arange(N), nowhere, nowhere, Edges.of(arrays["senders"], arrays["receivers"], arrays["length_m"])
    )
    of_nodes = [name for name, letters in ROADS.items() if letters.startswith("N")]
    topology = make_topology(network, **{name: arrays.get(name, np.zeros((N, 0), np.float32)) for name in of_nodes})
    batch = Batch.of_window(_tensors({name: arrays[name] for name in WINDOW if name in arrays}), topology)
    return np.asarray(Predictor(run.model, network, torch.device("cpu"))(batch)[0].numpy())  # not clamped


def _frigate(run: Run) -> tuple[ForecastModel, ModelSettings]:
    """The run's model and its settings; raises an error if they cannot be exported."""
    model = run.model
    settings = run.settings.model
    if not isinstance(settings, ModelSettings):
        raise SettingsError(f'preset "{settings.preset}": only paper and default can be exported. Train one of them')
    return model, settings


def _typed(array: NDArray[Any]) -> NDArray[Any]:
    """Convert to the type of a program input: float32, int64 or bool."""
    kind = {"f": np.float32, "i": np.int64, "b": np.bool_}[array.dtype.kind]
    return np.ascontiguousarray(array, kind)


def _tensors(arrays: Inputs) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A temporary path to write to, moved to `path` on success."""
    try:
        with replacing_file(path) as new:
            yield new
    except OSError as error:
        reason = error.strerror or error
        raise SettingsError(f"{path}: cannot be written: {reason}. Name a file in a folder that can be") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warnings during export."""
    talker = logging.getLogger("torch.onnx._internal.exporter._registration")  # warns that torchvision is missing
    level = talker.level
    talker.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        talker.setLevel(level)
