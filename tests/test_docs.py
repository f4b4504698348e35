"""The documents say what the code does."""

from pathlib import Path

from radixd.cli import HELP, flag, variable
from radixd.settings import Settings

DOCS = Path(__file__).parents[1] / "docs"


def test_every_setting_is_documented_with_its_default() -> None:
    """The table of docs/settings.md is the table of the code."""
    lines = (DOCS / "settings.md").read_text().splitlines()
    defaults = Settings()
    for setting in Settings.__struct_fields__:
        value = getattr(defaults, setting)
        shown = "" if value is None else f"`{str(value).lower()}`"
        expected = f"| `{flag(setting)}` | `{variable(setting)}` | {shown} | {HELP[setting]} |"
        assert expected in lines
