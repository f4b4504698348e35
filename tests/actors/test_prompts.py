"""`radixd.actors.prompts`: every mistake of a caller is named, with its limit."""

from typing import Any

import pytest

from radixd.actors.generation import (
    ChatPrompt,
    GenerationParams,
    InvalidRequestError,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from radixd.actors.prompts import PromptEncoder, characters
from radixd.text.templates import CHATML, ChatTemplate
from radixd.text.tokenizers import ByteTokenizer

ENCODER = PromptEncoder(ByteTokenizer(), ChatTemplate(CHATML, {}), max_model_len=100)


def test_the_three_kinds_of_prompt_become_tokens() -> None:
    """Text, ids and conversations."""
    assert ENCODER.encode(TextPrompt("ab")) == [97, 98]
    assert ENCODER.encode(TokenPrompt((5, 6))) == [5, 6]
    chat = ENCODER.encode(ChatPrompt(({"role": "user", "content": "x"},)))
    assert chat[0] == 256
    assert bytes(token for token in chat if token < 256) == b"user\nx\nassistant\n"


@pytest.mark.parametrize(
    ("prompt", "field", "reason"),
    [
        (TextPrompt(""), "prompt", "no tokens"),
        (TokenPrompt(()), "prompt", "no tokens"),
        (TokenPrompt((1, 258)), "prompt", "258 at index 1 is not within 0 to 257"),
        (TokenPrompt((-1,)), "prompt", "-1 at index 0"),
        (TextPrompt("\ud800"), "prompt", "surrogate"),
        (ChatPrompt(({"role": "user", "content": "\ud800"},)), "messages", "surrogate"),
    ],
)
def test_a_bad_prompt_is_refused_by_name(prompt: Prompt, field: str, reason: str) -> None:
    """The field and the reason are in the error."""
    with pytest.raises(InvalidRequestError, match=reason) as refused:
        ENCODER.encode(prompt)
    assert refused.value.field == field


def test_a_model_without_a_template_refuses_conversations() -> None:
    """And says how to mend it."""
    encoder = PromptEncoder(ByteTokenizer(), None, max_model_len=100)
    with pytest.raises(InvalidRequestError, match="--chat-template"):
        encoder.encode(ChatPrompt(({"role": "user", "content": "x"},)))


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ("a",) * 17}, "stop"),
        ({"stop": ("",)}, "stop"),
        ({"stop_token_ids": (258,)}, "stop_token_ids"),
        ({"stop_token_ids": (1,) * 65}, "stop_token_ids"),
        ({"seed": 10**400}, "seed"),
        ({"top_k": 10**400}, "top_k"),
        ({"max_tokens": -(10**400)}, "max_tokens"),
        # Wrong types, which only an embedding program can send.
        ({"seed": 1.5}, "seed"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": None}, "temperature"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"stop": "end"}, "stop"),
        ({"stop": None}, "stop"),
        ({"stop": (5,)}, "stop"),
        ({"stop": (b"x",)}, "stop"),
        ({"stop_token_ids": ("a",)}, "stop_token_ids"),
    ],
)
def test_a_parameter_out_of_its_limits_is_refused_by_name(
    params: dict[str, Any], field: str
) -> None:
    """Each limit, just outside."""
    with pytest.raises(InvalidRequestError) as refused:
        ENCODER.check(TextPrompt("x"), GenerationParams(**params))
    assert refused.value.field == field


@pytest.mark.parametrize(
    "prompt",
    [
        "text",
        None,
        TextPrompt(5),  # type: ignore[arg-type]
        TextPrompt(b"x"),  # type: ignore[arg-type]
        TokenPrompt([1, 2]),  # type: ignore[arg-type]
        ChatPrompt(("hi",)),  # type: ignore[arg-type]
        ChatPrompt({"role": "user"}),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    """In the caller's own task, and with what it should have been."""
    with pytest.raises(InvalidRequestError, match="must be"):
        ENCODER.check(prompt, GenerationParams())


@pytest.mark.parametrize("ids", [(1.0,), ("a",), (None,), (True,)])
def test_ids_that_are_no_integers_are_refused(ids: Any) -> None:
    """By their place."""
    with pytest.raises(InvalidRequestError, match="at index 0"):
        ENCODER.encode(TokenPrompt(ids))


def test_too_many_ids_are_refused_before_each_is_looked_at() -> None:
    """The length alone decides."""
    with pytest.raises(InvalidRequestError, match="1000 tokens"):
        ENCODER.check(TokenPrompt((-1,) * 1000), GenerationParams())


def test_parameters_at_their_limits_are_taken() -> None:
    """Each limit, just inside."""
    ENCODER.check(
        TextPrompt("x"), GenerationParams(temperature=0.0, top_p=1.0, seed=0, max_tokens=1)
    )
    ENCODER.check(TextPrompt("x"), GenerationParams(temperature=2.0, top_p=1e-9, seed=2**63 - 1))


def test_prompt_and_answer_share_the_context() -> None:
    """Exactly the limit fits; one more is refused with the numbers."""
    assert ENCODER.answer_limit(99, None) == 1
    assert ENCODER.answer_limit(60, 40) == 40
    with pytest.raises(InvalidRequestError, match="together they may be at most 100") as refused:
        ENCODER.answer_limit(60, 41)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(InvalidRequestError, match="at most 99"):
        ENCODER.answer_limit(100, None)


def test_only_text_takes_long_to_encode() -> None:
    """Characters tell whether a thread is worth its round trip."""
    assert characters(TextPrompt("abc")) == 3
    assert characters(ChatPrompt(({"role": "user", "content": "abcd"},))) == 54
    assert characters(TokenPrompt((1,) * 1000)) == 0
