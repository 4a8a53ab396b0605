"""Read files from elsewhere in a child process with limits, so that a bad file cannot take the caller down.

Native parsers crash on damaged files, and a file of a few kilobytes can unpack to terabytes. A function called through
`in_sandbox`, or decorated with `sandboxed`, runs in a worker process with limits on memory, CPU time and file size.
If the worker dies, the caller gets a `CityError` that names the file, the cause and the remedy. The function's own
errors and warnings pass through. So does its result, in a temporary file.

The worker is a plain Python process. It never imports the caller's `__main__`: scripts need no guard, and notebooks
work. It is kept for the next call, which then costs about a millisecond. It exits when it has been idle for a minute,
on Ctrl-C, and when the caller exits or is killed. It runs with the user's rights: it protects against crashes and
against files that exhaust memory or time, not against a parser that is made to run foreign code.

    FRIGATE_READ_MEMORY_GB   memory of a call; default: 8 GB plus 0.5 GB for each megabyte of the files among its
                             arguments, at most three quarters of the machine's memory
    FRIGATE_READ_SECONDS     CPU time of a call; ten times as much may pass on the clock. Default: 120 s plus 10 s for
                             each megabyte of the files
    FRIGATE_SANDBOX=off      read in the caller's process, for a debugger
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from frigate.errors import CityError, FrigateError
from frigate.reading.files import check_regular, file_errors

P = ParamSpec("P")
R = TypeVar("R")

# Default limits: a minimum, plus an allowance for each megabyte of the files
MIN_GB = 8.0
GB_PER_MB = 0.5
MIN_SECONDS = 120.0  # of CPU time
SECONDS_PER_MB = 10.0  # of CPU time
MAX_SECONDS = 86_400.0  # of CPU time
MAX_SHARE = 0.75  # of the machine's memory
WALL_PER_CPU = 10.0  # a call may wait, for a slow disk or a busy machine, this many times its CPU time
MAX_FILE_GB = 64  # size of a file that is written

STALL_S = 60.0  # a call that neither computes nor reads for this long is stuck
IDLE_S = 60.0
RETIRE_GB = 1.0  # a worker that keeps this much memory after a call is replaced

OUT_OF_MEMORY = ("memory allocation of", "bad_alloc", "MemoryError", "out of memory", "annot allocate memory")


def in_sandbox(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function in a worker process with limits on memory, time and file size.

    Parameters
    ----------
    function
        A function at the top level of a module; the worker imports it by name.
    *args, **kwargs
        Its arguments, which must be picklable.

    Returns
    -------
    What the function returns. Its exceptions are raised here.

    Raises
    ------
    CityError
        If the worker crashes or exceeds a limit.
    """
    if not _needed():
        with file_errors():
            return function(*args, **kwargs)
    paths = list(_paths([*args, *kwargs.values()]))
    for path in paths:
        check_regular(path)
    size_mb = sum(map(_size, paths)) / 1e6
    limits = CallLimits(
        _setting("FRIGATE_READ_MEMORY_GB") or min(MIN_GB + GB_PER_MB * size_mb, MAX_SHARE * _machine_gb()),
        min(_setting("FRIGATE_READ_SECONDS") or MIN_SECONDS + SECONDS_PER_MB * size_mb, MAX_SECONDS),
    )
    names = ", ".join(path.name for path in paths[:3]) or function.__name__
    return _call(function, args, kwargs, limits, names)


def in_sandbox_with(limits: CallLimits, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """The same with limits of one's own, for what is in no file. Thread-safe."""
    return _call(function, args, kwargs, limits, function.__name__) if _needed() else function(*args, **kwargs)


def _call(function: Callable[..., R], args: Any, kwargs: Any, limits: CallLimits, names: str) -> R:
    call = pickle.dumps((function, args, kwargs), protocol=5)
    request = pickle.dumps((sys.path, dict(os.environ), os.getcwd(), limits, call))
    while True:
        with contextlib.suppress(_LeftError):  # the idle worker has exited: start a new one
            answer: R = _take_worker().call(request, limits, names)
            return answer


def sandboxed(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that it always runs `in_sandbox`."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _needed():
            with file_errors():
                return function(*args, **kwargs)
        return in_sandbox(guarded, *args, **kwargs)

    return guarded


def reading(path: Path) -> None:
    """Note which file is being read: an error names it if its reader dies."""
    if _caller is not None:
        _caller.send(("reading", path.name))


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for the files of a call. The caller removes it if the worker dies."""
    return tempfile.TemporaryDirectory(prefix=_scratch_prefix(os.getpid()))


def _scratch_prefix(pid: int) -> str:
    return f"frigate-{pid}-"


def _needed() -> bool:
    return _caller is None and os.name == "posix" and os.environ.get("FRIGATE_SANDBOX") != "off"


# Limits


@dataclass(frozen=True)
class CallLimits:
    """Of one call."""

    memory_gb: float
    seconds: float  # of CPU time

    def apply(self) -> None:
        """Set soft limits, counted from what the process has used so far."""
        import resource

        used = _status("VmData")
        wanted = {resource.RLIMIT_CPU: math.ceil(time.process_time() + self.seconds)}
        wanted[resource.RLIMIT_FSIZE] = MAX_FILE_GB << 30
        if used:  # Linux only: macOS does not enforce a memory limit
            wanted[resource.RLIMIT_DATA] = used + int(self.memory_gb * 1e9)
        for kind, value in wanted.items():
            hard = resource.getrlimit(kind)[1]
            resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))

    def exceeded(self, file: str, *, memory: bool) -> CityError:
        limit = f"{self.memory_gb:.3g} GB of memory" if memory else f"{self.seconds:.3g} s of CPU time"
        why, variable = ("fill the memory", "MEMORY_GB") if memory else ("take forever", "SECONDS")
        return CityError(
            f"{file}: reading it takes more than {limit}. Is it damaged, or made to {why}? If not, set "
            f"FRIGATE_READ_{variable} to a higher value"
        )


def _setting(name: str) -> float | None:
    text = os.environ.get(name)
    try:
        value = None if text is None else float(text)
    except ValueError:
        value = 0.0
    if value is not None and not 0 < value < math.inf:
        raise CityError(f'{name} is "{text}". Set it to a number above 0, or unset it')
    return value


def _machine_gb() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9


def _status(field: str) -> int:
    """A field of /proc/self/status, in bytes; 0 if there is none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)


def _paths(values: Iterable[Any]) -> Iterator[Path]:
    """The files and folders among the arguments of a call."""
    for value in values:
        if isinstance(value, Path) or (isinstance(value, str) and len(value) < 1000 and os.path.exists(value)):
            yield Path(value)
        elif isinstance(value, Mapping):
            yield from _paths(value.values())
        elif isinstance(value, list | tuple):
            yield from _paths(value)


def _size(path: Path) -> int:
    inside = (os.path.join(at, name) for at, _, names in os.walk(path) for name in names) if path.is_dir() else [path]
    return sum(os.stat(file).st_size for file in inside if os.path.isfile(file))


# The caller's side


class _GoneError(Exception):
    """The worker has ended."""


class _LeftError(Exception):
    """A worker that had served before was gone at the next call."""


BOOT = """
import os, sys, types
os.environ["RUST_BACKTRACE"] = "0"  # polars deadlocks if memory runs out while it writes one
sys.path[:] = {path!r}
package = types.ModuleType("frigate")  # without its public names, which would load PyTorch
package.__path__ = [{package!r}]
sys.modules["frigate"] = package
from frigate.reading.sandbox import _serve
_serve({fd}, {idle_s})
"""


class _Worker:
    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        self._used = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        boot = BOOT.format(path=sys.path, package=str(Path(__file__).parents[1]), fd=theirs.fileno(), idle_s=IDLE_S)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", boot],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            self._pipe.close()
            self._stderr.close()
            raise self._not_started(str(error)) from None
        finally:
            theirs.close()

    def call(self, request: bytes, limits: CallLimits, file: str) -> Any:
        """What the function returned. The worker is kept if it can serve again, else ended."""
        keep = begun = False
        used = self._used
        self._used = True
        deadline = math.inf
        try:
            if used:  # a new worker may already have said why it cannot start
                os.lseek(self._stderr.fileno(), 0, os.SEEK_SET)
                os.ftruncate(self._stderr.fileno(), 0)
            self._send(request)
            while True:
                kind, *rest = self._next(deadline)
                begun = True
                if kind == "running":  # start the clock now: starting Python may take long on a busy machine
                    deadline = time.monotonic() + WALL_PER_CPU * limits.seconds
                elif kind == "reading":
                    (file,) = rest
                elif kind in ("memory", "late"):
                    raise limits.exceeded(file, memory=kind == "memory")
                elif kind == "stalled":
                    self._process.kill()
                    raise self._death(limits, file, "it stopped")
                elif kind == "full":
                    raise FrigateError(f"{rest[0]} cannot hold the result ({rest[1]}). Set TMPDIR to another folder")
                elif kind == "done":
                    keep, caught, raised = rest
                    value = self._received()
                    break
            for message, category, name, line in caught:
                warnings.warn_explicit(message, category, name, line)
            if not raised:
                return value
            of, args, state = value
            error = of.__new__(of, *args)  # bypasses __init__, which may take other arguments
            error.__dict__.update(state)
            raise error
        except _GoneError:
            if used and not begun:
                raise _LeftError from None
            raise self._death(limits, file) if begun else self._not_started(self._last_words()) from None
        finally:
            if keep:
                _idle.append(self)
            else:
                self.end()

    def _send(self, request: bytes) -> None:
        try:
            self._pipe.send_bytes(request)
        except ConnectionError:
            raise _GoneError from None

    def _next(self, deadline: float) -> Any:
        active = time.monotonic()
        used = -1
        try:
            while (now := time.monotonic()) < deadline:
                if self._pipe.poll(min(1.0, deadline - now)):
                    return self._pipe.recv()
                before = used
                used = self._ticks_asleep()
                if used < 0 or used != before:
                    active = time.monotonic()
                elif time.monotonic() > active + STALL_S:
                    return ("stalled",)
        except (EOFError, ConnectionError):
            raise _GoneError from None
        return ("late",)

    def _ticks_asleep(self) -> int:
        """CPU time used by a sleeping worker, in ticks; -1 if it is running or reading, or if unknown."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        except OSError:
            return -1
        return int(fields[11]) + int(fields[12]) if fields[0] == "S" else -1

    def _received(self) -> Any:
        try:
            handle = recv_handle(self._pipe)
        except (EOFError, OSError, RuntimeError):
            raise _GoneError from None
        with os.fdopen(handle, "rb") as file:
            file.seek(0)
            return pickle.load(file)

    def _death(self, limits: CallLimits, file: str, cause: str | None = None) -> CityError:
        status = self._process.wait()
        if status == -signal.SIGXCPU:
            return limits.exceeded(file, memory=False)
        if any(words in self._last_words() for words in OUT_OF_MEMORY):
            return limits.exceeded(file, memory=True)
        if status == -signal.SIGKILL and cause is None:
            return CityError(f"{file}: the process that read it was killed. Is the machine's memory full?")
        cause = cause or (signal.Signals(-status).name if status < 0 else f"status {status}")
        return CityError(f"{file} is damaged: its reader crashed ({cause}). Download or save it again")

    def _last_words(self) -> str:
        os.lseek(self._stderr.fileno(), 0, os.SEEK_SET)
        return os.read(self._stderr.fileno(), 1 << 16).decode("utf-8", "replace").strip()

    @staticmethod
    def _not_started(why: str) -> FrigateError:
        last = (why.splitlines() or ["no reason given"])[-1]
        return FrigateError(
            f"Files are read in a separate process, which cannot be started: {last}. To read them without it, set "
            "FRIGATE_SANDBOX=off"
        )

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for left in Path(tempfile.gettempdir()).glob(_scratch_prefix(self._process.pid) + "*"):
            shutil.rmtree(left, ignore_errors=True)
        self.forget()

    def forget(self) -> None:
        """Close this process's ends of the pipes, without ending the worker."""
        self._pipe.close()
        self._stderr.close()
        if self._process.stdin is not None:
            self._process.stdin.close()


_idle: list[_Worker] = []


def _take_worker() -> _Worker:
    """An idle worker, or a new one. Only the caller has it."""
    try:
        return _idle.pop()
    except IndexError:
        return _Worker()


def _end_all() -> None:
    while _idle:
        _idle.pop().end()


def _forget_all() -> None:
    """Called in a forked child: the workers belong to the parent."""
    while _idle:
        _idle.pop().forget()


if os.name == "posix":
    atexit.register(_end_all)
    os.register_at_fork(after_in_child=_forget_all)


# The worker's side

_caller: Connection | None = None  # set only in a worker


def _serve(fd: int, idle_s: float) -> None:
    """Answer calls until none comes for `idle_s`."""
    global _caller  # noqa: PLW0603
    _die_with_caller()
    pipe = _caller = Connection(fd)
    used = _status("VmRSS")
    while pipe.poll(idle_s):
        try:
            request = pipe.recv_bytes()
        except EOFError:
            return
        pipe.send(("begun",))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)  # the caller cannot act on them
            raised, answer = _answer(request, pipe)
        if isinstance(answer, MemoryError):
            pipe.send(("memory",))
            return
        with tempfile.TemporaryFile() as file:
            try:
                pickle.dump(answer, file, protocol=5)
                file.flush()
            except OSError as error:
                pipe.send(("full", tempfile.gettempdir(), error.strerror))
                return
            del answer
            keep = _status("VmRSS") < used + RETIRE_GB * 1e9
            noted = [(str(w.message), w.category, w.filename, w.lineno) for w in caught]
            pipe.send(("done", keep, noted, raised))
            send_handle(pipe, file.fileno(), None)
        if not keep:
            return


def _die_with_caller() -> None:
    """Have the kernel kill this process with SIGIO, whatever it is doing, when the caller's end of stdin closes."""
    import fcntl
    import resource

    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([0], [], [], 0)[0]:
        sys.exit()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # if the machine runs out of memory, kill this process first
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _answer(request: bytes, pipe: Connection) -> tuple[bool, Any]:
    """Whether the function raised, and its result or the parts of its exception."""
    try:
        sys.path[:], environment, folder, limits, call = pickle.loads(request)
        os.environ.clear()
        os.environ.update(environment | {"RUST_BACKTRACE": "0"})
        os.chdir(folder)
        tempfile.tempdir = None  # TMPDIR may have changed
        function, args, kwargs = pickle.loads(call)
        pipe.send(("running",))
        limits.apply()
        with file_errors():
            return False, function(*args, **kwargs)
    except MemoryError as error:
        return True, error
    except Exception as error:  # a Rust panic is not an Exception: it ends the worker
        if not isinstance(error, FrigateError):
            error.add_note("".join(traceback.format_exception(error)))
        parts = (type(error), error.args, error.__dict__)
        try:
            pickle.dumps(parts)
        except Exception:
            return True, (RuntimeError, ("\n".join(error.__notes__),), {})
        return True, parts
