"""Steps fed by hand to the runner: every way to compute a sequence gives the model's own answer."""

import itertools
import random
from collections.abc import Iterable, Sequence

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from harness.tiny import VOCABULARY, tiny_model
from radixd.cache.messages import Remap, RequestId
from radixd.cache.tokens import pack
from radixd.scheduling.messages import Row, SamplingParams, Seat, Step, StepDone
from radixd.workers.pytorch.attention import KvMemory, install
from radixd.workers.pytorch.runner import StepRunner
from radixd.workers.pytorch.sampling import NonFiniteLogitsError

PAGE_SIZE = 4
GREEDY = SamplingParams(temperature=0.0)
CLOSE = 2e-5


class Bench:
    """A runner of the tiny model, and what it takes to write a step in a line."""

    def __init__(self, *, seats: int = 4, pages: int = 1024) -> None:
        self.model = tiny_model()
        with torch.inference_mode():
            shapes = install(self.model)
        self.memory = KvMemory(shapes, pages * PAGE_SIZE, torch.float32, torch.device("cpu"))
        for layer in self.memory.layers.values():
            for tensor in layer:
                tensor.fill_(float("nan"))  # whoever reads what nobody wrote is found out
        self.runner = StepRunner(self.model, self.memory, page_size=PAGE_SIZE, seats=seats)
        self.logits = torch.empty(0)
        self.model.register_forward_hook(self._keep)
        self._number = 0
        self._next_page = 1

    def _keep(self, model: object, inputs: object, output: object) -> None:
        self.logits = output.logits[0]  # type: ignore[attr-defined]

    def pages(self, tokens: int) -> list[int]:
        """Fresh pages for *tokens* tokens."""
        first = self._next_page
        self._next_page += -(-tokens // PAGE_SIZE)
        return list(range(first, self._next_page))

    def seat(
        self,
        request: int,
        tokens: int = 0,
        *,
        table: Sequence[int] | None = None,
        sampling: SamplingParams = GREEDY,
        stop_ids: tuple[int, ...] = (),
    ) -> Seat:
        """A seat with *table*, or with fresh pages for *tokens* tokens."""
        pages = self.pages(tokens) if table is None else table
        return Seat(RequestId(request), pack(pages), sampling, stop_ids)

    def step(
        self,
        *rows: Row,
        begin: Iterable[Seat] = (),
        end: Iterable[int] = (),
        remaps: Iterable[Remap] = (),
    ) -> StepDone:
        """Run one step."""
        self._number += 1
        ended = tuple(RequestId(request) for request in end)
        return self.runner.run(Step(self._number, ended, tuple(begin), tuple(remaps), tuple(rows)))

    def decode(self, request: int, start: int, count: int) -> list[int]:
        """Decode *count* tokens; the first input is the last sampled one, at *start*."""
        return [self.step(decode(request, start + k)).tokens[0] for k in range(count)]

    def alone(self, tokens: Sequence[int]) -> Tensor:
        """The logits after *tokens*, computed in one row of a runner of their own."""
        other = Bench()
        other.step(row(1, 0, tokens), begin=[other.seat(1, len(tokens))])
        return other.logits


def row(
    request: int, start: int, tokens: Sequence[int], *, sample: bool = True, write: bool = True
) -> Row:
    """A row that computes *tokens*."""
    return Row(RequestId(request), start, pack(tokens), sample, write)


def decode(request: int, start: int) -> Row:
    """A row that feeds the last sampled token back."""
    return Row(RequestId(request), start, b"", True)


def prompt(length: int, seed: int = 0) -> list[int]:
    """Tokens drawn from *seed*."""
    chosen = random.Random(seed)
    return [chosen.randrange(4, VOCABULARY) for _ in range(length)]


def generated(model: LlamaForCausalLM, tokens: Sequence[int], count: int) -> list[int]:
    """What `transformers` itself generates, with its own attention and cache."""
    output = model.generate(
        torch.tensor([tokens]),
        attention_mask=torch.ones(1, len(tokens), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=count,
        min_new_tokens=count,
        eos_token_id=None,
        pad_token_id=0,
    )
    answer: list[int] = output[0, len(tokens) :].tolist()
    return answer


@pytest.mark.parametrize("length", [1, 3, 50, 255, 600])
def test_greedy_answers_are_those_of_the_model_itself(length: int) -> None:
    """Prefill and decode over pages choose the tokens that the model's own generate chooses."""
    bench = Bench()
    tokens = prompt(length)
    first = bench.step(row(1, 0, tokens), begin=[bench.seat(1, length + 12)]).tokens
    answer = [*first, *bench.decode(1, length, 11)]

    assert answer == generated(tiny_model(), tokens, 12)


@pytest.mark.parametrize("cuts", [[1], [7], [20, 21], [256, 512], [3, 300]])
def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(cuts: list[int]) -> None:
    """Cutting a prefill anywhere, across pages and pieces too, changes no logit."""
    bench = Bench()
    tokens = prompt(600)
    edges = [0, *cuts, len(tokens)]
    bench.step(begin=[bench.seat(1, len(tokens))])
    for start, end in itertools.pairwise(edges):
        bench.step(row(1, start, tokens[start:end], sample=end == len(tokens)))

    torch.testing.assert_close(bench.logits, bench.alone(tokens), atol=CLOSE, rtol=0)


def test_followers_join_the_step_that_computes_their_prefix() -> None:
    """Rows may read pages that another row of the same step writes, whatever their order."""
    bench = Bench(seats=8)
    shared = prompt(40)
    tails = [prompt(length, seed=length) for length in (1, 3, 9, 70)]
    pages = bench.pages(40)
    leader = bench.seat(1, table=[*pages, *bench.pages(20)])
    seats = [bench.seat(2 + k, table=[*pages, *bench.pages(80)]) for k in range(len(tails))]
    rows = [row(2 + k, 40, tail) for k, tail in enumerate(tails)]
    bench.step(*rows[:2], row(1, 0, shared), *rows[2:], begin=[leader, *seats])

    expected = [bench.alone(shared + tail) for tail in tails]
    expected.insert(2, bench.alone(shared))
    torch.testing.assert_close(bench.logits, torch.cat(expected), atol=CLOSE, rtol=0)


def test_a_hit_computes_only_what_follows_the_cached_pages() -> None:
    """A later request continues from pages of one that has left."""
    bench = Bench()
    shared = prompt(60)
    pages = bench.pages(60)
    bench.step(row(1, 0, shared), begin=[bench.seat(1, table=pages)])
    tail = prompt(5, seed=9)
    bench.step(row(2, 60, tail), begin=[bench.seat(2, table=[*pages, *bench.pages(5)])], end=[1])

    torch.testing.assert_close(bench.logits, bench.alone(shared + tail), atol=CLOSE, rtol=0)


def test_a_last_token_that_is_not_written_leaves_its_page_alone() -> None:
    """A prompt that is cached whole computes one token, and its page keeps every bit."""
    bench = Bench()
    tokens = prompt(16)
    pages = bench.pages(16)
    bench.step(row(1, 0, tokens), begin=[bench.seat(1, table=pages)])
    slots = slice(pages[0] * PAGE_SIZE, (pages[-1] + 1) * PAGE_SIZE)
    before = [tensor[slots].clone() for pair in bench.memory.layers.values() for tensor in pair]
    again = bench.seat(2, table=[*pages, *bench.pages(8)])
    bench.step(row(2, 15, tokens[15:], write=False), begin=[again])

    torch.testing.assert_close(bench.logits, bench.alone(tokens), atol=CLOSE, rtol=0)
    after = [tensor[slots] for pair in bench.memory.layers.values() for tensor in pair]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


def test_a_decode_batch_of_any_lengths_equals_each_alone() -> None:
    """Padding sequences to one another changes no token of any."""
    lengths = [1, 2, 5, 17, 100, 300, 511, 900]
    prompts = {k: prompt(length, seed=k) for k, length in enumerate(lengths)}
    bench = Bench(seats=len(lengths), pages=2048)
    for k, tokens in prompts.items():
        bench.step(row(k, 0, tokens), begin=[bench.seat(k, len(tokens) + 8)])
    together = [
        bench.step(*(decode(k, len(tokens) + n) for k, tokens in prompts.items())).tokens
        for n in range(6)
    ]

    for k, tokens in prompts.items():
        assert [tokens_[k] for tokens_ in together] == generated(tiny_model(), tokens, 7)[1:]


def test_prefill_and_decode_share_a_step() -> None:
    """A decode, a short tail, a long chunk and a row without a sample disturb nobody."""
    bench = Bench()
    old, short, long, silent = prompt(30, 1), prompt(9, 2), prompt(400, 3), prompt(33, 4)
    first = bench.step(row(1, 0, old), begin=[bench.seat(1, 40)]).tokens
    seats = [bench.seat(2, 9), bench.seat(3, 400), bench.seat(4, 33)]
    done = bench.step(
        row(4, 0, silent, sample=False), decode(1, 30), row(3, 0, long), row(2, 0, short),
        begin=seats,
    )  # fmt: skip

    assert done.requests == (1, 3, 2)
    expected = [bench.alone([*old, *first]), bench.alone(long), bench.alone(short)]
    torch.testing.assert_close(bench.logits, torch.cat(expected), atol=CLOSE, rtol=0)


def test_a_seeded_draw_is_the_same_alone_and_in_a_batch() -> None:
    """What a request samples does not depend on who runs beside it, nor on chunks."""
    sampling = SamplingParams(temperature=1.0, top_p=0.9, top_k=40, seed=7)
    tokens = prompt(20)
    bench = Bench()
    alone = [*bench.step(row(1, 0, tokens), begin=[bench.seat(1, 30, sampling=sampling)]).tokens]
    alone += bench.decode(1, 20, 7)

    others = [bench.seat(k, 40, sampling=SamplingParams(seed=k)) for k in (2, 3)]
    bench.step(row(2, 0, prompt(9, 2)), row(3, 0, prompt(30, 3)), begin=others)
    again = bench.seat(4, 30, sampling=sampling)
    bench.step(row(4, 0, tokens[:11], sample=False), decode(2, 9), begin=[again])
    batched = [bench.step(decode(3, 30), row(4, 11, tokens[11:])).tokens[1]]
    batched += [bench.step(decode(2, 10 + n), decode(4, 20 + n)).tokens[1] for n in range(7)]

    assert batched == alone
    assert len(set(alone)) > 1


def test_rows_of_a_request_that_sampled_a_stop_id_are_skipped() -> None:
    """The worker knows first that a request ended: its later rows are missing from the answer."""
    tokens = prompt(12)
    first, second = generated(tiny_model(), tokens, 2)
    bench = Bench()
    seats = [bench.seat(1, 20, stop_ids=(second,)), bench.seat(2, 20)]
    assert bench.step(row(1, 0, tokens), row(2, 0, tokens), begin=seats).tokens == (first, first)
    assert bench.step(decode(1, 12), decode(2, 12)).tokens == (second, second)

    assert bench.step(decode(1, 13), decode(2, 13)).requests == (2,)
    assert bench.step(decode(1, 14)).requests == ()


def test_a_remapped_page_is_read_from_the_next_step_on() -> None:
    """After a remap a request reads another request's copy of its page, not its own."""
    tokens = prompt(8)
    bench = Bench()
    seats = [bench.seat(1, 20), bench.seat(2, table=(twin := bench.pages(20)))]
    bench.step(row(1, 0, tokens), row(2, 0, tokens), begin=seats)
    own = [1, 2]  # the first pages that were given out
    for layer in bench.memory.layers.values():
        for tensor in layer:
            tensor[own[0] * PAGE_SIZE : (own[1] + 1) * PAGE_SIZE] = float("nan")
    remaps = [Remap(RequestId(1), index, twin[index]) for index in range(2)]

    done = bench.step(decode(1, 8), decode(2, 8), remaps=remaps)
    assert done.tokens[0] == done.tokens[1]


def test_seats_are_freed_and_grow_on_demand() -> None:
    """One seat serves request after request, and more requests than seats are no error."""
    bench = Bench(seats=1)
    tokens = prompt(6)
    expected = generated(tiny_model(), tokens, 1)
    for request in range(3):
        ended = [request - 1] if request else []
        done = bench.step(row(request, 0, tokens), begin=[bench.seat(request, 8)], end=ended)
        assert list(done.tokens) == expected
    seats = [bench.seat(request, 8) for request in (7, 8, 9)]
    done = bench.step(*(row(request, 0, tokens) for request in (7, 8, 9)), begin=seats)

    assert list(done.tokens) == expected * 3
    assert list(bench.decode(2, 6, 1)) == generated(tiny_model(), tokens, 2)[1:]


def test_an_empty_step_computes_nothing() -> None:
    """A step may only begin and end requests."""
    bench = Bench()

    assert bench.step(begin=[bench.seat(1, 4)]).requests == ()
    assert bench.step(end=[1]).requests == ()


def test_logits_that_are_not_numbers_are_refused() -> None:
    """Broken memory or weights raise; no token is made up."""
    bench = Bench()
    with torch.no_grad():
        bench.model.lm_head.weight[5] = float("nan")

    with pytest.raises(NonFiniteLogitsError):
        bench.step(row(1, 0, prompt(3)), begin=[bench.seat(1, 4)])


def test_a_request_cannot_be_seated_twice() -> None:
    """The scheduler's mistake is told at once."""
    bench = Bench()
    bench.step(begin=[bench.seat(1, 4)])

    with pytest.raises(ValueError, match="seated already"):
        bench.step(begin=[bench.seat(1, 4)])


def test_a_decode_needs_a_sampled_token() -> None:
    """A row without tokens for a request that has sampled none is the scheduler's mistake."""
    bench = Bench()

    with pytest.raises(ValueError, match="no sampled token"):
        bench.step(decode(1, 0), begin=[bench.seat(1, 4)])
