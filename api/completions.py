"""``POST /v1/completions``, as OpenAI's clients send and read it: prompts that are no chats."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Final, Literal, cast

import msgspec

from radixd.actors.generation import Prompt, TextPrompt, TokenPrompt
from radixd.api import openai
from radixd.api.answers import Answer, FinishReason, collect, finish_reason, interleave
from radixd.api.body import Tolerance
from radixd.api.call import Call, RecordedStream
from radixd.api.errors import invalid

MAX_TOKENS_DEFAULT: Final = 16
"""OpenAI's."""

TOLERANCE: Final = Tolerance(
    neutral=openai.NEUTRAL
    | {
        "best_of": (1,),
        "echo": (False,),
        "logprobs": (),
        "suffix": ("",),
    },
    ignored=openai.IGNORED,
    nested={"stream_options": openai.STREAM_OPTIONS},
)


class CompletionRequest(openai.SamplingFields, frozen=True, kw_only=True):
    """Prompts to continue: a text, its token ids, or a list of such."""

    prompt: str | tuple[str | int | tuple[int, ...], ...]


class CompletionChoice(msgspec.Struct, frozen=True):
    """The answer to one of the prompts, and how it ended."""

    index: int
    text: str
    finish_reason: FinishReason | None = None
    """Null in the chunks of a stream before the last one of this answer."""
    logprobs: None = None


class Completion(msgspec.Struct, frozen=True):
    """The complete answers, or one event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    """Unix time."""
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: openai.Usage | msgspec.UnsetType | None = msgspec.UNSET
    """Of all prompts together.  In a stream as for chats."""


async def complete(call: Call[CompletionRequest]) -> None:
    """Continue prompts, at once or piece by piece."""
    body = call.body
    call.check_model(body.model)
    include_usage = body.include_usage
    prompts = _prompts(body.prompt, call.engine.settings.max_requests)
    max_tokens = MAX_TOKENS_DEFAULT if body.max_tokens is None else body.max_tokens
    params = body.params(max_tokens)
    async with AsyncExitStack() as stack:
        streams: list[RecordedStream] = []
        for index, prompt in enumerate(prompts):
            request_id = call.record.request_id + (f"-{index}" if len(prompts) > 1 else "")
            stream = await call.submit(prompt, params, names={}, request_id=request_id)
            streams.append(await stack.enter_async_context(stream))
        if body.stream:
            await call.stream(_chunks(call, streams, include_usage))
        else:
            # The engine keeps what is not read yet, so they need no reading side by side.
            answers = [await collect(stream) for stream in streams]
            await call.reply(_completion(call, answers))


def _prompts(given: str | tuple[str | int | tuple[int, ...], ...], most: int) -> list[Prompt]:
    """Return each prompt; raises `ApiError` unless all are of one kind and at most *most*."""
    if isinstance(given, str):
        return [TextPrompt(given)]
    if not given:
        raise invalid("prompt", "is an empty list")
    if all(isinstance(item, int) for item in given):
        return [TokenPrompt(cast(tuple[int, ...], given))]
    if len(given) > most:
        raise invalid("prompt", f"holds {len(given)} prompts; at most {most} are taken at once")
    if all(isinstance(item, str) for item in given):
        return [TextPrompt(text) for text in cast(tuple[str, ...], given)]
    if all(isinstance(item, tuple) for item in given):
        return [TokenPrompt(ids) for ids in cast(tuple[tuple[int, ...], ...], given)]
    raise invalid("prompt", "mixes texts, token ids and lists of token ids")


def _completion(call: Call[CompletionRequest], answers: Sequence[Answer]) -> Completion:
    return Completion(
        id=f"cmpl-{call.record.request_id}",
        object="text_completion",
        created=int(time.time()),
        model=call.body.model,
        choices=tuple(
            CompletionChoice(index, answer.text, answer.finish_reason)
            for index, answer in enumerate(answers)
        ),
        usage=openai.usage_of(*(answer.usage for answer in answers)),
    )


async def _chunks(
    call: Call[CompletionRequest], streams: Sequence[RecordedStream], include_usage: bool
) -> AsyncGenerator[Completion]:
    created = int(time.time())
    no_usage = None if include_usage else msgspec.UNSET

    def chunk(
        *choices: CompletionChoice, usage: openai.Usage | msgspec.UnsetType | None = no_usage
    ) -> Completion:
        return Completion(
            id=f"cmpl-{call.record.request_id}",
            object="text_completion",
            created=created,
            model=call.body.model,
            choices=choices,
            usage=usage,
        )

    async with aclosing(interleave(streams)) as pieces:
        async for index, piece in pieces:
            reason = finish_reason(piece)
            if piece.text or reason is not None:
                yield chunk(CompletionChoice(index, piece.text, reason))
    if include_usage:
        yield chunk(usage=openai.usage_of(*(stream.usage for stream in streams)))
