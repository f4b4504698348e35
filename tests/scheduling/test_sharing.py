"""Scheduler and cache owner together: what is shared is computed once, and never wrongly."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.machines import Machines, answer_alone
from radixd.cache.messages import Held, RequestId
from radixd.scheduling.messages import SamplingParams
from radixd.settings import PolicyName, SharingMode


def tokens(seed: int, count: int) -> list[int]:
    """Return *count* tokens drawn from *seed*."""
    draw = random.Random(seed)
    return [draw.randrange(1000) for _ in range(count)]


@pytest.mark.parametrize("sharing", ["same-step", "next-step", "off"])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_longer_prompt_computes_only_what_is_new(sharing: SharingMode, page_size: int) -> None:
    """The second request takes the first one's full pages, answer included."""
    machines = Machines(page_size=page_size, sharing=sharing, kv_pages=2048)
    prompt = tokens(1, 50)
    first = machines.submit(prompt, 20)
    machines.run()
    longer = prompt + machines.answers[first] + tokens(2, 9)
    second = machines.submit(longer, 5)
    machines.run()
    shared = (50 + 20 - 1) // page_size * page_size
    assert machines.usage[second].from_tree == shared
    assert machines.usage[second].computed == len(longer) - shared
    assert machines.answers[second] == answer_alone(longer, 5)


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
@pytest.mark.parametrize("sharing", ["same-step", "next-step"])
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("budget", [9, 64, 4096])
def test_a_burst_computes_its_shared_prefix_once(
    policy: PolicyName, sharing: SharingMode, page_size: int, budget: int
) -> None:
    """Whatever the chunks: shared full pages once, and each request's own tokens."""
    machines = Machines(
        page_size=page_size,
        sharing=sharing,
        policy=policy,
        kv_pages=2048,
        max_step_tokens=budget,
    )
    prefix = tokens(1, 150)
    prompts = [[*prefix, 500 + i, *tokens(i, 6)] for i in range(20)]
    requests = machines.submit_all(prompts, 4)
    machines.run()
    whole = 150 // page_size * page_size
    computed = sum(machines.usage[r].computed for r in requests)
    assert computed == whole + 20 * (157 - whole)
    for request, prompt in zip(requests, prompts, strict=True):
        assert machines.answers[request] == answer_alone(prompt, 4)


@pytest.mark.parametrize("sharing", ["same-step", "next-step", "off"])
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_follower_never_reads_a_page_that_has_gone_to_someone_else(
    sharing: SharingMode, page_size: int
) -> None:
    """An answer overtakes the prompt that a leader and a follower compute from it.

    Its pages take the place of the leader's own, which are free soon after and wanted at once.
    """
    answer = answer_alone([1, 2, 3], 40)
    machines = Machines(page_size=page_size, sharing=sharing, kv_pages=512)
    machines.submit([1, 2, 3], 40)
    machines.work()
    machines.work()
    prompts = [[1, 2, 3, *answer[:30], last] for last in (7, 8, 9)]
    requests = machines.submit_all(prompts, 12)
    for number in range(30):
        machines.submit([500 + number] * 9, 1)
        machines.work()
    machines.run()
    for request, prompt in zip(requests, prompts, strict=True):
        assert machines.answers[request] == answer_alone(prompt, 12)


def test_a_follower_is_held_once_and_until_its_own_part_is_computed() -> None:
    """Not until its leader ends, and nobody asks for it before."""
    machines = Machines(page_size=4, sharing="next-step")
    machines.submit([999], 40)
    leader, follower = machines.submit_all([[*range(40), 1], [*range(24), 2]], 30)
    machines.work()
    assert machines.scheduler.statistics().held == 1
    assert [seat.request for seat in machines.steps[-1].begin] == [leader]
    computing = machines.steps[-1].number
    machines.run()
    steps = [s.number for s in machines.history if any(r.request == follower for r in s.rows)]
    assert steps[0] == computing + 2, "one more was sent before the leader's was done"
    outcomes = [outcome for receipt in machines.receipts for outcome in receipt.outcomes]
    assert [o.until for o in outcomes if isinstance(o, Held)] == [24]


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("budget", [9, 64])
def test_a_sampled_answer_does_not_depend_on_what_was_cached_or_on_chunks(
    page_size: int, budget: int
) -> None:
    """Each draw depends on the seed and the position of its token alone."""
    sampling = SamplingParams(temperature=1.0, seed=5)
    machines = Machines(page_size=page_size, max_step_tokens=budget)
    prompt = tokens(3, 40)
    first = machines.submit(prompt, 8, sampling)
    machines.run()
    again = machines.submit(prompt, 8, sampling)
    machines.work()
    machines.work()
    machines.lose_worker()
    machines.run()
    assert machines.answers[first] == answer_alone(prompt, 8, sampling)
    assert machines.answers[again] == answer_alone(prompt, 8, sampling)
    assert answer_alone(prompt, 8, SamplingParams(seed=6)) != machines.answers[first]


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("length", range(2, 7))
def test_the_token_that_stopped_an_answer_is_not_cached(page_size: int, length: int) -> None:
    """A row that would have fed it back was out, and the worker skipped it."""
    prompt = tokens(3, 8)
    answer = answer_alone(prompt, length)
    machines = Machines(page_size=page_size)
    first = machines.submit(prompt, 20, stop_ids=(answer[-1],))
    machines.run()
    assert (machines.answers[first], machines.finished[first]) == (answer, "stop")
    second = machines.submit([*prompt, *answer, 5, 6], 3)
    machines.run()
    cached = (8 + length - 1) // page_size * page_size
    assert machines.usage[second].from_tree == cached
    assert machines.answers[second] == answer_alone([*prompt, *answer, 5, 6], 3)


SHAPES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "page_size": st.sampled_from([1, 4, 16]),
        "kv_tokens": st.integers(96, 400),
        "sharing": st.sampled_from(["same-step", "next-step", "off"]),
        "policy": st.sampled_from(["fcfs", "lpm"]),
        "max_running": st.integers(1, 8),
        "extra_budget": st.integers(1, 60),
        "disable_cache": st.sampled_from([False, False, False, True]),
        "losses": st.sampled_from([0.0, 0.0, 0.02]),
        "owner_lags": st.booleans(),
    }
)


@settings(max_examples=150, deadline=None)
@given(SHAPES)
def test_whatever_happens_answers_are_right_and_books_balance(shape: dict[str, object]) -> None:
    """Random arrivals, aborts, delays and lost workers; the machines are audited throughout."""
    scenario(**shape)  # type: ignore[arg-type]


def until(answer: list[int], stop_ids: tuple[int, ...]) -> list[int]:
    """Return *answer* up to the first of *stop_ids*."""
    ends = [index for index, token in enumerate(answer) if token in stop_ids]
    return answer[: ends[0] + 1] if ends else answer


def scenario(
    seed: int,
    page_size: int,
    kv_tokens: int,
    sharing: SharingMode,
    policy: PolicyName,
    max_running: int,
    extra_budget: int,
    disable_cache: bool,
    losses: float,
    owner_lags: bool,
) -> None:
    """Run one random history and check every promise."""
    draw = random.Random(seed)
    machines = Machines(
        kv_pages=1 + -(-kv_tokens // page_size),
        page_size=page_size,
        sharing=sharing,
        policy=policy,
        max_running=max_running,
        max_step_tokens=max_running + extra_budget,
        disable_cache=disable_cache,
        owner_lags=owner_lags,
    )
    roots = [tokens(draw.randrange(100), draw.randint(1, 60)) for _ in range(3)]
    asked: dict[RequestId, tuple[list[int], list[int]]] = {}
    aborted: set[RequestId] = set()
    for _ in range(80):
        event = draw.random()
        if event < 0.35 and len(asked) < 30:
            prompts = []
            for _ in range(draw.randint(1, 4)):
                # What running requests are about to answer, so that a prompt overtakes them.
                known = [prompt + answer for prompt, answer in list(asked.values())[-5:]]
                base = draw.choice(roots + known)
                prompt = base[: draw.randint(1, len(base))] + tokens(
                    draw.randrange(4), draw.randint(0, 12)
                )
                prompts.append(prompt[:70])
            max_tokens = draw.randint(1, 25)
            stop = draw.choice(answer_alone(prompts[0], max_tokens))
            stop_ids = (stop,) if draw.random() < 0.3 else ()
            requests = machines.submit_all(prompts, max_tokens, stop_ids=stop_ids)
            for request, prompt in zip(requests, prompts, strict=True):
                asked[request] = (prompt, until(answer_alone(prompt, max_tokens), stop_ids))
        elif event < 0.45 and asked:
            request = draw.choice(list(asked))
            aborted.add(request)
            machines.abort(request)
        elif event < 0.45 + losses:
            machines.lose_worker()
        elif event < 0.65:
            machines.serve_owner()
        elif event < 0.85:
            machines.hear_owner()
        else:
            machines.work()
    machines.run()
    for request, (prompt, expected) in asked.items():
        answer = machines.answers[request]
        finish = machines.finished[request]
        assert answer == expected[: len(answer)]
        if finish in ("length", "stop"):
            usage = machines.usage[request]
            assert answer == expected
            assert usage.from_tree + usage.in_flight + usage.computed == len(prompt)
        else:
            assert request in aborted or losses
    counts = machines.owner.page_counts()
    assert counts.locked == counts.pending == counts.private == 0
    assert len(machines.cache.leases) == 0
