"""What a service asks of the system: enough open files for its clients."""

from __future__ import annotations

import resource

import pytest

from frigate.serve.memory import DESCRIPTORS, raise_descriptor_limit

ANY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "allowed"),
    [
        (1024, 524_288, DESCRIPTORS),  # most systems
        (1024, 4096, 4096),  # a strict one
        (1024, ANY, DESCRIPTORS),
        (100_000, 524_288, 100_000),  # already more
        (ANY, ANY, DESCRIPTORS),
    ],
)
def test_a_service_has_the_system_allow_it_enough_files(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, allowed: int
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.append(both))
    assert raise_descriptor_limit() == allowed
    now, most = limits[-1]
    assert most == hard and now == (soft if soft in (ANY, 100_000) else allowed)
