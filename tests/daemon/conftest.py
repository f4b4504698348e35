"""One daemon of each kind for the whole run."""

from collections.abc import Iterator

import pytest

from harness.daemon import Daemon, daemon


@pytest.fixture(scope="session")
def simulated() -> Iterator[Daemon]:
    """A daemon over the simulated worker."""
    with daemon("--worker", "simulated") as running:
        yield running


@pytest.fixture(scope="session")
def embedded() -> Iterator[Daemon]:
    """A daemon over the embedded model."""
    with daemon("--max-running", "65") as running:
        yield running
