"""Stores to test with."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frigate.serve.memory import raise_descriptor_limit
from frigate.serve.store import Store, open_store
from tests.support.postgres import PostgresServer
from tests.support.service import Town, train_town
from tests.support.service_process import Nursery
from tests.support.siege import SEED, Siege, build_town


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new store of either kind."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database(f"test_{secrets.token_hex(4)}")


@pytest.fixture
def reopen(store_url: str) -> Iterator[Callable[[], Store]]:
    """Opens the store once more, as another process would."""
    opened: list[Store] = []

    def open_again() -> Store:
        opened.append(open_store(store_url))
        return opened[-1]

    yield open_again
    for store in opened:
        store.close()


@pytest.fixture
def store(reopen: Callable[[], Store]) -> Store:
    return reopen()


@pytest.fixture(scope="session")
def town(tmp_path_factory: pytest.TempPathFactory) -> Town:
    return train_town(tmp_path_factory.mktemp("town"))


@pytest.fixture(scope="session")
def nursery(town: Town) -> Iterator[Nursery]:
    """Starts services of the town."""
    made = Nursery(town.folder / "run")
    yield made
    made.close()


# For hostile tests


@pytest.fixture(scope="session")
def town_under_siege(tmp_path_factory: pytest.TempPathFactory) -> Town:
    return build_town(tmp_path_factory.mktemp("town"))


@pytest.fixture(scope="module")
def besieged(town_under_siege: Town, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    raise_descriptor_limit()
    one = Siege(tmp_path_factory.mktemp("siege"), town_under_siege)
    yield one
    one.close()
    print("", f"seed {SEED}", *one.told, sep="\n")


@pytest.fixture
def siege(besieged: Siege, request: pytest.FixtureRequest) -> Iterator[Siege]:
    """The service that all tests of a file attack. After each test it must be as before."""
    yield besieged
    besieged.check(request.node.name.removeprefix("test_").replace("_", " "))


@pytest.fixture
def draws(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(f"{SEED} {request.node.name}")
