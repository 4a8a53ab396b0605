"""The training loop: AdamW with warm-up and decay, MAE loss at seen nodes, some of their sensors hidden.

The epoch kept is the last, or the one with the lowest error at held-out validation nodes. With hidden sensors and
averaged weights the last is better: a few validation nodes select poorly, and they are missing from training.

All randomness is seeded with (seed, epoch), so a resumed run equals an uninterrupted one bit for bit on a CPU. Several
processes draw the same batches, take a share of the windows each, and sum their gradients: the update equals that of
one process.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from frigate.city.split import windows_in
from frigate.config import TrainSettings
from frigate.draws import Draw, generator, seed_of
from frigate.errors import CheckpointError, SettingsError
from frigate.nn.batch import Batch
from frigate.nn.device import autocast, memory_limit
from frigate.nn.model import absolute_error
from frigate.nn.ops.cuda.recording import RecordedFunction
from frigate.nn.partition import Part, cut_parts
from frigate.nn.predictor import Predictor
from frigate.nn.windows import Windows
from frigate.progress import Progress
from frigate.reading.files import write_file
from frigate.roads.areas import split_into_areas
from frigate.training.checkpoint import METRICS, save_checkpoint
from frigate.training.distributed import Group, on_ctrl_c
from frigate.training.hidden_sensors import draw_hidden, kept_out_sensors, middle_mask, training_masks
from frigate.training.run import Run, RunOnCity, TrainingState

LAST_RATE = 0.02  # final share of the learning rate, at the end of the cosine
ALONE = Group()
TRUSTS = (1.0, 0.75, 0.5, 0.25, 0.0)  # in the learned correction of demand


@dataclass(frozen=True)
class StepReport:
    """Training progress, passed to `on_step` after every step and, with `metrics`, after every epoch."""

    epoch: int
    step: int  # within the epoch
    steps: int  # per epoch
    epochs: int
    loss: float
    metrics: dict[str, Any] | None = None


OnStep = Callable[[StepReport], None]


class Trainer:
    """The training state: model, optimiser, best weights, progress."""

    def __init__(self, run: RunOnCity, windows: Windows, *, group: Group = ALONE) -> None:
        self.run = run
        self.group = group
        self.stopping = False
        self.windows = windows
        self.device = windows.device
        self.settings = run.settings.train
        self.task = run.settings.task
        self.model = run.model.to(self.device)
        self.train_at = windows_in(run.split.train, past=self.task.past, horizon=self.task.horizon)
        self.validate_at = spread(
            windows_in(run.split.validate, past=self.task.past, horizon=self.task.horizon),
            self.settings.validation_windows,
        )
        self.inputs = torch.from_numpy(run.split.training).to(self.device)
        self.masks = training_masks(run) if windows.views.demands else None
        self.together = run.city.detectors.together(run.city.stream.num_nodes)
        self.hidden: int | None = None  # the demand that validation uses when no nodes are held out
        self.targets = self.inputs  # [N] the nodes that the loss knows
        if self.settings.validation != "none":
            scored = run.split.unseen if self.settings.validation == "unseen" else run.split.validation
        elif self.masks is not None:
            self.hidden = len(self.masks)
            scored = kept_out_sensors(run)
            self.targets = self.inputs & ~torch.from_numpy(scored).to(self.device)
        else:
            self.hidden = middle_mask(training_masks(run))
            scored = training_masks(run)[self.hidden]
        self._require_targets(scored)
        self.targets_at: Tensor | slice = self.targets.nonzero()[:, 0]
        self.scored_at = torch.from_numpy(np.flatnonzero(scored)).to(self.device)
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(),
            lr=self.settings.learning_rate,
            weight_decay=self.settings.weight_decay,
            fused=self.device.type == "cuda",  # fused AdamW can skip a step on the device, through found_inf
        )
        whole = math.ceil(len(self.train_at) / self.settings.batch_size)
        self.steps = min(whole, self.settings.steps_per_epoch or whole)
        self.parts = self._divide(run.split.training | scored) if self.settings.parts > 1 else []
        self.micro_batch = micro_batch(run, self.device, self.parts)
        self.averaged = copy.deepcopy(self.model) if self.settings.average else self.model
        self.best = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.progress = run.progress
        self.recorded: _Recorded | None = None
        self.behind = 1 if self.device.type == "cuda" else 0  # steps by which reading the loss lags

    def _require_targets(self, scored: NDArray[np.bool_]) -> None:
        ahead = np.unique(self.validate_at[:, None] + np.arange(1, self.task.horizon + 1))
        if not self.run.city.stream.observed[np.ix_(ahead, np.flatnonzero(scored))].any():
            raise SettingsError(
                f"none of the {int(scored.sum())} validation nodes has a reading in any of the {len(self.validate_at)} "
                "validation windows. Use another --seed, or raise validation_windows"
            )

    def _divide(self, wanted: NDArray[np.bool_]) -> list[Part]:
        """Parts whose core nodes are the wanted ones (those with targets), equally many in each."""
        reach = self.model.reach
        if reach is None:
            label = self.run.settings.model.label
            raise SettingsError(f"parts = {self.settings.parts}: how far {label} looks is not known. Use parts = 1")
        network = self.run.city.stream.network
        rows = np.flatnonzero(wanted)
        areas = split_into_areas(network.lon[rows], network.lat[rows], self.settings.parts)
        return list(cut_parts(self.windows.topologies, [rows[area] for area in areas], reach))

    def fit(self, on_step: OnStep | None = None) -> Run:
        """Train to the last epoch, or until Ctrl-C."""
        folder = self.run.run.folder if self.group.leads else None
        board = open_tensorboard(folder, first_epoch=self.progress.epoch + 1)
        self.group.copy_from_leader(self.model)
        with ExitStack() as stack:
            # Dropout uses torch's global random state; restore the caller's afterwards.
            stack.enter_context(torch.random.fork_rng([self.device] if self.device.type == "cuda" else []))
            if self.group.size > 1:
                stack.enter_context(on_ctrl_c(self._stop))
            try:
                if self.settings.epochs == 0 and not self.progress.finished:
                    self._keep_untrained()
                while not self.progress.finished:
                    metrics = self._epoch(on_step or (lambda report: None))
                    if board is not None:
                        write_tensorboard(board, metrics)
            except KeyboardInterrupt:
                pass
            finally:
                if board is not None:
                    board.close()
        return self._result()

    def _keep_untrained(self) -> None:
        """Keep the initial weights, which forecast demand alone."""
        self.progress = TrainingState(best_mae=self.validate(), finished=True)
        self.group.agree(lambda: self._save(None))

    def _stop(self) -> None:
        """Ask all processes to stop at the same step, so that none waits for one that has left."""
        self.stopping = True

    def _report(self, on_step: OnStep, report: StepReport) -> None:
        try:
            if self.group.leads:
                on_step(report)
        except KeyboardInterrupt:
            if self.group.size == 1:
                raise
            self._stop()

    def restore(self, best: dict[str, Tensor], state: dict[str, Tensor]) -> None:
        """Restore the state of a checkpoint."""
        self.best = {k: v.to(self.device) for k, v in best.items()}
        self.model.load_state_dict({k.removeprefix("model."): v for k, v in state.items() if k.startswith("model.")})
        if self.settings.average:
            averaged = {k.removeprefix("averaged."): v for k, v in state.items() if k.startswith("averaged.")}
            self.averaged.load_state_dict(averaged)
        slots = self.optimiser.state_dict()
        for index, (name, _) in enumerate(self.model.named_parameters()):
            if f"step.{name}" in state:  # absent for a parameter that never had a finite gradient
                slots["state"][index] = {key: state[f"{key}.{name}"] for key in ("step", "exp_avg", "exp_avg_sq")}
        self.optimiser.load_state_dict(slots)

    def _state(self) -> dict[str, Tensor]:
        state = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        if self.settings.average:
            state |= {f"averaged.{k}": v for k, v in self.averaged.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimiser.state[parameter].items():
                state[f"{key}.{name}"] = value
        return state

    def _epoch(self, on_step: OnStep) -> dict[str, Any]:
        began = time.perf_counter()
        epoch = self.progress.epoch
        # Each process has its own windows, so each needs its own dropout masks.
        torch.manual_seed(seed_of(self.settings.seed, Draw.DROPOUT, epoch, self.group.rank))
        rng = generator(self.settings.seed, Draw.EPOCH, epoch)
        order = rng.permutation(self.train_at)
        total = 0.0
        skipped = 0
        waiting: deque[tuple[Tensor, Tensor]] = deque()
        for step in range(self.steps):
            current = order[step * self.settings.batch_size : (step + 1) * self.settings.batch_size]
            waiting.append(self._step(current, rng, epoch * self.steps + step))
            # Reading a loss waits for its step. On a GPU, read the previous step's while the current one runs.
            while waiting and (len(waiting) > self.behind or step + 1 == self.steps):
                loss, finite = (float(number) for number in waiting.popleft())
                total = total + loss
                skipped = skipped + (not finite)
                done = step + 1 - len(waiting)
                self._report(on_step, StepReport(epoch, done, self.steps, self.settings.epochs, loss))
        mae = self.validate()
        seconds = self.progress.seconds + time.perf_counter() - began
        better = mae < self.progress.best_mae or (self.hidden is not None and math.isfinite(mae))
        if better:
            self.best = {k: v.clone() for k, v in self.averaged.state_dict().items()}
        best_epoch = epoch + 1 if better else self.progress.best_epoch
        self.progress = TrainingState(
            epoch=epoch + 1,
            best_epoch=best_epoch,
            best_mae=mae if better else self.progress.best_mae,
            seconds=seconds,
            finished=epoch + 1 >= self.settings.epochs or epoch + 1 - best_epoch >= self.settings.patience,
        )
        loss = total / self.steps
        metrics = {
            "epoch": epoch + 1,
            "loss": loss if math.isfinite(loss) else None,
            "validation_mae": mae if math.isfinite(mae) else None,
            "best": better,
            "skipped_steps": skipped,
            "seconds": round(seconds, 3),
        }
        self.group.agree(lambda: self._save(metrics))
        self._report(on_step, StepReport(epoch, self.steps, self.steps, self.settings.epochs, loss, metrics))
        return metrics

    def _step(self, current: NDArray[np.int64], rng: np.random.Generator, step: int) -> tuple[Tensor, Tensor]:
        """One optimiser step: its loss, and whether the gradient was finite; if not, the update is skipped."""
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(step, self.settings.epochs * self.steps, self.settings)
        self.model.train()
        if self.masks is None:
            sensors = self.run.split.training
            which = None
            drawn = draw_hidden(rng, sensors, len(current), self.settings.hide, self.together)
        else:
            mask = rng.integers(0, len(self.masks), len(current))
            which = self._on_device(mask[self.group.share])
            drawn = self.masks[mask]
        one_of = rng.random(len(current)) if len(self.windows.stream.networks) > 1 else np.zeros(len(current))
        current = current[self.group.share]
        hidden = self._on_device(drawn[self.group.share])
        batch = self.windows.batch(
            current,
            past=self.task.past,
            horizon=self.task.horizon,
            inputs=self.inputs,
            hidden=hidden,
            demand=which,
            one_of=one_of[self.group.share],
        )
        weight = torch.where(hidden, 1.0, self.settings.visible_weight) * self.targets  # [B,N]
        cells = self._cells(batch, weight)
        buffers_before = [buffer.clone() for buffer in self.model.buffers()] if self.group.size > 1 else []
        if self.parts:
            part_of_step = self.parts[draw_part(self.settings.seed, step, len(self.parts))]
            # Times the number of parts, so that the mean loss over the parts is that of the whole network.
            batch = part_of_step.of(batch)
            weight = weight[:, part_of_step.core] * len(self.parts)
        loss = self._gradients(batch, weight, cells)
        if self.group.size > 1:
            whole, stop = self.group.join_step(
                self.model, loss=float(loss), stop=self.stopping, buffers_before=buffers_before
            )
            if stop:
                raise KeyboardInterrupt
            loss = torch.tensor(whole)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        finite = torch.isfinite(norm)
        if self.device.type == "cuda":
            self.optimiser.found_inf = (~finite).float()  # type: ignore[attr-defined]  # read by fused AdamW
            self.optimiser.step()
        elif finite:
            self.optimiser.step()
        if self.settings.average:
            self._average(step)
        return loss, finite

    @torch.no_grad()
    def _average(self, step: int) -> None:
        """Update the averaged weights: at first the mean of all steps, then an exponential moving average."""
        towards = max(1 - self.settings.average, 1 / (step + 1))
        torch._foreach_lerp_(list(self.averaged.parameters()), list(self.model.parameters()), towards)

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor

    def _gradients(self, batch: Batch, weight: Tensor, cells: Tensor) -> Tensor:
        """The loss of a step; leaves its gradients in the parameters."""
        if self._can_record(batch):
            if self.recorded is None:
                self.recorded = _Recorded(self.model, self._loss, batch, weight, cells)
            return self.recorded(batch, weight, cells)
        self.optimiser.zero_grad(set_to_none=True)
        first = 0
        total = torch.zeros((), device=self.device)
        for part in batch.split(self.micro_batch):
            loss = self._loss(part, weight[first : first + part.num_windows]) / cells
            loss.backward()
            total += loss.detach()
            first += part.num_windows
        return total

    def _can_record(self, batch: Batch) -> bool:
        """Whether the step can use a CUDA graph: full batch, one micro-batch, and always the same single topology."""
        whole = batch.num_windows == self.settings.batch_size <= self.micro_batch and not self.parts
        whole &= batch.holds is None
        single = len(batch.topologies) == 1 and (self.recorded is None or batch.topologies[0] is self.recorded.topology)
        return whole and single and self.model.can_record(self.device)

    def _cells(self, batch: Batch, weight: Tensor) -> Tensor:
        """The total weight of the step's targets, over all processes."""
        assert batch.target_observed is not None
        return self.group.sum_((batch.target_observed * weight[:, None]).sum()).clamp(min=1)

    def _loss(self, batch: Batch, weight: Tensor) -> Tensor:
        """The weighted sum of absolute errors in the model's unit."""
        at = slice(weight.shape[1]) if self.parts else self.targets_at  # a part's core nodes come first
        with autocast(self.device):
            forecast = self.model.forecast_at(batch, at)
        assert batch.target is not None and batch.target_observed is not None
        weight = batch.target_observed[..., at] * weight[:, None, at]
        return absolute_error(forecast, batch.target[..., at], weight, self.run.scaling.value_scale)

    def validate(self) -> float:
        """MAE in the user's unit at the validation nodes (or hidden sensors), whose own readings are not used.

        A model that corrects demand gets the trust with the lowest error there.
        """
        trusts = TRUSTS if self.averaged.corrects_demand else (1.0,)
        self.averaged.trust_correction(1.0)
        predict = Predictor(self.averaged, self.run.city.network, self.device, parts=self.parts)
        errors = [0.0] * len(trusts)
        cells = 0.0
        share = self.validate_at[self.group.share]
        for first in range(0, len(share), self.micro_batch):
            current = share[first : first + self.micro_batch]
            hidden = None
            which = None
            if self.hidden is not None:
                hidden = torch.zeros(len(current), len(self.inputs), dtype=torch.bool, device=self.device)
                hidden[:, self.scored_at] = True
                which = None if self.masks is None else torch.full((len(current),), self.hidden, device=self.device)
            batch = self.windows.batch(
                current, past=self.task.past, horizon=self.task.horizon, inputs=self.inputs, hidden=hidden, demand=which
            )
            assert batch.target is not None and batch.target_observed is not None
            made = predict(batch, self.scored_at)
            target = batch.target[..., self.scored_at]
            observed = batch.target_observed[..., self.scored_at]
            for k, trust in enumerate(trusts):
                blended = made if batch.demand is None else batch.demand[..., self.scored_at].lerp(made, trust)
                errors[k] += float(((blended - target).abs() * observed).sum(dtype=torch.float64))
            cells += float(observed.sum())
        *errors, cells = self.group.sums(*errors, cells)
        best = min(range(len(trusts)), key=lambda k: errors[k])  # the first of equals: all of the correction
        self.averaged.trust_correction(trusts[best])
        return errors[best] / cells if cells else math.inf

    def _save(self, metrics: dict[str, Any] | None) -> None:
        """Write the epoch's line of metrics, if any, then the checkpoint."""
        folder = self.run.run.folder
        if folder is None or not self.group.leads:
            return
        if metrics is not None:
            self._log(folder / METRICS, metrics)
        save_checkpoint(folder, replace(self.run.run, progress=self.progress), weights=self.best, state=self._state())

    def _log(self, log: Path, metrics: dict[str, Any]) -> None:
        """Write the epoch's line; if its checkpoint is never written, a resumed run replaces the line."""
        try:
            lines = log.read_text(encoding="utf-8").splitlines()[: metrics["epoch"] - 1] if log.exists() else []
            write_file(log, "\n".join([*lines, json.dumps(metrics)]) + "\n")
        except OSError as error:
            raise CheckpointError(f"{log}: cannot be written: {error.strerror}. Make room, then --resume") from None

    def _result(self) -> Run:
        model = copy.deepcopy(self.model).cpu()
        model.load_state_dict(self.best)
        model.eval()
        return replace(self.run.run, model=model, progress=self.progress)


class _Recorded:
    """Loss and gradients for batches of one size on one topology, as a CUDA graph."""

    def __init__(
        self, model: nn.Module, loss_of: Callable[[Batch, Tensor], Tensor], batch: Batch, weight: Tensor, cells: Tensor
    ) -> None:
        (self.topology,) = batch.topologies
        self.parameters = list(model.parameters())

        def compute(*tensors: Tensor) -> Tensor:
            for parameter in self.parameters:
                parameter.grad = None  # so that backward writes instead of accumulating
            *of_batch, weight, cells = tensors
            loss = loss_of(batch.with_tensors(of_batch), weight) / cells
            loss.backward()
            return loss.detach()

        self.replay = RecordedFunction(compute, [*batch.tensors, weight, cells], weight.device)
        self.gradients = [parameter.grad for parameter in self.parameters]

    def __call__(self, batch: Batch, weight: Tensor, cells: Tensor) -> Tensor:
        loss = self.replay(*batch.tensors, weight, cells)
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return loss.clone()


def learning_rate(step: int, steps: int, settings: TrainSettings) -> float:
    """Linear warm-up, then cosine decay to LAST_RATE."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, steps - settings.warmup_steps)
    return settings.learning_rate * (LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * min(1.0, done))) / 2)


def spread(items: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """At most `count` items, evenly spaced."""
    if len(items) <= count:
        return items
    return items[np.linspace(0, len(items) - 1, count).round().astype(np.int64)]


def draw_part(seed: int, step: int, parts: int) -> int:
    """The part for a step, the same on all processes: every `parts` steps use each part once, in random order."""
    around, place = divmod(step, parts)
    return int(generator(seed, Draw.PARTS, around).permutation(parts)[place])


def micro_batch(run: RunOnCity, device: torch.device, parts: Sequence[Part] = ()) -> int:
    """How many windows fit in memory at once. Affects speed; in the result, only rounding and the dropout masks."""
    settings = run.settings
    stream = run.city.stream
    edges = max(network.num_edges for network in stream.networks)
    nodes, edges = max(((part.num_nodes, part.num_edges) for part in parts), default=(stream.num_nodes, edges))
    task = settings.task
    numbers = run.model.training_activations(nodes=nodes, edges=edges, past=task.past, horizon=task.horizon)
    window = numbers * (2 if device.type == "cuda" else 4)
    return max(1, min(settings.train.batch_size, memory_limit(settings.train.memory_gb, device) // window))


def open_tensorboard(folder: Path | None, *, first_epoch: int) -> Any | None:
    """A TensorBoard writer for the metrics, if it is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    # purge_step drops what a killed process wrote for this and later epochs.
    return folder and SummaryWriter(str(folder / "tensorboard"), purge_step=first_epoch)


def write_tensorboard(writer: Any, metrics: dict[str, Any]) -> None:
    for name in ("loss", "validation_mae"):
        if metrics[name] is not None:
            writer.add_scalar(name, metrics[name], metrics["epoch"])
    writer.flush()


def report_steps(update: Progress, say: Callable[[str], None]) -> OnStep:
    """An `on_step` callback that reports progress over all epochs and prints a line per epoch."""

    def on_step(step: StepReport) -> None:
        words = f"epoch {step.epoch + 1}/{step.epochs} loss {step.loss:.4f}"
        update(step.epoch * step.steps + step.step, step.epochs * step.steps, words)
        if step.metrics is not None:
            say(epoch_line(step.metrics))

    return on_step


def epoch_line(metrics: dict[str, Any]) -> str:
    """One epoch's metrics as text, with a star if it is the best so far."""
    loss, mae = ("not finite" if metrics[k] is None else f"{metrics[k]:.4f}" for k in ("loss", "validation_mae"))
    return f"epoch {metrics['epoch']}: loss {loss}, validation MAE {mae}{' *' if metrics['best'] else ''}"
