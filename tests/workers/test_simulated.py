"""`radixd.workers.simulated`: what it says depends on the whole context and on nothing else."""

import anyio
import pytest

from radixd.cache.messages import Remap, RequestId
from radixd.cache.tokens import pack
from radixd.scheduling.messages import Row, SamplingParams, Seat, Step
from radixd.settings import Settings, SettingsError
from radixd.workers.protocol import WorkerError
from radixd.workers.simulated import SimulatedModel, SimulatedWorker, StepCost

A, B = RequestId(1), RequestId(2)
DICE = SamplingParams(temperature=1.0, seed=3)
PROMPT = list(range(10, 22))


class Bench:
    """A model of four-token pages and steps in a line."""

    def __init__(self) -> None:
        self.model = SimulatedModel(kv_pages=32, page_size=4, vocabulary=1000, eos_id=None)
        self.number = 0

    def step(
        self, *rows: Row, begin: tuple[Seat, ...] = (), remaps: tuple[Remap, ...] = ()
    ) -> dict[RequestId, int]:
        """Compute one step and return what it sampled."""
        self.number += 1
        requests, tokens = self.model.compute(Step(self.number, (), begin, remaps, rows))
        return dict(zip(requests, tokens, strict=True))


def seat(
    request: RequestId,
    pages: list[int],
    sampling: SamplingParams = DICE,
    stop_ids: tuple[int, ...] = (),
) -> Seat:
    """Return a seat over *pages*."""
    return Seat(request, pack(pages), sampling, stop_ids)


def prefill(request: RequestId, start: int, end: int, *, write: bool = True) -> Row:
    """Return a row that computes a part of the prompt, and samples at its end."""
    return Row(request, start, pack(PROMPT[start:end]), end == len(PROMPT), write)


def alone() -> int:
    """Return the first token after the prompt, computed in one piece."""
    return Bench().step(prefill(A, 0, 12), begin=(seat(A, [1, 2, 3]),))[A]


@pytest.mark.parametrize("cuts", [[5], [4, 8], [1, 2, 11]])
def test_chunks_change_nothing(cuts: list[int]) -> None:
    """Greedy or drawn: the position and the context decide."""
    bench = Bench()
    begin: tuple[Seat, ...] = (seat(A, [1, 2, 3]),)
    sampled: dict[RequestId, int] = {}
    for start, end in zip([0, *cuts], [*cuts, 12], strict=True):
        sampled = bench.step(prefill(A, start, end), begin=begin)
        begin = ()
    assert sampled == {A: alone()}


def test_a_cached_prefix_and_a_follower_change_nothing() -> None:
    """Pages written by another request, in an earlier step or in the same one."""
    bench = Bench()
    begin = (seat(A, [1, 2, 3]), seat(B, [1, 2, 7]))
    both = bench.step(prefill(A, 0, 12), prefill(B, 8, 12), begin=begin)
    assert both == {A: alone(), B: alone()}
    last = bench.step(
        Row(RequestId(3), 11, pack(PROMPT[11:]), True, write=False),
        begin=(seat(RequestId(3), [1, 2, 3]),),
    )
    assert last == {RequestId(3): alone()}


def test_a_wrong_page_changes_the_answer() -> None:
    """That is what it is for."""
    bench = Bench()
    bench.step(prefill(A, 0, 8), begin=(seat(A, [1, 2, 3]),))
    wrong = bench.step(prefill(B, 8, 12), begin=(seat(B, [1, 9, 4]),))
    assert wrong != {B: alone()}


def test_a_remapped_page_is_read_from_then_on() -> None:
    """As if it had always been there."""
    bench = Bench()
    bench.step(prefill(A, 0, 8), begin=(seat(A, [1, 2, 3]),))
    begin = (seat(B, [1, 9, 4]),)
    assert bench.step(prefill(B, 8, 12), begin=begin, remaps=(Remap(B, 1, 2),)) == {B: alone()}


def test_a_request_that_has_ended_is_skipped() -> None:
    """Its row computes nothing and samples nothing."""
    bench = Bench()
    bench.step(prefill(A, 0, 12), begin=(seat(A, [1, 2, 3, 4], stop_ids=(alone(),)),))
    assert bench.step(Row(A, 12, b"", True)) == {}


def test_a_step_costs_by_its_rows() -> None:
    """A fixed part, and a part for each token."""
    cost = StepCost(fixed=1.0, prefill_token=0.1, decode_row=0.01)
    step = Step(1, (), (), (), (prefill(A, 0, 12), Row(B, 5, b"", True)))
    assert cost.seconds(step) == pytest.approx(1.0 + 1.2 + 0.01)


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_steps_take_their_time_one_after_the_other() -> None:
    """Two queued steps end after the sum of their costs."""
    worker = SimulatedWorker(
        Settings(kv_pages=32, page_size=4),
        cost=StepCost(fixed=1.0, prefill_token=0.0, decode_row=0.0),
    )
    await worker.start()
    first = worker.run(Step(1, (), (seat(A, [1, 2, 3, 4]),), (), (prefill(A, 0, 12),)))
    second = worker.run(Step(2, (), (), (), (Row(A, 12, b"", True),)))
    begun = anyio.current_time()
    assert (await first).number == 1
    assert (await second).number == 2
    assert anyio.current_time() - begun == pytest.approx(2.0)
    await worker.close()
    with pytest.raises(WorkerError):
        worker.run(Step(3, (), (), (), ()))


async def test_memory_is_sized_by_the_settings() -> None:
    """Pages, bytes, or a default; too little is refused."""
    assert (await SimulatedWorker(Settings(kv_pages=77)).start()).kv_pages == 77
    by_bytes = await SimulatedWorker(Settings(kv_memory=2 << 30)).start()
    assert by_bytes.kv_pages == (2 << 30) // by_bytes.bytes_per_token // by_bytes.page_size
    with pytest.raises(SettingsError, match="kv_memory"):
        await SimulatedWorker(Settings(kv_memory=1000)).start()
