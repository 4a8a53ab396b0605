"""Distributed training of one model. torchrun starts the processes; each takes its share of every batch.

All communication goes through a `Group`. For a single process it does nothing.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from frigate.errors import FrigateError, SettingsError
from frigate.nn.device import best_device

T = TypeVar("T")
MAX_WAIT = timedelta(hours=2)  # process 0 may be computing a city's features; torchrun ends a group that lost a process
USER_ERRORS = (FrigateError, OSError)  # these end a command with a message instead of a traceback


@dataclass(frozen=True)
class Group:
    """The processes that train one model. Process 0 leads: only it writes files and prints."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def share(self) -> slice:
        """This process's windows of a batch; may be empty if there are fewer windows than processes."""
        return slice(self.rank, None, self.size)

    def agree(self, work: Callable[[], T]) -> T:
        """Run `work` in all processes. A user error in one of them is raised in all."""
        if self.size == 1:
            return work()
        error: Exception | None = None
        try:
            result = work()
        except USER_ERRORS as raised:
            error = raised
        messages = self.gather(None if error is None else str(error))
        if error is not None:
            raise error
        for rank, message in enumerate(messages):
            if message is not None:
                raise FrigateError(f"process {rank}: {message}")
        return result

    def leader_first(self, work: Callable[[], T]) -> T:
        """Run `work` in process 0, then in the others, which can rely on the files that process 0 wrote."""
        if self.size > 1 and not self.leads:
            self.agree(lambda: None)
        result = self.agree(work)
        if self.size > 1 and self.leads:
            self.agree(lambda: None)
        return result

    def require_same(self, facts: str) -> None:
        """Raise an error if the processes would train on different things, or wait for each other forever."""
        of_all = self.gather(facts)
        others = [str(rank) for rank, facts in enumerate(of_all) if facts != of_all[0]]
        if others:
            raise SettingsError(
                f"processes 0 and {', '.join(others)} differ in city, settings, kind of device or epoch to resume "
                "from. Give all machines the same folders; start different trainings without torchrun"
            )

    def gather(self, item: T) -> list[T]:
        """The item of every process, by rank."""
        items = [item] * self.size
        if self.size > 1:
            dist.all_gather_object(items, item)
        return items

    def sums(self, *numbers: float) -> tuple[float, ...]:
        """Each number summed over the processes in rank order, so that all get bitwise equal results."""
        return tuple(sum(column[1:], column[0]) for column in zip(*self.gather(numbers), strict=True))

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum the tensor over the processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def copy_from_leader(self, model: nn.Module) -> None:
        """Start from identical weights: the seeds are equal, but different CPUs may round differently."""
        if self.size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)

    def join_step(
        self, model: nn.Module, *, loss: float, stop: bool, buffers_before: Sequence[Tensor]
    ) -> tuple[float, bool]:
        """Sum a step's gradients over the processes; return the total loss, and whether any process asks to stop.

        Everything goes in one all-reduce. A parameter that has no gradient in any process keeps none, as with a single
        process. Changes to integer buffers during the step are summed; other buffers take the mean change.
        """
        parameters = list(model.parameters())
        buffers = list(model.buffers())
        head = torch.tensor([loss, stop, *(p.grad is not None for p in parameters)], dtype=torch.float32)
        pieces = [head.to(parameters[0].device)]
        pieces += [(now - then).reshape(-1).float() for now, then in zip(buffers, buffers_before, strict=True)]
        pieces += [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters]
        sums = iter(torch.split(self.sum_(torch.cat(pieces)), [len(piece) for piece in pieces]))
        whole_loss, stops, *holders = next(sums).tolist()
        for now, then in zip(buffers, buffers_before, strict=True):
            change = next(sums).view_as(now) / (self.size if now.is_floating_point() else 1)
            now.copy_(then + change.to(now.dtype))
        for parameter, holders_of_it in zip(parameters, holders, strict=True):
            gradient = next(sums)
            parameter.grad = gradient.view_as(parameter).to(parameter.dtype) if holders_of_it else None
        return whole_loss, stops > 0

    def device(self, requested: str | torch.device | None) -> torch.device:
        """The device of this process: on a machine with GPUs, each of several processes takes one."""
        if self.size == 1 or not torch.cuda.is_available() or str(requested) == "cpu":
            return best_device(requested)
        if requested is not None and str(requested) != "cuda":
            raise SettingsError(f'device "{requested}": each process takes a GPU of its own. Use cuda, or cpu')
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        gpus = torch.cuda.device_count()
        if local_rank >= gpus:
            raise SettingsError(
                f"{local_rank + 1} processes or more on a machine with {gpus} GPUs. Use torchrun --nproc-per-node "
                f"{gpus}, or --device cpu"
            )
        return best_device(f"cuda:{local_rank}")


def current() -> Group:
    """The group that this process has joined."""
    if not (dist.is_available() and dist.is_initialized()):
        return Group()
    return Group(dist.get_rank(), dist.get_world_size())


@contextmanager
def joined() -> Iterator[Group]:
    """Join the process group if torchrun started this process, and leave it at the end.

    A process that finishes, or fails with a user error, waits for the others to get there too: torchrun kills the rest
    as soon as one process fails, and process 0 must have printed its message by then. After any other error, or
    Ctrl-C, the others are at a different point, and nobody waits.
    """
    _, size = _rank_and_size()
    if size == 1 or current().size > 1:
        yield current()
        return
    # Small objects are exchanged over gloo on the CPU, even if training runs on GPUs.
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=MAX_WAIT)
    others_come = False
    try:
        yield current()
        others_come = True
    except (*USER_ERRORS, SystemExit):
        others_come = True
        raise
    finally:
        _leave(wait=others_come)


def _leave(*, wait: bool) -> None:
    """Destroy the process group, whatever state the other processes are in.

    Gloo's threads must end before Python exits: one that still holds a tensor aborts the process ("terminate called
    without an active exception"), and torchrun reports a finished training as failed.
    """
    try:
        if wait:
            with suppress(RuntimeError):  # connection closed: another process has already left
                current().gather("done")
    finally:
        if wait or not torch.cuda.is_available():  # otherwise NCCL would wait for the others here
            dist.destroy_process_group()


def _rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of processes, from torchrun's environment variables."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@contextmanager
def only_leader_prints() -> Iterator[None]:
    """Discard the output of the other processes in this context. Tracebacks still appear after leaving it."""
    rank, size = _rank_and_size()
    with ExitStack() as stack:
        if size > 1 and rank > 0:
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(redirect_stdout(nowhere))
            stack.enter_context(redirect_stderr(nowhere))
        yield


@contextmanager
def on_ctrl_c(then: Callable[[], None]) -> Iterator[None]:
    """On Ctrl-C, call `then` instead of raising KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: then())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
