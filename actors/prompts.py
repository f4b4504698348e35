"""From what a caller gives to token ids and checked parameters.

Pure functions of tokenizer, template and limits, safe to call from a thread.  Everything that a
caller can get wrong raises `InvalidRequestError`, which names the field and the limit.
"""

from collections.abc import Mapping, Sequence
from typing import assert_never

import msgspec

from radixd.actors.generation import (
    ChatPrompt,
    GenerationParams,
    InvalidRequestError,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from radixd.text.errors import TextError
from radixd.text.templates import ChatTemplate
from radixd.text.tokenizers import Tokenizer

STOP_STRINGS_MAX = 16
STOP_IDS_MAX = 64
SEED_MAX = 2**63 - 1
TEMPERATURE_MAX = 2.0
MESSAGE_CHARACTERS = 50
"""What a template adds to a message, about."""


class PromptEncoder:
    """Turns prompts into token ids for one model."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, *, max_model_len: int
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._max_model_len = max_model_len

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the ids of *prompt*, at least one."""
        try:
            ids = self._encode(prompt)
        except TextError as error:
            raise InvalidRequestError(_field(prompt), str(error)) from error
        if not ids:
            raise InvalidRequestError(_field(prompt), "the prompt has no tokens; give at least 1")
        return ids

    def _encode(self, prompt: Prompt) -> list[int]:
        match prompt:
            case TextPrompt(text):
                return self._tokenizer.encode(text, add_special_tokens=True)
            case ChatPrompt(messages):
                if self._template is None:
                    raise InvalidRequestError(
                        "messages", "the model has no chat template; start with --chat-template"
                    )
                text = self._template.render(messages, add_generation_prompt=True)
                return self._tokenizer.encode(text, add_special_tokens=False)
            case TokenPrompt(ids):
                self._check_ids(ids, "prompt")
                return list(ids)
            case _:
                assert_never(prompt)

    def check(self, prompt: Prompt, params: GenerationParams) -> None:
        """Raise `InvalidRequestError` for the first thing of a wrong type or out of its limits.

        Takes time for what is small only: what is long is looked at when it is encoded.
        """
        _check_prompt_type(prompt)
        _check_types(params)
        if isinstance(prompt, TokenPrompt):
            self.answer_limit(len(prompt.ids), None)
        _within("temperature", params.temperature, 0.0, TEMPERATURE_MAX)
        _within("top_p", params.top_p, 0.0, 1.0)
        if params.top_p == 0.0:
            raise InvalidRequestError("top_p", "top_p must be above 0 and at most 1")
        _within("top_k", params.top_k, 0, 2**31 - 1)
        if params.seed is not None:
            _within("seed", params.seed, 0, SEED_MAX)
        if params.max_tokens is not None and params.max_tokens < 1:
            raise InvalidRequestError("max_tokens", "max_tokens must be at least 1")
        if len(params.stop) > STOP_STRINGS_MAX:
            raise InvalidRequestError("stop", f"at most {STOP_STRINGS_MAX} stop strings are taken")
        if "" in params.stop:
            raise InvalidRequestError("stop", "a stop string must not be empty")
        if len(params.stop_token_ids) > STOP_IDS_MAX:
            raise InvalidRequestError(
                "stop_token_ids", f"at most {STOP_IDS_MAX} stop token ids are taken"
            )
        self._check_ids(params.stop_token_ids, "stop_token_ids")

    def answer_limit(self, prompt_tokens: int, max_tokens: int | None) -> int:
        """Return how many tokens may be generated after a prompt of *prompt_tokens*."""
        room = self._max_model_len - prompt_tokens
        if room < 1:
            raise InvalidRequestError(
                "prompt",
                f"the prompt has {prompt_tokens} tokens; prompt and answer together may have "
                f"{self._max_model_len}, so the prompt at most {self._max_model_len - 1}",
                "context_length_exceeded",
            )
        if max_tokens is None:
            return room
        if max_tokens > room:
            raise InvalidRequestError(
                "max_tokens",
                f"the prompt has {prompt_tokens} tokens and max_tokens is {max_tokens}; together "
                f"they may be at most {self._max_model_len}",
                "context_length_exceeded",
            )
        return max_tokens

    def _check_ids(self, ids: Sequence[int], field: str) -> None:
        vocabulary = self._tokenizer.vocabulary
        for index, token in enumerate(ids):
            if type(token) is not int or not 0 <= token < vocabulary:
                raise InvalidRequestError(
                    field, f"token {token!r} at index {index} is not within 0 to {vocabulary - 1}"
                )


def characters(prompt: Prompt) -> int:
    """Return how much text *prompt* is about, to tell whether encoding it takes long."""
    match prompt:
        case TextPrompt(text):
            return len(text)
        case ChatPrompt(messages):
            contents = sum(len(str(message.get("content"))) for message in messages)
            return contents + MESSAGE_CHARACTERS * len(messages)
        case TokenPrompt():
            return 0
        case _:
            assert_never(prompt)


def _check_prompt_type(prompt: Prompt) -> None:
    match prompt:
        case TextPrompt(text) if isinstance(text, str):
            return
        case TokenPrompt(ids) if isinstance(ids, tuple):
            return
        case ChatPrompt(messages) if isinstance(messages, tuple):
            if all(isinstance(message, Mapping) for message in messages):
                return
            raise InvalidRequestError("messages", "each message must be a mapping")
        case _:
            raise InvalidRequestError(
                "prompt",
                "the prompt must be a TextPrompt of a str, a TokenPrompt of a tuple of ints or a "
                f"ChatPrompt of a tuple of mappings, not {type(prompt).__name__}",
            )


def _check_types(params: GenerationParams) -> None:
    if not isinstance(params, GenerationParams):
        raise InvalidRequestError("params", "params must be GenerationParams")
    try:
        msgspec.convert(msgspec.structs.asdict(params), GenerationParams)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        field = path.rstrip("`").partition("[")[0] or "params"
        raise InvalidRequestError(field, f"{field}: {reason}") from error


def _field(prompt: Prompt) -> str:
    return "messages" if isinstance(prompt, ChatPrompt) else "prompt"


def _within(field: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # False for NaN as well.
        raise InvalidRequestError(field, f"{field} must be within {least} to {most}")
