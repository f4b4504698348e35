"""A simulated GPU: no model and no arithmetic, but real pages and a cost in time.

Its KV is one digest a token slot: the digest of a position is a function of the digest before it,
read through the page table, and of the token.  The next token is a function of the last digest.  So
the text depends on the whole context, is the same whatever is cached or chunked, and changes at
once if a page is reused wrongly: the simulated worker is also a check of the cache.

Time is linear in the step: a fixed part, and a part for each token.
"""

from array import array
from collections.abc import Awaitable, Generator
from typing import Any

import anyio
import msgspec

from radixd.cache.messages import RequestId
from radixd.scheduling.messages import Row, SamplingParams, Seat, Step, StepDone
from radixd.settings import KV_PAGES_MAX, Settings, SettingsError
from radixd.workers.protocol import WorkerError, WorkerInfo
from radixd.workers.splitmix import GOLDEN, MASK, scramble

TOKEN_BYTES = 4

CONTEXT_LENGTH = 32_768
KV_TOKENS = 262_144
"""Capacity where the settings name none."""
BYTES_PER_TOKEN = 131_072
"""KV bytes of a token of an 8B Llama in 16 bits: 32 layers, 8 heads of 128, K and V."""

BYTE_VOCABULARY = 258
BYTE_EOS = 257
_LETTERS = b"etaoin shrdlu cmfwyp vbgkjqxz"
_ANSWER_MEAN = 256
"""One token in this many ends an answer."""


class StepCost(msgspec.Struct, frozen=True):
    """Seconds that a step takes."""

    fixed: float = 0.005
    prefill_token: float = 0.000_05
    decode_row: float = 0.000_1

    def seconds(self, step: Step) -> float:
        """Return the cost of *step*."""
        decodes = sum(1 for row in step.rows if not row.tokens)
        prefill = sum(len(row.tokens) // TOKEN_BYTES for row in step.rows)
        return self.fixed + self.prefill_token * prefill + self.decode_row * decodes


class _Seated:
    __slots__ = ("ended", "last", "sampling", "stop_ids", "table")

    def __init__(self, seat: Seat) -> None:
        self.table = array("I", seat.table)
        self.sampling = seat.sampling
        self.stop_ids = frozenset(seat.stop_ids)
        self.last: int | None = None
        self.ended = False


class SimulatedModel:
    """The memory and the function, without the time."""

    def __init__(
        self, *, kv_pages: int, page_size: int, vocabulary: int, eos_id: int | None
    ) -> None:
        self._page_size = page_size
        self._vocabulary = vocabulary
        self._eos_id = eos_id
        self._kv = array("Q", bytes(8 * kv_pages * page_size))
        self._seats: dict[RequestId, _Seated] = {}

    def compute(self, step: Step) -> tuple[tuple[RequestId, ...], tuple[int, ...]]:
        """Apply *step* and return the requests that sampled, and their tokens."""
        for request in step.end:
            del self._seats[request]
        for seat in step.begin:
            self._seats[seat.request] = _Seated(seat)
        for remap in step.remaps:
            self._seats[remap.request].table[remap.index] = remap.page
        requests: list[RequestId] = []
        tokens: list[int] = []
        for row in step.rows:
            seated = self._seats[row.request]
            if seated.ended:
                continue
            digest = self._attend(row, seated)
            if row.sample:
                after = row.start + max(1, len(row.tokens) // TOKEN_BYTES)
                token = self._draw(digest, seated.sampling, after)
                seated.last = token
                seated.ended = token in seated.stop_ids
                requests.append(row.request)
                tokens.append(token)
        return tuple(requests), tuple(tokens)

    def _attend(self, row: Row, seated: _Seated) -> int:
        """Write the row's digests and return the last one."""
        table, size, kv = seated.table, self._page_size, self._kv
        if row.tokens:
            tokens = array("I", row.tokens)
        else:
            assert seated.last is not None, "a decode row before any sample"
            tokens = array("I", (seated.last,))
        before = row.start - 1
        digest = kv[table[before // size] * size + before % size] if row.start else GOLDEN
        for position, token in enumerate(tokens, row.start):
            digest = scramble(digest ^ (token + 1) * GOLDEN & MASK)
            if row.write:
                kv[table[position // size] * size + position % size] = digest
        return digest

    def _draw(self, digest: int, sampling: SamplingParams, position: int) -> int:
        """Return the token at *position*; with a temperature it depends on the seed as well."""
        if sampling.temperature > 0:
            digest = scramble(digest ^ scramble(sampling.seed ^ position))
        drawn = scramble(digest)
        if self._eos_id is not None and (drawn >> 32) % _ANSWER_MEAN == 0:
            return self._eos_id
        if self._vocabulary == BYTE_VOCABULARY:
            return _LETTERS[drawn % len(_LETTERS)]
        return drawn % self._vocabulary


class _Later:
    """A result that is there at a loop time; may be dropped without being awaited."""

    def __init__(self, done: StepDone, when: float) -> None:
        self._done = done
        self._when = when

    def __await__(self) -> Generator[Any, Any, StepDone]:
        return self._wait().__await__()

    async def _wait(self) -> StepDone:
        await anyio.sleep(max(0.0, self._when - anyio.current_time()))
        return self._done


class SimulatedWorker:
    """A `radixd.workers.protocol.Worker` over a `SimulatedModel`, in the loop's time."""

    def __init__(
        self,
        settings: Settings,
        *,
        cost: StepCost | None = None,
        vocabulary: int = BYTE_VOCABULARY,
        eos_id: int | None = BYTE_EOS,
    ) -> None:
        self._settings = settings
        self._cost = cost or StepCost()
        self._vocabulary = vocabulary
        self._eos_id = eos_id
        self._model: SimulatedModel | None = None
        self._free_at = 0.0

    async def start(self) -> WorkerInfo:
        """Make an empty memory; takes no time."""
        settings = self._settings
        pages = settings.kv_pages
        if pages is None and settings.kv_memory is not None:
            pages = settings.kv_memory // (BYTES_PER_TOKEN * settings.page_size)
        elif pages is None:
            pages = KV_TOKENS // settings.page_size
        if not 2 <= pages <= KV_PAGES_MAX:
            raise SettingsError(
                "kv_memory",
                f"{settings.kv_memory} bytes are {pages} pages of "
                f"{BYTES_PER_TOKEN * settings.page_size} bytes, not 2 to {KV_PAGES_MAX}",
            )
        self._model = SimulatedModel(
            kv_pages=pages,
            page_size=settings.page_size,
            vocabulary=self._vocabulary,
            eos_id=self._eos_id,
        )
        return WorkerInfo(
            model=settings.model,
            device="simulated",
            dtype="none",
            vocabulary=self._vocabulary,
            context_length=settings.max_model_len or CONTEXT_LENGTH,
            page_size=settings.page_size,
            kv_pages=pages,
            bytes_per_token=BYTES_PER_TOKEN,
            eos_ids=() if self._eos_id is None else (self._eos_id,),
            tokenizer_file=settings.tokenizer,
            chat_template=None,
            special_tokens={},
        )

    def run(self, step: Step) -> Awaitable[StepDone]:
        """Compute *step* at once; the result is there when its time has passed."""
        if self._model is None:
            raise WorkerError("the simulated worker is not running")
        seconds = self._cost.seconds(step)
        requests, tokens = self._model.compute(step)
        self._free_at = max(self._free_at, anyio.current_time()) + seconds
        return _Later(StepDone(step.number, requests, tokens, seconds), self._free_at)

    async def close(self) -> None:
        """Forget the memory."""
        self._model = None
