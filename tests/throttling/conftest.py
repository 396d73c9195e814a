"""Async tests run on virtual time; no setting of the machine's reaches a library under test."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from runcue.testing import VirtualLoop
from tests.throttling.farside import FarSide


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], VirtualLoop]]:
    return {"virtual": VirtualLoop}


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Proxies, endpoints and credentials of whoever runs the tests stay out of them."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def far_side() -> Iterator[FarSide]:
    with FarSide() as far_side:
        yield far_side


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """Where a Cue keeps its queue."""
    return None if request.param == "memory" else str(tmp_path / "queue.db")
