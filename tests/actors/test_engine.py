"""`radixd.actors.engine`: the whole engine over the simulated worker, embedded."""

import threading
from typing import Any

import anyio
import pytest

from radixd.actors.engine import Engine
from radixd.actors.generation import (
    ChatPrompt,
    DrainingError,
    EngineClosedError,
    GenerationParams,
    InvalidRequestError,
    OverloadedError,
    Piece,
    Prompt,
    TextPrompt,
    TokenPrompt,
    TokenUsage,
)
from radixd.scheduling.messages import Step, StepDone
from radixd.settings import PolicyName, Settings, SettingsError, SharingMode
from radixd.workers.protocol import WorkerError, WorkerInfo
from radixd.workers.simulated import SimulatedWorker, StepCost

FAST = StepCost(fixed=0.0002, prefill_token=0.0, decode_row=0.0)
GREEDY = GenerationParams(max_tokens=8, temperature=0.0, ignore_eos=True)


def settings(**changes: object) -> Settings:
    """Return settings for a simulated worker with a small cache."""
    fields: dict[str, object] = {"worker": "simulated", "kv_pages": 2048} | changes
    return Settings(**fields)  # type: ignore[arg-type]


def engine(**changes: object) -> Engine:
    """Return an engine whose steps take next to no time."""
    chosen = settings(**changes)
    return Engine(chosen, worker=SimulatedWorker(chosen, cost=FAST))


async def answer(
    running: Engine, prompt: Prompt, params: GenerationParams = GREEDY
) -> tuple[str, TokenUsage, Piece]:
    """Return the whole text, the usage and the last piece."""
    pieces = [piece async for piece in running.generate(prompt, params)]
    return "".join(piece.text for piece in pieces), pieces[-1].usage, pieces[-1]


async def test_a_prompt_is_answered_and_then_remembered() -> None:
    """The second time all but the tokens after the last full page are cached."""
    async with engine() as running:
        prompt = TextPrompt("x" * 100)
        first, usage, last = await answer(running, prompt)
        assert (usage.computed, usage.cached_tokens) == (100, 0)
        assert (len(first), last.finish_reason) == (8, "length")
        again, usage, _ = await answer(running, prompt)
        assert again == first
        assert (usage.computed, usage.cached_tokens) == (4, 96)


@pytest.mark.parametrize(("page_size", "length"), [(1, 77), (16, 96)])
async def test_a_prompt_that_ends_on_a_page_border_computes_one_token(
    page_size: int, length: int
) -> None:
    """Logits need one token; its page is not written again."""
    async with engine(page_size=page_size) as running:
        prompt = TextPrompt("y" * length)
        first, _, _ = await answer(running, prompt)
        again, usage, _ = await answer(running, prompt)
        assert (again, usage.computed) == (first, 1)


async def test_the_next_turn_of_a_chat_computes_only_the_new_message() -> None:
    """Prompt and answer of the last turn are cached up to the last full page."""
    async with engine(page_size=1) as running:
        chat = [{"role": "user", "content": "hello there"}]
        params = GenerationParams(max_tokens=20, temperature=0.0, ignore_eos=True)
        text, usage, _ = await answer(running, ChatPrompt(tuple(chat)), params)
        before = usage.prompt_tokens + usage.completion_tokens
        chat += [{"role": "assistant", "content": text}, {"role": "user", "content": "more"}]
        _, usage, _ = await answer(running, ChatPrompt(tuple(chat)), params)
        assert usage.cached_tokens == before - 1  # The last sampled token was never fed back.


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
@pytest.mark.parametrize("sharing", ["same-step", "next-step"])
async def test_a_burst_computes_its_prefix_once(policy: PolicyName, sharing: SharingMode) -> None:
    """64 requests that share 1,500 tokens: shared pages once, and each one's own tokens."""
    async with engine(policy=policy, share_in_flight=sharing) as running:
        usages: list[TokenUsage] = []

        async def ask(number: int) -> None:
            _, usage, _ = await answer(running, TextPrompt("p" * 1500 + f"{number:04d}"))
            usages.append(usage)

        async with anyio.create_task_group() as clients:
            for number in range(64):
                clients.start_soon(ask, number)
        shared = 1500 // 16 * 16
        assert sum(usage.computed for usage in usages) == shared + 64 * (1504 - shared)
        rendered = running.metrics.render().decode()
        computed = f'radixd_prompt_tokens_total{{source="computed"}} {shared + 64 * 16}.0'
        assert computed in rendered
        assert "radixd_cache_locks 0.0" in rendered


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_followers_wait_hardly_longer_than_their_leader() -> None:
    """Same-step sharing, in virtual time: the median comes within 1.5 times the leader's."""
    chosen = settings(max_step_tokens=8192)
    worker = SimulatedWorker(chosen)
    async with Engine(chosen, worker=worker) as running:
        waits: dict[int, float] = {}
        begun = anyio.current_time()

        async def ask(number: int) -> None:
            async for _ in running.generate(TokenPrompt((7,) * 1500 + (number,)), GREEDY):
                waits.setdefault(number, anyio.current_time() - begun)

        async with anyio.create_task_group() as clients:
            for number in range(64):
                clients.start_soon(ask, number)
        assert sorted(waits.values())[32] <= 1.5 * waits[0]


async def test_a_stop_string_ends_the_answer_and_the_work() -> None:
    """The request leaves the engine although it never reached its limit."""
    async with engine() as running:
        whole, _, _ = await answer(
            running,
            TextPrompt("stop"),
            GenerationParams(max_tokens=60, temperature=0.0, ignore_eos=True),
        )
        stop = whole[20:23]
        params = GenerationParams(temperature=0.0, ignore_eos=True, stop=(stop,))
        text, usage, last = await answer(running, TextPrompt("stop"), params)
        assert text == whole[: whole.index(stop)]
        assert (last.finish_reason, last.stop_string) == ("stop", stop)
        assert usage.completion_tokens == whole.index(stop) + len(stop)
        running.drain()
        await running.drained()


async def test_leaving_early_gives_everything_back() -> None:
    """An abandoned stream leaves no lease, no waiting request and no credit behind."""
    async with engine(max_running=1) as running:
        long = GenerationParams(max_tokens=10_000, temperature=0.0, ignore_eos=True)
        async for _ in running.generate(TextPrompt("leave"), long):
            break
        with anyio.move_on_after(0.001):
            await answer(running, TextPrompt("z" * 3000), long)
        # The only seat is free again, so this one is answered.
        await answer(running, TextPrompt("stay"))
        statistics = await running.statistics()
        assert statistics.gate.requests == 0
        assert statistics.cache.leases == 0
        assert statistics.scheduler.waiting == statistics.scheduler.running == 0


async def test_sampling_depends_on_the_seed_alone() -> None:
    """The same seed gives the same text, beside others or alone."""
    async with engine() as running:
        params = GenerationParams(max_tokens=30, seed=5, ignore_eos=True)
        alone, _, _ = await answer(running, TextPrompt("dice"), params)
        texts: list[str] = []

        async def ask(seed: int) -> None:
            chosen = GenerationParams(max_tokens=30, seed=seed, ignore_eos=True)
            text, _, _ = await answer(running, TextPrompt("dice"), chosen)
            texts.append(text)

        async with anyio.create_task_group() as clients:
            for seed in range(4, 8):
                clients.start_soon(ask, seed)
        assert alone in texts
        assert len(set(texts)) == 4


async def test_what_cannot_be_served_is_refused_at_the_door() -> None:
    """With the field and the limit; nothing enters."""
    async with engine(kv_pages=5, page_size=16) as running:
        assert running.model.max_model_len == 65
        with pytest.raises(InvalidRequestError, match="at most 64") as refused:
            await running.submit(TextPrompt("x" * 65), GenerationParams())
        assert refused.value.code == "context_length_exceeded"
        text, _, _ = await answer(running, TextPrompt("x" * 57), GREEDY)
        assert len(text) == 8
        assert (await running.statistics()).gate.requests == 0


async def test_over_the_limit_requests_are_turned_away() -> None:
    """429 and not a queue without end."""
    async with engine(max_requests=2) as running:
        for prompt in ("a", "b"):
            await running.submit(TextPrompt(prompt), GenerationParams())
        with pytest.raises(OverloadedError):
            await running.submit(TextPrompt("c"), GenerationParams())


async def test_draining_lets_requests_finish_and_takes_no_more() -> None:
    """Those inside get their whole answer."""
    async with engine() as running:
        stream = await running.submit(TextPrompt("last"), GREEDY)
        running.drain()
        assert not running.ready
        with pytest.raises(DrainingError):
            await running.submit(TextPrompt("late"), GREEDY)
        text = "".join([piece.text async for piece in stream])
        assert len(text) == 8
        await running.drained()


async def test_a_wrong_type_is_the_callers_error_and_nobody_elses() -> None:
    """It is raised where the mistake is, and other streams go on."""
    async with engine() as running:
        stream = await running.submit(TextPrompt("other"), GREEDY)
        wrong: Any = "a str where a prompt belongs"
        with pytest.raises(InvalidRequestError, match="TextPrompt"):
            await running.submit(wrong, GREEDY)
        with pytest.raises(InvalidRequestError, match="temperature"):
            await running.submit(TextPrompt("x"), GenerationParams(temperature=wrong))
        assert len("".join([piece.text async for piece in stream])) == 8
        assert running.alive


async def test_an_abandoned_prompt_holds_nobody_up_while_it_is_encoded() -> None:
    """The next one does not wait for its thread."""

    async with engine() as running:
        encode = running.tokenizer.encode
        go_on = threading.Event()

        def slow(text: str, *, add_special_tokens: bool) -> list[int]:
            if text.startswith("s"):
                go_on.wait(10)
            return encode(text, add_special_tokens=add_special_tokens)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(running.tokenizer, "encode", slow)
            async with anyio.create_task_group() as clients:
                clients.start_soon(running.submit, TextPrompt("s" * 5000), GREEDY)
                await anyio.wait_all_tasks_blocked()
                clients.cancel_scope.cancel()
            text, _, _ = await answer(running, TextPrompt("quick"))
            assert len(text) == 8
            go_on.set()


async def test_the_engine_can_be_drained_after_it_was_left() -> None:
    """Nobody is inside any more."""
    async with engine() as running:
        await running.submit(TextPrompt("left"), GenerationParams())
    running.drain()
    await running.drained()
    assert not running.alive


async def test_what_is_cut_off_is_told_so() -> None:
    """Queued, running and still to be encoded: each stream ends with ``abort``."""
    async with engine(max_running=1) as running:
        streams = [
            await running.submit(TextPrompt(name), GenerationParams(ignore_eos=True))
            for name in "abc"
        ]
        running.drain()
        running.cut_off()
        for stream in streams:
            pieces = [piece async for piece in stream]
            assert pieces[-1].finish_reason == "abort"
        await running.drained()


async def test_a_closed_engine_says_so() -> None:
    """Before and after, and to whoever still waits when it closes."""
    running = engine()
    with pytest.raises(EngineClosedError):
        await running.submit(TextPrompt("early"), GREEDY)
    async with running:
        stream = await running.submit(TextPrompt("cut"), GenerationParams())
    with pytest.raises(EngineClosedError):
        async for _ in stream:
            pass
    with pytest.raises(EngineClosedError):
        await running.submit(TextPrompt("late"), GREEDY)
    assert not running.alive


async def test_impossible_settings_are_refused_with_the_reason() -> None:
    """A context that the memory cannot hold is known once the worker is."""
    with pytest.raises(SettingsError, match="max_model_len"):
        async with engine(kv_pages=3, max_model_len=1000):
            pass


async def test_encoding_in_threads_keeps_the_order_of_arrival() -> None:
    """A short prompt does not overtake a long one that came first."""
    order: list[str] = []
    async with engine(max_running=1) as running:

        async def ask(name: str, text: str) -> None:
            async for _ in running.generate(TextPrompt(text), GenerationParams(max_tokens=1)):
                order.append(name)

        async with anyio.create_task_group() as clients:
            clients.start_soon(ask, "long", "l" * 20_000)
            clients.start_soon(ask, "short", "s")
    assert order == ["long", "short"]


class LossyWorker(SimulatedWorker):
    """Loses its memory, and every step that is out, at one step."""

    def __init__(self, chosen: Settings, lose_at: int) -> None:
        super().__init__(chosen, cost=FAST)
        self._lose_at = lose_at
        self._lost = False

    async def start(self) -> WorkerInfo:
        """Come back empty."""
        self._lost = False
        return await super().start()

    async def run(self, step: Step) -> StepDone:
        """Compute, or fail this step and those that are queued behind it."""
        done = await super().run(step)
        if step.number == self._lose_at:
            self._lost = True
        if self._lost:
            raise WorkerError("the test took it away")
        return done


@pytest.mark.parametrize("lose_at", [1, 2, 3, 7, 20])
async def test_a_lost_worker_is_a_pause_and_not_an_error(lose_at: int) -> None:
    """Every stream goes on with exactly the text of an undisturbed run, no token twice."""
    prompts = [TextPrompt("shared start " * 9 + name) for name in "abcdef"]
    params = GenerationParams(max_tokens=40, temperature=0.0, ignore_eos=True)

    async def all_answers(running: Engine) -> list[tuple[str, int]]:
        answers: dict[int, tuple[str, int]] = {}

        async def ask(number: int) -> None:
            text, usage, _ = await answer(running, prompts[number], params)
            answers[number] = (text, usage.completion_tokens)

        async with anyio.create_task_group() as clients:
            for number in range(len(prompts)):
                clients.start_soon(ask, number)
        return [answers[number] for number in range(len(prompts))]

    async with engine() as running:
        expected = await all_answers(running)
    chosen = settings()
    lossy = Engine(chosen, worker=LossyWorker(chosen, lose_at))
    async with lossy as running:
        assert await all_answers(running) == expected
        assert "radixd_worker_restarts_total 1.0" in running.metrics.render().decode()
        assert (await running.statistics()).cache.generation == 1
