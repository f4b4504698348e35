"""``POST /v1/chat/completions``, as OpenAI's clients send and read it."""

import time
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final, Literal

import msgspec

from radixd.actors.generation import ChatPrompt
from radixd.api import openai
from radixd.api.answers import Answer, FinishReason, collect, finish_reason
from radixd.api.body import LIST_LENGTH_MAX, Tolerance
from radixd.api.call import Call, RecordedStream
from radixd.api.errors import invalid

TOLERANCE: Final = Tolerance(
    neutral=openai.NEUTRAL
    | {
        "logprobs": (False,),
        "top_logprobs": (0,),
        "tools": ([],),
        "functions": ([],),
        "tool_choice": ("none", "auto"),
        "function_call": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": (),
        "verbosity": (),
        "web_search_options": (),
        "service_tier": ("auto", "default"),
        "store": (False,),
    },
    ignored=openai.IGNORED,
    nested={"stream_options": openai.STREAM_OPTIONS},
    listed={
        "messages": Tolerance(
            # A client that sends an answer back as it got it sends these.
            neutral={
                "refusal": (),
                "annotations": ([],),
                "audio": (),
                "function_call": (),
                "tool_calls": ([],),
            }
        ),
    },
)


class TextPart(
    msgspec.Struct, frozen=True, tag="text", tag_field="type", forbid_unknown_fields=True
):
    """A part of a message's content."""

    text: str


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message; which roles may follow which is up to the model's chat template."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | tuple[TextPart, ...] | None = None
    """The texts of several parts are joined by line breaks."""
    name: str | None = None
    tool_call_id: str | None = None

    def for_template(self, path: str) -> dict[str, Any]:
        """Return the message as templates read it: content is text, absent fields are absent."""
        content = self.content
        if content is None:
            if self.role != "assistant":
                raise invalid(f"{path}.content", f"is required for the role {self.role}")
            content = ""
        if isinstance(content, tuple):
            content = "\n".join(part.text for part in content)
        message = {"role": self.role, "content": content}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class ChatCompletionRequest(openai.SamplingFields, frozen=True, kw_only=True):
    """A conversation to continue."""

    messages: Annotated[tuple[Message, ...], msgspec.Meta(min_length=1, max_length=LIST_LENGTH_MAX)]
    max_completion_tokens: int | None = None
    """By default as many as the context still holds; max_tokens is its older name."""


class AssistantMessage(msgspec.Struct, frozen=True):
    """The answer."""

    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    """The answer and how it ended."""

    index: int
    message: AssistantMessage
    finish_reason: FinishReason
    logprobs: None = None


class ChatCompletion(msgspec.Struct, frozen=True):
    """A complete answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    """Unix time."""
    model: str
    choices: tuple[ChatChoice, ...]
    usage: openai.Usage


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """A part of the answer; only the last has a finish reason."""

    index: int
    delta: ChatDelta
    finish_reason: FinishReason | None = None
    logprobs: None = None


class ChatCompletionChunk(msgspec.Struct, frozen=True):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: tuple[ChatChunkChoice, ...]
    usage: openai.Usage | msgspec.UnsetType | None = msgspec.UNSET
    """With ``include_usage`` alone: null, and in a last chunk that has no choices the numbers."""


async def complete_chat(call: Call[ChatCompletionRequest]) -> None:
    """Answer a conversation, at once or piece by piece."""
    body = call.body
    call.check_model(body.model)
    include_usage = body.include_usage
    prompt = ChatPrompt(
        tuple(m.for_template(f"messages[{index}]") for index, m in enumerate(body.messages))
    )
    field, max_tokens = _max_tokens(body)
    names = {"prompt": "messages", "max_tokens": field}
    async with await call.submit(prompt, body.params(max_tokens), names=names) as stream:
        if body.stream:
            await call.stream(_chunks(call, stream, include_usage))
        else:
            answer = await collect(stream)
            await call.reply(_completion(body.model, stream.id, answer))


def _max_tokens(body: ChatCompletionRequest) -> tuple[str, int | None]:
    """Return the limit and the name of the field that gives it."""
    if body.max_completion_tokens is None:
        return "max_tokens", body.max_tokens
    if body.max_tokens not in (None, body.max_completion_tokens):
        raise invalid("max_tokens", "differs from max_completion_tokens; give one of them")
    return "max_completion_tokens", body.max_completion_tokens


def _completion(model: str, request_id: str, answer: Answer) -> ChatCompletion:
    return ChatCompletion(
        id=f"chatcmpl-{request_id}",
        object="chat.completion",
        created=int(time.time()),
        model=model,
        choices=(ChatChoice(0, AssistantMessage("assistant", answer.text), answer.finish_reason),),
        usage=openai.usage_of(answer.usage),
    )


async def _chunks(
    call: Call[ChatCompletionRequest], stream: RecordedStream, include_usage: bool
) -> AsyncGenerator[ChatCompletionChunk]:
    created = int(time.time())
    no_usage = None if include_usage else msgspec.UNSET

    def chunk(
        *choices: ChatChunkChoice, usage: openai.Usage | msgspec.UnsetType | None = no_usage
    ) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=f"chatcmpl-{stream.id}",
            object="chat.completion.chunk",
            created=created,
            model=call.body.model,
            choices=choices,
            usage=usage,
        )

    role_sent = False
    async for piece in stream:
        reason = finish_reason(piece)
        if not role_sent:  # with the first token, so that clients time what they think they time
            yield chunk(ChatChunkChoice(0, ChatDelta(role="assistant", content="")))
            role_sent = True
        if piece.text:
            yield chunk(ChatChunkChoice(0, ChatDelta(content=piece.text)))
        if reason is not None:
            yield chunk(ChatChunkChoice(0, ChatDelta(), reason))
    if include_usage:
        yield chunk(usage=openai.usage_of(stream.usage))
