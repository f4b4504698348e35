"""`radixd.text.templates`: conversations become prompts, and refusals become errors."""

from datetime import UTC, datetime

import pytest

from radixd.text.errors import TemplateError
from radixd.text.templates import CHATML, ChatTemplate

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <b>"},
]

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The template of SmolLM2-135M-Instruct, Apache-2.0."""


def test_a_models_own_template_gives_its_prompt() -> None:
    """SmolLM2 adds a system turn where there is none."""
    template = ChatTemplate(SMOLLM2, {"bos_token": "<|im_start|>"})
    assert template.render([{"role": "user", "content": "Hi"}]) == (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert template.render(CHAT) == ChatTemplate(CHATML, {}).render(CHAT)


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


def test_tools_are_none_unless_given() -> None:
    """Templates compare them with none, and write them as JSON in their own form."""
    template = ChatTemplate(
        "{% if tools is not none %}"
        "{{ tools[0] | tojson(separators=(',', ':'), sort_keys=True) }}"
        "{% endif %}",
        {},
    )
    assert template.render(CHAT) == ""
    assert template.render(CHAT, tools=[{"type": "function", "name": "f"}]) == (
        '{"name":"f","type":"function"}'
    )


def test_marks_for_training_change_nothing() -> None:
    """What stands in a generation block is rendered, and its variables stay inside."""
    source = "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}"
    assert ChatTemplate(source, {}).render(CHAT) == "21"


def test_the_clock_is_local_time_unless_another_is_given() -> None:
    """A date needs no clock of the caller's."""
    assert ChatTemplate("{{ strftime_now('%Z') }}", {}).render(CHAT) != ""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses .* roles must alternate"),
        ("{{ messages[0].content + 1 }}", "fails on these messages"),
        ("{{ ().__class__.__bases__ }}", "__class__"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ nothing.at_all }}", "fails .* 'nothing' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
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
