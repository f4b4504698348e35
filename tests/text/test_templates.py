"""`radixd.text.templates`: conversations become prompts, and refusals become errors."""

from datetime import UTC, datetime

import pytest

from radixd.text.errors import TemplateError
from radixd.text.templates import CHATML, ChatTemplate

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <b>"},
]


def test_chatml_marks_every_turn_and_opens_the_answer() -> None:
    """The fallback template, as the models that invented it write it."""
    assert ChatTemplate(CHATML, {}).render(CHAT) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi <b><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert (
        ChatTemplate(CHATML, {}).render(CHAT, add_generation_prompt=False).endswith("<|im_end|>\n")
    )


def test_templates_find_what_they_expect() -> None:
    """Special tokens, tojson without escapes, the date, break, and trimmed blocks."""
    source = """{{ bos_token }}{{ strftime_now('%Y-%m-%d') }}
{% for message in messages %}
    {% if loop.index > 1 %}{% break %}{% endif %}
{{ message | tojson }}
{% endfor %}"""
    template = ChatTemplate(
        source, {"bos_token": "<s>"}, now=lambda: datetime(2026, 12, 1, tzinfo=UTC)
    )
    messages = [{"role": "user", "content": "<é>"}, {"role": "user", "content": "two"}]
    assert template.render(messages) == '<s>2026-12-01\n{"role": "user", "content": "<é>"}\n'


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "fails on these messages"),
        ("{{ ().__class__.__bases__ }}", "__class__"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ nothing.at_all }}", "nothing"),
    ],
)
def test_a_template_that_fails_says_why(source: str, reason: str) -> None:
    """Its own refusals, its faults, and what the sandbox forbids."""
    with pytest.raises(TemplateError, match=reason):
        ChatTemplate(source, {}).render(CHAT)


def test_a_broken_template_is_refused_when_it_is_loaded() -> None:
    """Not at the first request."""
    with pytest.raises(TemplateError, match="broken"):
        ChatTemplate("{% for %}", {})
