"""Requests made up from the API's own description, valid and not: none brings the service to make a mistake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.result import Ok

from frigate.serve.limits import Limits
from frigate.serve.store import open_store
from tests.support.service import Served, Town, serve_town

ASKED = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def served(town: Town, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = open_store(str(tmp_path_factory.mktemp("fuzzed") / "store.db"))
    with serve_town(town, store, limits=Limits(rate=1e9)) as served:
        yield served
    store.close()


def made_up_requests(served: Served, examples: int) -> int:
    """Sends so many to each address, valid ones and broken ones; how many in all."""
    schema = schemathesis.openapi.from_asgi("/v1/openapi.json", served.client.app)
    sent = 0
    quiet = settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()
        if operation.path == "/v1/events":
            continue  # an answer without an end
        for mode in GenerationMode:
            if mode is GenerationMode.NEGATIVE and not (operation.query or operation.body or operation.path_parameters):
                continue  # nothing in it could be wrong

            @quiet
            @given(case=operation.as_strategy(mode))
            def attack(case: schemathesis.Case[Any]) -> None:
                nonlocal sent
                sent += 1
                headers = {"Authorization": served.client.headers["authorization"]}
                case.call_and_validate(base_url="http://127.0.0.1", headers=headers, checks=ASKED)

            attack()
    return sent


def test_a_few_made_up_requests(served: Served) -> None:
    assert made_up_requests(served, 3) > 60


@pytest.mark.slow
def test_many_made_up_requests(served: Served) -> None:
    assert made_up_requests(served, 150) > 3000
