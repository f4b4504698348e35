"""`radixd.text.stopping`: nothing from a stop string on is ever shown."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from radixd.text.stopping import StopStrings

TEXTS = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)
CUTS = st.lists(st.integers(0, 5), max_size=30)


def watched(text: str, stops: Sequence[str], cuts: Sequence[int]) -> tuple[str, str | None]:
    """Return what is shown of *text* when it arrives in parts, and the stop string found."""
    watch = StopStrings(stops)
    shown = ""
    for cut in [*cuts, len(text)]:
        shown += watch.feed(text[:cut])
        text = text[cut:]
    return shown + watch.finish(), watch.found


def read_by_characters(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Read the text a character at a time; stop where the first stop string is complete."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(TEXTS, STOPS, CUTS)
def test_the_cuts_do_not_matter(text: str, stops: list[str], cuts: list[int]) -> None:
    """However the text arrives, what is shown is what a reader by characters would show."""
    assert watched(text, stops, cuts) == read_by_characters(text, stops)


@given(TEXTS, STOPS, CUTS)
def test_the_stop_string_that_begins_first_wins(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    """Where no stop string lies inside another, the first place of any is where the text ends."""
    apart = [stop for stop in stops if not any(stop in other for other in stops if other != stop)]
    places = [text.find(stop) for stop in apart if stop in text]
    shown, found = watched(text, apart, cuts)
    assert shown == text[: min(places, default=len(text))]
    assert (found is not None) == bool(places)


@given(TEXTS, STOPS)
def test_no_more_is_held_back_than_may_become_a_stop_string(text: str, stops: list[str]) -> None:
    """What is held back is the longest ending of the text that begins a stop string."""
    watch = StopStrings(stops)
    shown = watch.feed(text)
    if watch.found is None:
        beginnings = {stop[:length] for stop in stops for length in range(len(stop))} | {""}
        held = max((part for part in beginnings if text.endswith(part)), key=len)
        assert shown == text.removesuffix(held)


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    """Text that cannot begin a stop string flows at once."""
    watch = StopStrings(["\n\n", "END"])
    assert watch.feed("one EN") == "one "
    assert watch.feed("TRY\n") == "ENTRY"
    assert watch.feed("\nrest") == ""
    assert watch.found == "\n\n"
    assert watch.feed("more") == ""
    assert watch.finish() == ""


def test_an_answer_ends_as_soon_as_a_stop_string_is_complete() -> None:
    """A longer one around it might never be completed, and tokens are billed meanwhile."""
    watch = StopStrings(["abcd", "bc"])
    assert watch.feed("abc") == "a"
    assert watch.found == "bc"
