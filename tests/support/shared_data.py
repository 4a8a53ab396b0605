"""The data collection beside the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def shared_data(name: str) -> Path:
    """A folder of the data collection beside the checkout, or a skip that says so."""
    folder = SHARED / name
    if not folder.exists():
        pytest.skip(f"the shared data folder is absent: {name}")
    return folder
