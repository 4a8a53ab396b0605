"""Several processes that train one model: started by torchrun, each with a share of every batch.

All that they must agree on goes through a `Group`. A group of one process does nothing at all.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from frigate.errors import FrigateError, SettingsError

T = TypeVar("T")
MAX_WAIT = timedelta(hours=2)  # for process 0, which may compute a city's features; torchrun ends a lost group
TOLD = (FrigateError, OSError)  # what ends a command with a message


@dataclass(frozen=True)
class Group:
    """The processes of one training. Process 0 leads: it alone writes and speaks."""

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
        """Do the work on all processes at once. Where it is refused on one, it is refused on all."""
        if self.size == 1:
            return work()
        refused: Exception | None = None
        try:
            made = work()
        except TOLD as error:
            refused = error
        reasons = self.gather(None if refused is None else str(refused))
        if refused is not None:
            raise refused
        for rank, reason in enumerate(reasons):
            if reason is not None:
                raise FrigateError(f"process {rank}: {reason}")
        return made

    def in_turn(self, work: Callable[[], T]) -> T:
        """Do the work on process 0 first: what it writes is there, and whole, when the others come to it."""
        if self.size > 1 and not self.leads:
            self.agree(lambda: None)
        made = self.agree(work)
        if self.size > 1 and self.leads:
            self.agree(lambda: None)
        return made

    def require_same(self, facts: str) -> None:
        """Refuse processes that would wait for each other in vain, or train on different things."""
        told = self.gather(facts)
        others = [str(rank) for rank, text in enumerate(told) if text != told[0]]
        if others:
            raise SettingsError(
                f"processes 0 and {', '.join(others)} do not have the same city, settings, kind of device and epoch to "
                "go on from. Give all machines the same folders; start trainings that differ without torchrun"
            )

    def gather(self, item: T) -> list[T]:
        """The item of every process, by rank."""
        items = [item] * self.size
        if self.size > 1:
            dist.all_gather_object(items, item)
        return items

    def sums(self, *numbers: float) -> tuple[float, ...]:
        """Each number summed over the processes, in their order: the same bits on all of them."""
        return tuple(sum(column[1:], column[0]) for column in zip(*self.gather(numbers), strict=True))

    def sum_(self, tensor: Tensor) -> Tensor:
        """The tensor, summed over the processes in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def copy_from_leader(self, model: nn.Module) -> None:
        """The first weights are drawn alike, but another kind of processor may round them otherwise."""
        if self.size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)

    def join_step(
        self, model: nn.Module, *, loss: float, stop: bool, buffers_before: Sequence[Tensor]
    ) -> tuple[float, bool]:
        """Sum a step's gradients over the processes; its whole loss, and whether anyone asks to stop.

        One message has it all. A parameter without a gradient anywhere keeps none, as in one process. What buffers
        have counted in the step is summed too; a buffer of another kind takes the mean change.
        """
        parameters, buffers = list(model.parameters()), list(model.buffers())
        head = torch.tensor([loss, stop, *(p.grad is not None for p in parameters)], dtype=torch.float32)
        pieces = [head.to(parameters[0].device)]
        pieces += [(now - then).reshape(-1).float() for now, then in zip(buffers, buffers_before, strict=True)]
        pieces += [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters]
        parts = iter(torch.split(self.sum_(torch.cat(pieces)), [len(piece) for piece in pieces]))
        whole_loss, stops, *holders = next(parts).tolist()
        for now, then in zip(buffers, buffers_before, strict=True):
            change = next(parts).view_as(now) / (self.size if now.is_floating_point() else 1)
            now.copy_(then + change.to(now.dtype))
        for parameter, holds in zip(parameters, holders, strict=True):
            part = next(parts)
            parameter.grad = part.view_as(parameter).to(parameter.dtype) if holds else None
        return whole_loss, stops > 0

    def device_name(self, said: str | None) -> str | None:
        """The device of this process: among several on a machine with GPUs, the one of its number."""
        if self.size == 1 or said == "cpu" or not torch.cuda.is_available():
            return said
        if said not in (None, "cuda"):
            raise SettingsError(f'device "{said}": each process takes a GPU of its own. Use cuda, or cpu')
        local, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= there:
            raise SettingsError(
                f"{local + 1} processes or more on a machine with {there} GPUs. Use torchrun --nproc-per-node {there}, "
                "or --device cpu"
            )
        torch.cuda.set_device(local)  # where kernels are launched
        return f"cuda:{local}"


def current() -> Group:
    """The group that this process is in."""
    if not (dist.is_available() and dist.is_initialized()):
        return Group()
    return Group(dist.get_rank(), dist.get_world_size())


@contextmanager
def joined() -> Iterator[Group]:
    """Join the processes that torchrun has started, where it has; leave them together, unless something broke."""
    _, size = _asked()
    if size == 1 or current().size > 1:
        yield current()
        return
    # Small things that the processes agree on go over the CPU, wherever they compute.
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=MAX_WAIT)
    try:
        yield current()
    except (*TOLD, SystemExit):
        _leave()
        raise
    _leave()


def _leave() -> None:
    """When the first process has gone with an error, torchrun ends the others: not before process 0 has spoken."""
    try:
        current().gather("it has ended")
    except RuntimeError:
        return  # another has ended already
    dist.destroy_process_group()


def _asked() -> tuple[int, int]:
    """Rank and number of processes, as torchrun says them."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@contextmanager
def only_the_first_speaks() -> Iterator[None]:
    """Nothing is printed in here but by process 0. What breaks is still told on the way out."""
    rank, size = _asked()
    with ExitStack() as stack:
        if size > 1 and rank > 0:
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(redirect_stdout(nowhere))
            stack.enter_context(redirect_stderr(nowhere))
        yield


@contextmanager
def on_ctrl_c(then: Callable[[], None]) -> Iterator[None]:
    """Call `then` at Ctrl-C, and go on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: then())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
