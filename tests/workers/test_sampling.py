"""Draws: what may be drawn, how often, and what a draw depends on."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radixd.scheduling.messages import SamplingParams
from radixd.workers.pytorch.sampling import NonFiniteLogitsError, sample, uniform

PINNED = [0.6524484863740321, 0.7012121095215251, 0.36818951565166946, 0.7122486205461367]
GREEDY = SamplingParams(temperature=0.0)


def logits(rows: int, vocabulary: int, *, spread: float = 2.0, seed: int = 0) -> torch.Tensor:
    """Logits drawn from *seed*, [rows, vocabulary]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocabulary, generator=generator) * spread


def drawn(row: torch.Tensor, params: SamplingParams, count: int) -> list[int]:
    """Draw *count* times from one row, at successive positions."""
    return sample(row.expand(count, -1), [params] * count, range(count))


def nucleus(row: torch.Tensor, params: SamplingParams) -> set[int]:
    """The ids that may be drawn, by a sort and a loop; no ties among *row*."""
    scaled = (row.double() / params.temperature).softmax(-1)
    order = row.argsort(descending=True).tolist()[: params.top_k or len(row)]
    within = float(scaled[order].sum())
    kept: set[int] = set()
    mass = 0.0
    for token in order:
        if kept and mass >= params.top_p * within:
            break
        kept.add(token)
        mass += float(scaled[token])
    return kept


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40))
def test_uniform_is_a_function_within_zero_and_one(seed: int, position: int) -> None:
    """The same seed and position give the same number, at least 0 and below 1."""
    assert 0 <= uniform(seed, position) < 1
    assert uniform(seed, position) == uniform(seed, position)


def test_uniform_is_pinned() -> None:
    """A new release draws what an old one drew."""
    assert [uniform(0, 0), uniform(0, 1), uniform(1, 0), uniform(2**63 - 1, 99)] == PINNED


def test_uniform_spreads_over_positions_and_over_seeds() -> None:
    """Neighbouring seeds and positions are as good as independent."""
    for numbers in (
        [uniform(3, position) for position in range(4000)],
        [uniform(seed, 3) for seed in range(4000)],
    ):
        assert abs(sum(numbers) / 4000 - 0.5) < 0.02
        following = list(itertools.pairwise(numbers))
        covariance = sum((a - 0.5) * (b - 0.5) for a, b in following) / len(following)
        assert abs(covariance * 12) < 0.05


def test_greedy_takes_the_largest_and_of_equals_the_lowest_id() -> None:
    """Temperature 0 has no randomness, not even among ties."""
    rows = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 1.0, 5.0, 5.0]])

    assert sample(rows, [GREEDY, GREEDY], [0, 9]) == [1, 0]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5, top_k=5),
        SamplingParams(temperature=1.3, top_p=0.7),
        SamplingParams(temperature=1.0, top_p=0.8, top_k=12),
    ],
)
def test_frequencies_follow_the_limited_distribution(params: SamplingParams) -> None:
    """Over many positions each id comes up as often as its renormalised probability says."""
    (row,) = logits(1, 30)
    count = 20_000
    tokens = torch.tensor(drawn(row, params, count))
    allowed = sorted(nucleus(row, params))
    expected = (row.double() / params.temperature)[allowed].softmax(-1)
    seen = torch.bincount(tokens, minlength=30)

    assert set(tokens.tolist()) <= set(allowed)
    for token, probability in zip(allowed, expected.tolist(), strict=True):
        deviation = math.sqrt(probability * (1 - probability) * count)
        assert abs(int(seen[token]) - probability * count) < 5 * deviation + 1


@pytest.mark.parametrize("params", [SamplingParams(top_p=0.95), SamplingParams(top_k=1500)])
def test_limits_beyond_the_head_are_exact(params: SamplingParams) -> None:
    """A flat distribution, whose nucleus needs a full sort, is cut at the same place."""
    (row,) = logits(1, 4000, spread=0.1)
    allowed = nucleus(row, params)

    assert len(allowed) > 1024
    assert set(drawn(row, params, 2_000)) <= allowed
    excluded = torch.tensor(sorted(set(range(4000)) - allowed))
    assert row[excluded].max() < row[sorted(allowed)].min()


def test_top_k_of_one_and_top_p_of_zero_are_greedy() -> None:
    """The tightest limits leave the largest logit alone."""
    rows = logits(2, 100)
    tightest = [SamplingParams(top_k=1), SamplingParams(top_p=0.0)]

    assert sample(rows, tightest, [3, 4]) == rows.argmax(-1).tolist()


def test_a_tiny_temperature_is_greedy_and_finite() -> None:
    """Dividing by next to nothing overflows nowhere."""
    rows = logits(1, 100, spread=50)

    assert sample(rows, [SamplingParams(temperature=1e-6)], [0]) == rows.argmax(-1).tolist()


def test_a_draw_does_not_depend_on_the_batch() -> None:
    """Each row of a mixed batch draws what it draws alone."""
    rows = logits(6, 500)
    params = [
        GREEDY,
        SamplingParams(seed=1),
        SamplingParams(seed=2, top_p=0.5),
        SamplingParams(seed=3, top_k=3),
        SamplingParams(seed=4, temperature=0.3, top_p=0.999, top_k=499),
        SamplingParams(seed=5, temperature=2.0),
    ]
    positions = [5, 6, 7, 8, 9, 10]
    alone = [sample(rows[k : k + 1], [params[k]], [positions[k]])[0] for k in range(6)]

    assert sample(rows, params, positions) == alone


def test_ids_without_mass_are_never_drawn() -> None:
    """Logits of minus infinity stay out, at the ends of the vocabulary too."""
    row = torch.tensor([-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf])

    assert set(drawn(row, SamplingParams(), 500)) == {1, 3}


def test_rows_that_are_not_finite_are_named() -> None:
    """NaN and a row of infinities raise with the numbers of the rows."""
    rows = logits(4, 10)
    rows[1, 3] = float("nan")
    rows[3] = -torch.inf

    with pytest.raises(NonFiniteLogitsError) as caught:
        sample(rows, [GREEDY] * 4, [0] * 4)
    assert caught.value.rows == (1, 3)


@pytest.mark.parametrize("temperature", [1e-5, 1e-46, 1e-320])
def test_a_temperature_next_to_zero_draws_the_most_probable_token(temperature: float) -> None:
    """Also where float32 would take it for zero."""
    rows = logits(4, 100)
    cold = [SamplingParams(temperature=temperature, seed=seed) for seed in range(4)]
    assert sample(rows, cold, [3] * 4) == rows.argmax(dim=-1).tolist()
