"""Draw one token for each row of logits.

Greedy rows take the largest logit, ties to the lowest id.  The others scale by temperature, keep
the top k, keep of those the smallest set whose mass reaches top p, and invert the cumulative
distribution in the order of token ids at one uniform number.  That number is a function of (seed,
position) alone, so a draw does not depend on what else is in the batch, on chunks, on a restart.

Both limits are applied as a cutoff on the value of a logit, so tokens that tie with the last one
kept are kept as well: which of two equal logits a sort puts first decides nothing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from radixd.scheduling.messages import SamplingParams
from radixd.workers.splitmix import GOLDEN, MASK, scramble

_HEAD = 256
"""Largest logits looked at before a row is sorted.  For 32 rows of 49,152 on two cores: 6 ms for
the largest 256, 24 for 1,024, 114 for a sort."""
_NO_LIMIT = 1 << 62
"""More tokens than any vocabulary has."""


class NonFiniteLogitsError(ArithmeticError):
    """The model computed NaN or infinities for *rows*: its weights or its memory are broken."""

    def __init__(self, rows: Sequence[int]) -> None:
        super().__init__(f"the logits of {len(rows)} rows are not finite")
        self.rows = tuple(rows)


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) that depends on *seed* and *position* alone (splitmix64)."""
    # 52 bits, so that its product with any double is less than that double.
    return (_mix(_mix(seed) + GOLDEN * position) >> 12) * 2.0**-52


def _mix(value: int) -> int:
    return scramble(value + GOLDEN & MASK)


def sample(
    logits: Tensor, sampling: Sequence[SamplingParams], positions: Sequence[int]
) -> list[int]:
    """Return a token id for each row of *logits*, float32 of shape [rows, vocabulary].

    *positions* are those of the sampled tokens in their sequences.  Raises `NonFiniteLogitsError`.
    """
    largest, greedy = logits.max(dim=-1)
    if not bool(largest.isfinite().all()):
        raise NonFiniteLogitsError((~largest.isfinite()).nonzero().flatten().tolist())
    tokens: list[int] = greedy.tolist()
    drawn = [row for row, params in enumerate(sampling) if params.temperature > 0]
    if drawn:
        rows = torch.tensor(drawn, device=logits.device)
        ids = _draw(
            logits.index_select(0, rows) - largest.index_select(0, rows)[:, None],
            [sampling[row] for row in drawn],
            [uniform(sampling[row].seed, positions[row]) for row in drawn],
        )
        for row, token in zip(drawn, ids, strict=True):
            tokens[row] = token
    return tokens


_COLDEST = 1e-6
"""Lower temperatures give the same distribution, and would become 0 in float32."""


def _draw(logits: Tensor, sampling: list[SamplingParams], uniforms: list[float]) -> list[int]:
    """Draw from *logits* whose largest is 0 in every row."""
    temperatures = [max(params.temperature, _COLDEST) for params in sampling]
    logits = logits / _column(temperatures, logits)
    limited = [row for row, params in enumerate(sampling) if params.top_k or params.top_p < 1]
    if limited:
        rows = torch.tensor(limited, device=logits.device)
        cutoff = _cutoff(logits.index_select(0, rows), [sampling[row] for row in limited])
        cutoffs = logits.new_full((len(logits), 1), float("-inf")).index_copy_(0, rows, cutoff)
        logits = logits.masked_fill(logits < cutoffs, float("-inf"))
    mass = logits.double().exp().cumsum(dim=-1)
    target = _column(uniforms, mass) * mass[:, -1:]
    # Right: the first id whose mass exceeds the target, which skips ids without mass.
    ids: list[int] = torch.searchsorted(mass, target, right=True).flatten().tolist()
    return ids


def _cutoff(logits: Tensor, sampling: list[SamplingParams]) -> Tensor:
    """Return [rows, 1], the smallest logit to keep in each row."""
    vocabulary = logits.shape[-1]
    top_k = [params.top_k or _NO_LIMIT for params in sampling]
    total = logits.double().exp().sum(dim=-1, keepdim=True)
    head = logits.topk(min(_HEAD, vocabulary)).values
    cutoff, enough = _last_kept(head, top_k, sampling, total)
    lacking = (~enough).flatten().nonzero().flatten()
    if len(lacking):
        short = lacking.tolist()
        ordered = logits.index_select(0, lacking).sort(dim=-1, descending=True).values
        whole, _ = _last_kept(
            ordered,
            [top_k[row] for row in short],
            [sampling[row] for row in short],
            total.index_select(0, lacking),
        )
        cutoff = cutoff.index_copy(0, lacking, whole)
    return cutoff


def _last_kept(
    ordered: Tensor, top_k: list[int], sampling: list[SamplingParams], total: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the last logit kept of each descending row, and whether the row was long enough.

    *total* is the mass of a whole row; a row cut short cannot tell that of a larger top k.
    """
    length = ordered.shape[-1]
    limit = _column(top_k, torch.empty(0, dtype=torch.int64, device=ordered.device))
    among = torch.arange(length, device=ordered.device) < limit
    probability = torch.where(among, ordered.double().exp(), 0)
    mass = probability.cumsum(dim=-1)
    complete = limit <= length
    whole = torch.where(complete, mass[:, -1:], total)
    wanted = _column([params.top_p for params in sampling], mass) * whole
    kept = (among & (mass - probability < wanted)).sum(dim=-1, keepdim=True).clamp_(min=1)
    enough = complete | ((limit == _NO_LIMIT) & (mass[:, -1:] >= wanted))
    return ordered.gather(-1, kept - 1), enough


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
