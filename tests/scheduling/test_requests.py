"""`radixd.scheduling.requests`: what one request knows of its own positions."""

import pytest

from harness.machines import GREEDY
from radixd.cache.messages import RequestId
from radixd.cache.tokens import pack
from radixd.scheduling.messages import Submit, Usage
from radixd.scheduling.requests import Phase, Request


def request(prompt: list[int], max_tokens: int = 4) -> Request:
    """Return a request that has just arrived."""
    return Request(Submit(RequestId(1), pack(prompt), max_tokens, GREEDY, ()))


def test_a_request_arrives_with_nothing_computed() -> None:
    """Its whole prompt is to be prefilled, and nothing may be decoded before its first sample."""
    new = request([1, 2, 3])
    assert new.phase is Phase.ARRIVING
    assert (new.prompt_length, new.known, new.computed) == (3, 3, 0)
    assert new.prefilling
    assert not new.decodable


@pytest.mark.parametrize(("planned", "decodable"), [(0, False), (1, True), (3, True), (4, False)])
def test_it_may_decode_between_its_first_and_its_last_sample(planned: int, decodable: bool) -> None:
    """Planned samples count: those of steps that are out will come."""
    running = request([1], max_tokens=4)
    running.samples_planned = planned
    assert running.decodable is decodable
    running.finish = "abort"
    assert not running.decodable


def test_skipping_moves_on_over_what_others_computed_and_counts_it_as_shared() -> None:
    """Only tokens that it had not scheduled itself are shared."""
    running = request(list(range(10)))
    running.scheduled, running.computed = 4, 2
    assert running.skip_to(8, start=4) == 8
    assert (running.scheduled, running.computed, running.in_flight) == (8, 8, 4)
    assert running.usage() == Usage(from_tree=0, in_flight=4, computed=4)
    assert running.write


def test_skipping_never_moves_back() -> None:
    """A position that it has passed changes nothing."""
    running = request(list(range(10)))
    running.scheduled, running.computed = 6, 6
    assert running.skip_to(4, start=6) == 6
    assert (running.scheduled, running.computed, running.in_flight) == (6, 6, 0)


@pytest.mark.parametrize("scheduled", [3, 7])
def test_the_last_token_of_a_prompt_is_computed_however_much_is_ready(scheduled: int) -> None:
    """Logits need it; its page is ready already, so it is not written."""
    running = request(list(range(8)))
    running.scheduled = running.computed = scheduled
    assert running.skip_to(8, start=scheduled) == 7
    assert not running.write
    assert running.prefilling


def test_what_is_skipped_after_a_lost_worker_does_not_change_what_was_told() -> None:
    """Usage is told once, with the first token."""
    running = request(list(range(10)))
    running.usage_told = True
    running.skip_to(8, start=4)
    assert running.in_flight == 0


def test_a_request_resumes_from_prompt_and_delivered_answer() -> None:
    """What it may still sample is that much less; what it was told of its prompt stays true."""
    running = request([1, 2, 3], max_tokens=4)
    running.phase, running.computed, running.from_tree = Phase.RUNNING, 4, 2
    running.answer.extend([8, 9])
    running.samples_planned = 3
    before = running.usage()
    running.resume_elsewhere()
    assert running.prompt == pack([1, 2, 3, 8, 9])
    assert (running.prompt_length, running.prompt_tokens, running.known) == (5, 3, 5)
    assert (running.max_tokens, running.samples_planned, len(running.answer)) == (2, 0, 0)
    assert (running.scheduled, running.computed, running.committed, running.told) == (0, 0, 0, 0)
    assert running.phase is Phase.ARRIVING
    assert running.usage() == before == Usage(from_tree=2, in_flight=0, computed=1)


def test_an_aborted_request_has_computed_only_what_it_got_to() -> None:
    """Prompt tokens that were never computed are in no part of its usage."""
    running = request(list(range(10)))
    running.from_tree, running.scheduled, running.computed = 4, 8, 6
    assert running.usage() == Usage(from_tree=4, in_flight=0, computed=2)
