"""Chat templates: the Jinja dialect in which models say how a conversation becomes a prompt.

A template is foreign code, so it runs in Jinja's sandbox, where it can neither reach Python's
internals nor change what it is given.  The environment has what Hugging Face templates expect:
trimmed blocks, ``break`` and ``continue``, ``raise_exception``, ``strftime_now``, and a ``tojson``
that leaves characters as they are.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from radixd.text.errors import TemplateError

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content or '' }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The template of models that bring none."""


def _now() -> datetime:
    return datetime.now(UTC)


class ChatTemplate:
    """One model's template.  *special_tokens* are names such as ``bos_token`` with their text."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        now: Callable[[], datetime] = _now,
    ) -> None:
        """Compile *source*; raises `TemplateError` if it is no template."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template is broken: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """Return the prompt for *messages*; raises `TemplateError` with the template's reason."""
        try:
            return self._template.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template refuses the messages: {error}") from error
        except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            # Faults of the template's own code, brought about by messages it did not expect.
            raise TemplateError(f"the chat template fails on these messages: {error}") from error


def _refuse(reason: str) -> NoReturn:
    raise jinja2.TemplateError(reason)


def _tojson(value: object, indent: int | None = None, **_: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
