"""Every async test of the engine runs on virtual time."""

from collections.abc import Callable, Mapping

from runcue.testing import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], VirtualLoop]]:
    return {"virtual": VirtualLoop}
