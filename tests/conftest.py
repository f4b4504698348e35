"""What every test shares: the rule about skips, and the event loops that a test may ask for.

An async test runs on asyncio's own loop.  It asks for another one by
``@pytest.mark.asyncio(loop_factories=["virtual"])``: ``virtual`` is the simulation loop with seed
0 (`simulation.loop.simulate` explores other seeds), ``uvloop`` the loop of the daemon.
"""

import asyncio
from collections.abc import Callable, Mapping

import hypothesis
import pytest
import uvloop

from simulation.loop import SimulationLoop

pytest_plugins = ["harness.skips"]

# The same examples in every run, and no limit on how long a busy machine takes for one.
# `--hypothesis-profile=default` draws new ones.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

DEFAULT_LOOP: Mapping[str, LoopFactory] = {"plain": asyncio.SelectorEventLoop}
LOOPS: Mapping[str, LoopFactory] = {
    **DEFAULT_LOOP,
    "uvloop": uvloop.new_event_loop,
    "virtual": SimulationLoop,
}


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, LoopFactory]:
    """The loops of one test: those that its marker names, else the plain one.

    pytest-asyncio runs a test without names once on each loop of the answer.
    """
    marker = item.get_closest_marker("asyncio")
    return LOOPS if marker is not None and "loop_factories" in marker.kwargs else DEFAULT_LOOP
