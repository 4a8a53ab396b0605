"""Files from elsewhere are read in a worker process: what passes its border, and every way in which it can die."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from frigate.city.city import City
from frigate.city.folder import read_city, write_city
from frigate.errors import CityError, FrigateError, MissingExtraError
from frigate.reading import sandbox
from frigate.reading.sandbox import in_sandbox
from frigate.sources.osm.importer import import_osm, read_osm
from frigate.sources.tables.importer import import_tables
from tests.support import sandbox_jobs as jobs
from tests.support.errors import raises
from tests.support.osm_files import small_files

ROOT = Path(__file__).resolve().parents[2]


def small_city(folder: Path, *, parquet: bool = True, rows: int = 40) -> Path:
    (folder / "city.toml").write_text('step = "5min"\ntimezone = "UTC"\n')
    nodes = pl.DataFrame({"node_id": [1, 2], "lon": [6.1, 6.2], "lat": [49.6, 49.6]})
    edges = pl.DataFrame({"source": [1, 2], "target": [2, 1]})
    times = pl.Series(1_704_067_200_000_000 + 300_000_000 * (np.arange(rows) // 2)).cast(pl.Datetime("us", "UTC"))
    readings = pl.DataFrame({"time": times, "node_id": 1 + np.arange(rows) % 2, "value": np.arange(rows) % 7})
    for name, frame in (("nodes", nodes), ("edges", edges), ("readings", readings)):
        if parquet:
            frame.write_parquet(folder / f"{name}.parquet", compression="uncompressed", statistics=False)
        else:
            frame.write_csv(folder / f"{name}.csv")
    return folder


# What passes


def test_the_function_runs_in_another_process_which_stays_for_the_next_call() -> None:
    first = in_sandbox(jobs.process_id)
    assert first != os.getpid()
    assert in_sandbox(jobs.process_id) == first


def test_arguments_and_results_pass_whole() -> None:
    arrays = [
        np.arange(12).reshape(3, 4),
        np.asfortranarray(np.arange(600_000.0).reshape(3, -1)),
        np.arange(100_000)[::3],
        np.array(["a", "bc"]),
        np.zeros((0, 5), np.float32),
        np.ones((400, 300), bool),
    ]
    *back, named = in_sandbox(jobs.same, *arrays, at=Path("x"))
    assert named == {"at": Path("x")}
    for sent, got in zip(arrays, back, strict=True):
        np.testing.assert_array_equal(got, sent)
        assert got.dtype == sent.dtype
        if got.flags.owndata or got.base is not None:
            assert got.flags.writeable
    del sent, got
    back[1][0] += 1  # of this process alone, and the file that brought it is gone
    assert not list(Path(f"/proc/{os.getpid()}/fd").glob("*(deleted)*"))


def test_errors_and_warnings_of_the_function_are_the_caller_s(tmp_path: Path) -> None:
    with raises(CityError, "a.csv line 3"):
        in_sandbox(jobs.refuse, tmp_path / "a.csv")
    with raises(MissingExtraError, "h5py"):
        in_sandbox(jobs.lack)
    with pytest.raises(KeyError) as slipped:
        in_sandbox(jobs.slip)
    assert "in slip" in slipped.value.__notes__[0]  # where it was raised
    with pytest.raises(RuntimeError, match="OddError: odd"):
        in_sandbox(jobs.odd)  # an exception that cannot be pickled
    with pytest.warns(UserWarning, match="mind the gap") as caught:
        assert in_sandbox(jobs.warn) == 7
    assert Path(caught[0].filename).name == "sandbox_jobs.py"


def test_a_sandbox_within_a_sandbox_is_the_same_one() -> None:
    processes = jobs.decorated(2)
    assert len(processes) == 4 and len(set(processes)) == 1 and os.getpid() not in processes


def test_folder_and_environment_are_those_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_sandbox(jobs.process_id)  # the worker is there already
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRIGATE_TEST", "here")
    assert in_sandbox(jobs.surroundings) == (str(tmp_path), "here")


def test_it_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRIGATE_SANDBOX", "off")
    assert in_sandbox(jobs.process_id) == os.getpid()
    assert set(jobs.decorated(1)) == {os.getpid()}
    assert read_city(small_city(tmp_path), cache=False).stream.num_snapshots == 20


# How it dies


@pytest.mark.parametrize(
    ("job", "limits", "named"),
    [
        (jobs.crash, {}, ("a.csv", "damaged", "SIGSEGV")),
        (jobs.panic, {}, ("a.csv", "damaged", "status 1")),
        (jobs.abort, {}, ("a.csv", "damaged", "SIGABRT")),
        (jobs.greed, {"FRIGATE_READ_MEMORY_GB": "0.3"}, ("a.csv", "0.3 GB", "FRIGATE_READ_MEMORY_GB")),
        (jobs.hang, {"FRIGATE_READ_SECONDS": "0.2"}, ("a.csv", "0.2 s", "FRIGATE_READ_SECONDS")),
    ],
)
def test_a_death_names_file_cause_and_remedy(
    job: Callable[[Path], None],
    limits: dict[str, str],
    named: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as limited:
        for name, value in limits.items():
            limited.setenv(name, value)
        with raises(CityError, *named):
            in_sandbox(job, tmp_path / "a.csv")
    assert in_sandbox(jobs.same, 5) == (5,)  # by another worker


def test_a_call_that_waits_for_ever_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as short:
        short.setattr(sandbox, "WALL_PER_CPU", 0.05)
        short.setenv("FRIGATE_READ_SECONDS", "20")
        with raises(CityError, "pid", "20 s"):
            in_sandbox(jobs.wait, tmp_path / "pid")
    monkeypatch.setattr(sandbox, "STALL_S", 0.5)
    with raises(CityError, "pid", "damaged", "crashed"):
        in_sandbox(jobs.wait, tmp_path / "pid")
    assert in_sandbox(jobs.same, 5) == (5,)


def test_a_killed_worker_is_not_reported_as_a_damaged_file(tmp_path: Path) -> None:
    killer = threading.Thread(target=lambda: os.kill(int(awaited(tmp_path / "pid")), signal.SIGKILL))
    killer.start()
    with raises(CityError, "pid", "killed", "memory"):
        in_sandbox(jobs.wait, tmp_path / "pid")
    killer.join()


def test_files_of_a_worker_that_dies_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with raises(CityError, "crashed"):
        in_sandbox(jobs.crash_with_a_scratch_folder, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert (tmp_path / "there").read_text() == "True"


def test_limits_can_be_set_and_are_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FRIGATE_READ_MEMORY_GB", "0.3")
    with raises(CityError, "0.3 GB"):
        in_sandbox(jobs.greed, tmp_path / "a.csv")
    monkeypatch.setenv("FRIGATE_READ_MEMORY_GB", "0.9")
    assert in_sandbox(jobs.greed, tmp_path / "a.csv") == 1 << 26
    for wrong in ("much", "-1", "nan"):
        monkeypatch.setenv("FRIGATE_READ_MEMORY_GB", wrong)
        with raises(CityError, "FRIGATE_READ_MEMORY_GB", f'"{wrong}"'):
            in_sandbox(jobs.process_id)


def test_each_call_has_the_whole_of_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRIGATE_READ_MEMORY_GB", "0.9")
    for _ in range(3):
        assert in_sandbox(jobs.greed, Path("a")) == 1 << 26


def test_a_worker_that_keeps_much_memory_is_replaced() -> None:
    assert in_sandbox(jobs.hoard) != in_sandbox(jobs.process_id)


def test_no_file_may_be_endless(tmp_path: Path) -> None:
    in_sandbox(jobs.write, tmp_path / "large", sandbox.MAX_FILE_GB << 30)  # sparse
    with pytest.raises(OSError, match="File too large"):
        in_sandbox(jobs.write, tmp_path / "large", (sandbox.MAX_FILE_GB << 30) + 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_temporary_folder_is_not_reported_as_a_damaged_file() -> None:
    with raises(FrigateError, "No space left on device", "TMPDIR"):
        in_sandbox(jobs.fill)
    sandbox._end_all()  # that one is spoilt
    assert in_sandbox(jobs.same, 5) == (5,)


# Whose it is


def awaited(path: Path) -> str:
    while not (path.exists() and path.read_text()):
        time.sleep(0.01)
    return path.read_text()


def gone(process: int) -> bool:
    for _ in range(60_000):  # ten minutes: a guard against a worker that stays
        status = Path(f"/proc/{process}/stat")
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False


def test_an_idle_worker_that_is_gone_is_replaced() -> None:
    worker = in_sandbox(jobs.process_id)
    os.kill(worker, signal.SIGKILL)
    assert gone(worker)
    assert in_sandbox(jobs.process_id) != worker


def test_a_worker_leaves_when_it_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_idle", [])
    monkeypatch.setattr(sandbox, "IDLE_S", 0.1)
    worker = in_sandbox(jobs.process_id)
    assert gone(worker)
    assert in_sandbox(jobs.process_id) != worker
    sandbox._end_all()


def test_threads_have_workers_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: in_sandbox(jobs.meet, tmp_path, 3), range(3)))
    assert len(set(found)) == 3


def test_a_forked_process_leaves_its_parent_s_worker_alone() -> None:
    worker = in_sandbox(jobs.process_id)
    child = os.fork()
    if not child:
        os._exit(0 if in_sandbox(jobs.process_id) != worker else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert in_sandbox(jobs.process_id) == worker


def run(script: str, folder: Path) -> subprocess.Popen[str]:
    path = folder / "script.py"
    path.write_text(script)
    return subprocess.Popen(
        [sys.executable, str(path)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """Nothing of the caller's `__main__` runs twice, and the worker does not outlive it."""
    small_city(tmp_path)
    script = run(
        "print('once')\nimport frigate as fg\nfrom frigate.reading import sandbox\n"
        "print(fg.read_city('.').stream.num_snapshots, sandbox._idle[0]._process.pid)\n",
        tmp_path,
    )
    out, err = script.communicate()
    assert script.returncode == 0, err
    once, said = out.splitlines()
    snapshots, worker = said.split()
    assert (once, snapshots, err) == ("once", "20", "")
    assert gone(int(worker))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_worker_dies_with_its_caller(how: signal.Signals, tmp_path: Path) -> None:
    script = run(
        "from pathlib import Path\nfrom frigate.reading.sandbox import in_sandbox\n"
        "from tests.support.sandbox_jobs import wait\nin_sandbox(wait, Path('pid'))\n",
        tmp_path,
    )
    worker = int(awaited(tmp_path / "pid"))
    os.kill(script.pid, how)
    _, err = script.communicate()
    assert script.returncode == -how
    assert ("KeyboardInterrupt" in err) == (how == signal.SIGINT)
    assert gone(worker)


def test_a_worker_that_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_idle", [])
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with raises(FrigateError, "started", "/nowhere/python", "FRIGATE_SANDBOX=off"):
        in_sandbox(jobs.process_id)
    monkeypatch.undo()
    monkeypatch.setattr(sandbox, "_idle", [])
    monkeypatch.setattr(sandbox, "BOOT", "import nothing_of_this_name")
    start = sandbox._Worker.__init__

    def start_and_end(worker: sandbox._Worker) -> None:
        """Before anything is sent to it."""
        start(worker)
        worker._process.wait()

    for begin in (start, start_and_end):
        monkeypatch.setattr(sandbox._Worker, "__init__", begin)
        with raises(FrigateError, "started", "ModuleNotFoundError"):
            in_sandbox(jobs.process_id)


# Files


def damaged_pages(folder: Path) -> Iterator[Path]:
    """The city with one byte of the first page's header of its readings turned, as each may be."""
    path = small_city(folder) / "readings.parquet"
    whole = path.read_bytes()
    for at in range(4, 40):
        for turned in (whole[at] ^ 1, 0xFF):
            path.write_bytes(whole[:at] + bytes([turned]) + whole[at + 1 :])
            yield path


def test_damaged_pages_of_parquet_are_read_or_refused(tmp_path: Path) -> None:
    """A page that claims a billion values makes the reader take memory for them, and abort where there is none."""
    refused = set()
    for _ in damaged_pages(tmp_path):
        try:
            read_city(tmp_path, cache=False)
        except CityError as error:
            refused.add(str(error))
    assert refused and all("readings.parquet" in words for words in refused), refused


@pytest.fixture
def bomb(tmp_path: Path) -> Path:
    """A few kilobytes that unpack to 0.4 GB: a name of one megabyte for each of 400 roads, no two the same."""
    small_city(tmp_path)
    edges = pl.DataFrame(
        {"source": [1, 2] * 200, "target": [2, 1] * 200, "name": [f"{n}".ljust(1_000_000) for n in range(400)]}
    )
    edges.write_parquet(tmp_path / "edges.parquet", compression="zstd")
    assert (tmp_path / "edges.parquet").stat().st_size < 200_000
    del edges
    gc.collect()
    return tmp_path


def test_a_file_that_unpacks_to_more_than_the_memory_is_refused(bomb: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRIGATE_READ_MEMORY_GB", "0.3")
    monkeypatch.setenv("RUST_BACKTRACE", "1")  # with which polars would stop instead of ending
    with raises(CityError, "edges.parquet", "0.3 GB"):
        read_city(bomb)
    assert not (bomb / "cache").exists()
    with raises(CityError, "edges.parquet", "0.3 GB"):
        import_tables(nodes=bomb / "nodes.parquet", edges=bomb / "edges.parquet")


@pytest.mark.parametrize("read", [import_osm, read_osm])
def test_a_zero_byte_in_a_text_of_a_map_crashes_osmium_alone(read: Callable[[Path], Any], tmp_path: Path) -> None:
    path = small_files(tmp_path)["plain.osm.pbf"]
    whole = path.read_bytes()
    assert whole.count(b"residential")
    path.write_bytes(whole.replace(b"residential", b"resi\0ential"))
    with raises(CityError, "town.plain.osm.pbf", "damaged"):
        read(path)


def test_a_folder_that_cannot_be_written_is_read_all_the_same(tmp_path: Path) -> None:
    cities: list[City] = [read_city(small_city(tmp_path), cache=False)]
    (tmp_path / "cache").write_text("in the way")
    cities.append(read_city(tmp_path))
    write_city(cities[1], tmp_path / "again")
    cities.append(read_city(tmp_path / "again"))
    for city in cities[1:]:
        np.testing.assert_array_equal(city.stream.values, cities[0].stream.values)


@pytest.mark.parametrize("zone", ["UTC", None])
def test_a_time_that_python_cannot_hold_is_refused_in_words(zone: str | None, tmp_path: Path) -> None:
    small_city(tmp_path)
    for us, year in ((-(10**18), "-29719"), (2**63 - 1, "294247")):
        time = pl.Series([0, us], dtype=pl.Int64).cast(pl.Datetime("us", zone))
        pl.DataFrame({"time": time, "node_id": [1, 2], "value": [1, 2]}).write_parquet(tmp_path / "readings.parquet")
        with raises(CityError, "readings.parquet row 2", f'time "{year}', "1900", "2200"):
            read_city(tmp_path)
