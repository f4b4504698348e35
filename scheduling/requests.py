"""One request as the scheduler sees it, and the phases of its life.

::

    Submit → ARRIVING → WAITING ⇄ HELD
                           ↓
                        RUNNING → LEAVING → gone

ARRIVING: the cache owner has been asked to remember the prompt.  WAITING: may be admitted.  HELD:
waits for a leader that computes its prefix.  RUNNING: holds a lease and pages.  LEAVING: has ended,
but a step that was sent still has a row of it.  A request that ends in an earlier phase leaves
through LEAVING too, as soon as no message about it is under way.

Positions count tokens of prompt and answer.  Prefill rows compute ``[scheduled, …)`` of the prompt;
the last of them samples the first answer token; each decode row feeds back one sampled token and
samples the next.
"""

from array import array
from enum import Enum, auto

from radixd.cache.messages import RequestId
from radixd.cache.tokens import TOKEN_BYTES, pack
from radixd.scheduling.messages import FinishReason, SamplingParams, Submit, Usage


class Phase(Enum):
    """Where a live request is; see the module."""

    ARRIVING = auto()
    WAITING = auto()
    HELD = auto()
    RUNNING = auto()
    LEAVING = auto()


class Request:
    """A live request."""

    __slots__ = (
        "answer",
        "committed",
        "computed",
        "finish",
        "from_tree",
        "id",
        "in_flight",
        "last_step",
        "leader",
        "losses",
        "matched",
        "max_tokens",
        "phase",
        "prompt",
        "prompt_length",
        "prompt_tokens",
        "reached",
        "rows_out",
        "samples_planned",
        "sampling",
        "scheduled",
        "stop_ids",
        "told",
        "until",
        "usage_told",
        "write",
    )

    def __init__(self, submit: Submit) -> None:
        self.id: RequestId = submit.request
        self.prompt = submit.tokens
        """Tokens to prefill; after a lost worker the delivered answer is among them."""
        self.prompt_length = len(submit.tokens) // TOKEN_BYTES
        self.max_tokens = submit.max_tokens
        """Tokens that may still be sampled, counted from the end of ``prompt``."""
        self.sampling: SamplingParams = submit.sampling
        self.stop_ids = submit.stop_ids
        self.prompt_tokens = self.prompt_length
        """Length of the prompt that the client sent."""
        self.reached = 0
        """Prompt tokens that had KV at one time, under this worker or an earlier one."""
        self.phase = Phase.ARRIVING
        self.finish: FinishReason | None = None
        self.matched = 0
        self.leader: RequestId | None = None
        self.until = 0
        """While HELD: the leader must have scheduled its prompt up to here."""
        self.from_tree = 0
        self.in_flight = 0
        self.usage_told = False
        self.losses = 0
        """Workers that died with a row of this request since its last token."""
        self._restart()

    def _restart(self) -> None:
        self.scheduled = 0
        """Every position before this one is in a planned, sent or finished step, or cached."""
        self.computed = 0
        """Every position before this one has KV."""
        self.committed = 0
        """What ``computed`` was when the cache owner was last told."""
        self.write = True
        """Whether the prompt's last token is written: not where its page is cached whole."""
        self.samples_planned = 0
        self.answer: array[int] = array("I")
        """Tokens sampled and delivered since ``prompt``."""
        self.told = 0
        """How many of them the cache owner knows."""
        self.rows_out = 0
        """Rows in planned or sent steps that are not done."""
        self.last_step = 0

    @property
    def prefilling(self) -> bool:
        """Whether some of the prompt is in no step yet."""
        return self.scheduled < self.prompt_length

    @property
    def known(self) -> int:
        """Tokens that are known: prompt and delivered answer."""
        return self.prompt_length + len(self.answer)

    @property
    def decodable(self) -> bool:
        """Whether another token may be sampled after those already planned."""
        return self.finish is None and 0 < self.samples_planned < self.max_tokens

    def skip_to(self, position: int, start: int) -> int:
        """Move on from *start*, the next position to schedule, as far as *position* allows.

        *position* is where the ready part of the prompt ends.  Returns the new start; the last
        token is always computed, and not written where its page is ready.
        """
        skipped = min(position, self.prompt_length - 1)
        if position == self.prompt_length:
            self.write = False
        if skipped <= start:
            return start
        if not self.usage_told:
            self.in_flight += skipped - start
        self.scheduled = max(self.scheduled, skipped)
        self.computed = max(self.computed, skipped)
        return skipped

    def usage(self) -> Usage:
        """Return where the prompt's tokens came from, as far as it got."""
        cached = self.from_tree + self.in_flight
        self.reached = max(self.reached, cached, min(self.computed, self.prompt_tokens))
        return Usage(self.from_tree, self.in_flight, self.reached - cached)

    def resume_elsewhere(self) -> None:
        """Start again from every delivered token, with nothing computed."""
        self.prompt += pack(self.answer)
        self.prompt_length += len(self.answer)
        self.max_tokens -= len(self.answer)
        self._restart()
        self.phase = Phase.ARRIVING
        self.leader = None
