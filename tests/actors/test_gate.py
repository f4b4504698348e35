"""`radixd.actors.gate`: credits in, credits out."""

import anyio
import pytest

from radixd.actors.gate import Gate
from radixd.actors.generation import DrainingError, OverloadedError


def test_requests_are_numbered_in_the_order_of_arrival_and_limited() -> None:
    """At the limit nothing is queued; a credit that comes back is given out again."""
    gate = Gate(2)
    first, second = gate.enter(), gate.enter()
    assert first < second
    with pytest.raises(OverloadedError) as refused:
        gate.enter()
    assert refused.value.retry_after > 0
    gate.leave(first)
    assert gate.enter() > second
    assert gate.inside == 2


def test_a_credit_comes_back_once() -> None:
    """Giving one back twice is a bug."""
    gate = Gate(2)
    request = gate.enter()
    gate.leave(request)
    with pytest.raises(KeyError):
        gate.leave(request)


async def test_a_closed_gate_is_empty_when_the_last_request_has_left() -> None:
    """Draining waits for those inside and refuses the rest."""
    gate = Gate(2)
    request = gate.enter()
    gate.close()
    with pytest.raises(DrainingError):
        gate.enter()
    with anyio.move_on_after(0) as scope:
        await gate.empty()
    assert scope.cancelled_caught
    gate.leave(request)
    await gate.empty()


async def test_an_abandoned_gate_keeps_nobody_waiting() -> None:
    """The engine has stopped: its requests will never leave by themselves."""
    gate = Gate(2)
    gate.enter()
    gate.abandon()
    await gate.empty()
    assert gate.inside == 0
    with pytest.raises(DrainingError):
        gate.enter()
