"""Chat templates: the Jinja dialect in which models say how a conversation becomes a prompt.

A template is foreign code, so it runs in Jinja's sandbox, where it can neither reach Python's
internals nor change what it is given.  The environment has what Hugging Face templates expect:
trimmed blocks, ``break`` and ``continue``, ``raise_exception``, ``strftime_now``, a ``tojson`` that
leaves characters as they are, and ``generation``, which marks the model's own words for training
and means nothing here.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
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
    # Local time, because that is what templates were written against.
    return datetime.now().astimezone()


class ChatTemplate:
    """One model's template.  *special_tokens* are names such as ``bos_token`` with their text.

    *now* is the clock that ``strftime_now`` reads.  Rendering is safe from any thread.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        now: Callable[[], datetime] = _now,
    ) -> None:
        """Compile *source*; raises `TemplateError` if it is no template."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
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
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Return the prompt for *messages*; raises `TemplateError` with the template's reason.

        *add_generation_prompt* opens the model's turn; *tools* are JSON schemas of functions that
        the model may call.
        """
        variables = {
            **self._special_tokens,
            "messages": list(messages),
            "add_generation_prompt": add_generation_prompt,
            # Templates compare these with none, so they must be defined.
            "tools": None if tools is None else list(tools),
            "documents": None,
        }
        try:
            return self._template.render(variables)
        except _RefusalError as error:
            raise TemplateError(f"the chat template refuses the messages: {error}") from error
        except Exception as error:
            # Foreign code that meets messages it did not expect can raise anything.
            raise TemplateError(f"the chat template fails on these messages: {error}") from error


class _RefusalError(jinja2.TemplateError):
    """The template itself says that it does not take these messages."""


def _refuse(reason: str) -> NoReturn:
    raise _RefusalError(reason)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class _Generation(Extension):
    """Renders what stands between ``generation`` and ``endgeneration`` as if it stood alone."""

    tags = {"generation"}  # noqa: RUF012 (so declared by Jinja)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
