"""`radixd.text.stopping`: nothing from a stop string on is ever shown."""

from hypothesis import given
from hypothesis import strategies as st

from radixd.text.stopping import StopStrings


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Read the text a character at a time; stop where the first stop string is complete."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(1, 5), max_size=30),
)
def test_the_cuts_do_not_matter(text: str, stops: list[str], cuts: list[int]) -> None:
    """However the text arrives, what is shown is what a reader by characters would show."""
    watch = StopStrings(stops)
    shown, left = "", text
    for cut in [*cuts, len(text) + 1]:
        shown += watch.feed(left[:cut])
        left = left[cut:]
    if watch.found is None:
        shown += watch.finish()
    assert (shown, watch.found) == reference(text, stops)


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    """Text that cannot begin a stop string flows at once."""
    watch = StopStrings(["\n\n", "END"])
    assert watch.feed("one EN") == "one "
    assert watch.feed("TRY\n") == "ENTRY"
    assert watch.feed("\nrest") == ""
    assert watch.found == "\n\n"
    assert watch.feed("more") == ""
