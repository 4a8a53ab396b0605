"""Several processes that train one model. torchrun starts them; each takes its share of every batch.

A `Group` holds everything the processes must agree on. In a group of one process it does nothing.
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

T = TypeVar("T")
MAX_WAIT = timedelta(hours=2)  # for process 0, which may compute a city's features; torchrun ends a lost group
USER_ERRORS = (FrigateError, OSError)  # end a command with a message, not with a traceback


@dataclass(frozen=True)
class Group:
    """The processes of one training. Process 0 leads: it alone writes files and prints."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def share(self) -> slice:
        """This process's windows of a batch: none where there are fewer windows than processes."""
        return slice(self.rank, None, self.size)

    def agree(self, work: Callable[[], T]) -> T:
        """Do the work in all processes. A user's error in one of them is raised in all."""
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
        """Do the work in process 0 and then in the others, which find complete what process 0 has written."""
        if self.size > 1 and not self.leads:
            self.agree(lambda: None)
        result = self.agree(work)
        if self.size > 1 and self.leads:
            self.agree(lambda: None)
        return result

    def require_same(self, facts: str) -> None:
        """Refuse processes that would train on different things, or wait for each other forever."""
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
        """Each number summed over the processes by rank, so that all get the same bits."""
        return tuple(sum(column[1:], column[0]) for column in zip(*self.gather(numbers), strict=True))

    def sum_(self, tensor: Tensor) -> Tensor:
        """The tensor, summed over the processes in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def copy_from_leader(self, model: nn.Module) -> None:
        """Start from equal weights: all draw the same ones, but another kind of processor may round differently."""
        if self.size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)

    def join_step(
        self, model: nn.Module, *, loss: float, stop: bool, buffers_before: Sequence[Tensor]
    ) -> tuple[float, bool]:
        """Sum a step's gradients over the processes; return the whole loss, and whether any process asks to stop.

        Everything goes in one message. A parameter that has no gradient in any process keeps none, as in a single
        process. The change of a buffer of integers in the step is summed too; another buffer takes the mean change.
        """
        parameters, buffers = list(model.parameters()), list(model.buffers())
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

    def device_name(self, requested: str | None) -> str | None:
        """The device of this process: of several processes on a machine with GPUs, each takes one."""
        if self.size == 1 or requested == "cpu" or not torch.cuda.is_available():
            return requested
        if requested not in (None, "cuda"):
            raise SettingsError(f'device "{requested}": each process takes a GPU of its own. Use cuda, or cpu')
        local_rank, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local_rank >= gpus:
            raise SettingsError(
                f"{local_rank + 1} processes or more on a machine with {gpus} GPUs. Use torchrun --nproc-per-node "
                f"{gpus}, or --device cpu"
            )
        torch.cuda.set_device(local_rank)  # where kernels are launched
        return f"cuda:{local_rank}"


def current() -> Group:
    """The group that this process has joined."""
    if not (dist.is_available() and dist.is_initialized()):
        return Group()
    return Group(dist.get_rank(), dist.get_world_size())


@contextmanager
def joined() -> Iterator[Group]:
    """Join the processes that torchrun has started, if it has, and leave them at the end.

    Whoever is done, or ends with a user's error, waits for the others to get there too: as soon as one process has
    failed, torchrun ends the rest, and process 0 must have printed its message by then. After any other error, or
    Ctrl-C, the others are elsewhere, and nobody waits.
    """
    _, size = _rank_and_size()
    if size == 1 or current().size > 1:
        yield current()
        return
    # Small things that the processes agree on go over the CPU, wherever they compute.
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
    """Destroy the process group, whatever has become of the others.

    Gloo's threads must be gone before Python exits. One of them that still holds a tensor then aborts the process
    ("terminate called without an active exception"), and torchrun reports a finished training as failed.
    """
    try:
        if wait:
            with suppress(RuntimeError):  # the connection is closed: another process has left already
                current().gather("done")
    finally:
        if wait or not torch.cuda.is_available():  # NCCL would wait for the others here
            dist.destroy_process_group()


def _rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of processes, from torchrun's variables."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@contextmanager
def only_leader_prints() -> Iterator[None]:
    """Discard what the other processes print in here. Tracebacks appear once it is left."""
    rank, size = _rank_and_size()
    with ExitStack() as stack:
        if size > 1 and rank > 0:
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(redirect_stdout(nowhere))
            stack.enter_context(redirect_stderr(nowhere))
        yield


@contextmanager
def on_ctrl_c(then: Callable[[], None]) -> Iterator[None]:
    """At Ctrl-C call `then` in place of raising KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: then())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
