"""A child process that imports damaged files: a crash, a hang or a greedy parser ends the child, not the tests.

    python -m tests.support.fuzz_child JOBS OUT        JOBS, OUT: files of JSON
    python -m tests.support.fuzz_child FORMAT K FOLDER    write damaged input K of a format to a folder, to look at it

A format writes its good files and imports them. Input K of a format has one of them damaged, always in the same way.
"""

from __future__ import annotations

import bz2
import faulthandler
import gzip
import io
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from frigate.check.city import check_city
from frigate.city.folder import write_city
from frigate.errors import FrigateError
from tests.support.fuzz_formats import FORMATS, TRAPS

MEMORY = 1 << 30  # what an import may take beyond what the child has when it begins
LIMIT_S = 30.0  # of the processor's time, for one import: a busy machine does not make it shorter

Job = tuple[str, int, int]  # a format, its first input, how many

NASTY = b"\0 \xff \x7f \x80 , \" \n < > - 9 { [ = \\ ' ;".split(b" ")
NUMBERS = (
    b"-1 0 1e999 nan inf -0 1e-320 1e5 0x10 '' 2147483648 -2147483649 99999999999 9223372036854775808 1e18 -1e18"
).split()
INTEGERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """The bytes with one to three things done to them; what is compressed is as often damaged inside."""
    if rng.random() < 0.5:
        with suppress(OSError, EOFError, zlib.error, zipfile.BadZipFile):
            return _inside(data, rng)
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        change = CHANGES[int(rng.integers(len(CHANGES)))]
        data = change(data, rng) if data else data
    return data


def _inside(data: bytes, rng: np.random.Generator) -> bytes:
    if data[:2] == b"\x1f\x8b":
        return gzip.compress(damaged(gzip.decompress(data), rng), mtime=0)
    if data[:3] == b"BZh":
        return bz2.compress(damaged(bz2.decompress(data), rng))
    with zipfile.ZipFile(io.BytesIO(data)) as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    chosen = sorted(members)[int(rng.integers(len(members)))]
    members[chosen] = damaged(members[chosen], rng)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as again:
        for name, held in members.items():
            again.writestr(zipfile.ZipInfo(name), held)
    return out.getvalue()


def _block(data: bytes, rng: np.random.Generator) -> tuple[int, int]:
    first = int(rng.integers(len(data)))
    return first, min(len(data), first + int(2 ** rng.uniform(0, 9)))


def _flip(data: bytes, rng: np.random.Generator) -> bytes:
    held = bytearray(data)
    for _ in range(int(rng.integers(1, 9))):
        held[int(rng.integers(len(held)))] ^= 1 << int(rng.integers(8))
    return bytes(held)


def _set(data: bytes, rng: np.random.Generator) -> bytes:
    at = int(rng.integers(len(data)))
    return data[:at] + NASTY[int(rng.integers(len(NASTY)))] + data[at + 1 :]


def _cut(data: bytes, rng: np.random.Generator) -> bytes:
    return data[: int(rng.integers(len(data)))]


def _drop(data: bytes, rng: np.random.Generator) -> bytes:
    first, stop = _block(data, rng)
    return data[:first] + data[stop:]


def _repeat(data: bytes, rng: np.random.Generator) -> bytes:
    first, stop = _block(data, rng)
    return data[:stop] + data[first:stop] * int(2 ** rng.uniform(0, 8)) + data[stop:]


def _move(data: bytes, rng: np.random.Generator) -> bytes:
    first, stop = _block(data, rng)
    rest = data[:first] + data[stop:]
    at = int(rng.integers(len(rest) + 1))
    return rest[:at] + data[first:stop] + rest[at:]


def _noise(data: bytes, rng: np.random.Generator) -> bytes:
    first, stop = _block(data, rng)
    return data[:first] + rng.bytes(stop - first) + data[stop:]


def _integer(data: bytes, rng: np.random.Generator) -> bytes:
    at = int(rng.integers(len(data)))
    size = int(rng.choice([1, 2, 4, 8]))
    value = INTEGERS[int(rng.integers(len(INTEGERS)))] % (1 << 8 * size)
    return data[:at] + value.to_bytes(size, "little" if rng.random() < 0.5 else "big") + data[at + size :]


def _number(data: bytes, rng: np.random.Generator) -> bytes:
    """Another number where one is written in digits."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data[:200_000]))
    if not found:
        return _integer(data, rng)
    a, b = found[int(rng.integers(len(found)))].span()
    return data[:a] + NUMBERS[int(rng.integers(len(NUMBERS)))] + data[b:]


def _word(data: bytes, rng: np.random.Generator) -> bytes:
    """Another word of the same file in place of one."""
    found = list(re.finditer(rb"[\w.:+-]+", data[:200_000]))
    if len(found) < 2:
        return _integer(data, rng)
    a, b = (found[int(i)] for i in rng.integers(len(found), size=2))
    return data[: a.start()] + b[0] + data[a.end() :]


def _lines(data: bytes, rng: np.random.Generator) -> bytes:
    """A line, or an element, twice, or two of them exchanged."""
    lines = re.split(rb"(?<=[\n>}])", data)
    a, b = (int(i) for i in rng.integers(len(lines), size=2))
    if rng.random() < 0.5:
        lines[a], lines[b] = lines[b], lines[a]
    else:
        lines.insert(a, lines[b])
    return b"".join(lines)


CHANGES: tuple[Callable[[bytes, np.random.Generator], bytes], ...] = (
    _flip,
    _flip,
    _set,
    _cut,
    _drop,
    _repeat,
    _move,
    _noise,
    _integer,
    _number,
    _number,
    _word,
    _word,
    _lines,
    _lines,
)


def damage(files: dict[str, Path], name: str, k: int) -> str:
    """Damage one of the files, in place; which one."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), k])
    which = sorted(files)[int(rng.integers(len(files)))]
    change = (FORMATS | TRAPS)[name].damage or damaged
    files[which].write_bytes(change(files[which].read_bytes(), rng))
    return which


def written(name: str, folder: Path) -> dict[str, Path]:
    """The good files of a format, in a folder that holds nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return (FORMATS | TRAPS)[name].write(folder)


def attempt(name: str, files: dict[str, Path], home: Path) -> tuple[str, str]:
    """Import the files, and look over and write what came of it. How it went, and what was said."""
    try:
        city = (FORMATS | TRAPS)[name].load(files)
        check_city(city).to_json()
        write_city(city, home / "city")
    except FrigateError as error:
        return "refused", str(error)
    except Exception:  # what a user must never see
        return "fault", traceback.format_exc()[-1500:]
    return "read", ""


def work(jobs: list[Job], out: Path, *, limit_s: float) -> None:
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as folder, out.open("a", encoding="utf-8") as log:
        home = Path(folder)
        for name in {name: None for name, _, _ in jobs if name in FORMATS}:
            how, said = attempt(name, written(name, home / "files"), home)
            assert how == "read", f"{name}: the undamaged files are not read: {said}"
        # What was loaded and compiled for the good files is not counted as memory.
        size = int(re.findall(r"VmSize:\s*(\d+)", Path("/proc/self/status").read_text())[0]) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
        for name, first, count in jobs:
            files = written(name, home / "files")
            good = {which: path.read_bytes() for which, path in files.items()}
            for k in range(first, first + count):
                which = damage(files, name, k)
                log.write(json.dumps([name, k, which, "begun", ""]) + "\n")
                log.flush()
                signal.setitimer(signal.ITIMER_PROF, limit_s)
                how, said = attempt(name, files, home)
                signal.setitimer(signal.ITIMER_PROF, 0)
                log.write(json.dumps([name, k, which, how, said]) + "\n")
                log.flush()
                files[which].write_bytes(good[which])


def supervise(jobs: list[Job], out: Path, *, limit_s: float) -> None:
    """Work in a process of its own, and in another after each death, which is logged with what killed it."""
    out.touch()
    while jobs:
        last_words = out.with_suffix(".stderr")
        worker = os.fork()  # before anything has started a thread
        if not worker:
            with last_words.open("w") as file:
                os.dup2(file.fileno(), 2)
            try:
                work(jobs, out, limit_s=limit_s)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        if status == 0:
            return
        said = last_words.read_text(errors="replace")
        lines = out.read_text(encoding="utf-8").splitlines()
        name, k, which, how, _ = json.loads(lines[-1]) if lines else ("", 0, "", "", "")
        if how != "begun":
            sys.exit(f"the worker failed by itself, with {status}: {said}")
        cause = signal.Signals(-status).name if status < 0 else f"status {status}"
        with out.open("a", encoding="utf-8") as log:
            log.write(json.dumps([name, k, which, cause, said[:2000]]) + "\n")
        jobs = after(jobs, name, k)


def after(jobs: list[Job], name: str, k: int) -> list[Job]:
    """The jobs that are left once input k of a format is done."""
    at = next(i for i, (other, first, count) in enumerate(jobs) if other == name and first <= k < first + count)
    _, first, count = jobs[at]
    rest = [(name, k + 1, first + count - k - 1)] if k + 1 < first + count else []
    return [*rest, *jobs[at + 1 :]]


def main() -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, chain=True)  # says where it hung, then dies of it
    if len(sys.argv) == 4:
        name = sys.argv[1]
        k = int(sys.argv[2])
        folder = Path(sys.argv[3])
        print(damage(written(name, folder), name, k))
        return
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    supervise(asked["jobs"], Path(sys.argv[2]), limit_s=asked["limit_s"])


if __name__ == "__main__":
    main()
