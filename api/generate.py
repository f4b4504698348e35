"""``POST /generate``, as SGLang's clients send and read it."""

from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from radixd.actors.generation import (
    GenerationParams,
    Prompt,
    TextPrompt,
    TokenPrompt,
    TokenUsage,
)
from radixd.api.answers import FinishReason, collect, finish_reason
from radixd.api.body import Tolerance
from radixd.api.call import Call, RecordedStream
from radixd.api.context import check_request_id, seconds_since
from radixd.api.errors import invalid
from radixd.api.sampling import generation_params

MAX_NEW_TOKENS_DEFAULT: Final = 128
"""SGLang's."""

TOLERANCE: Final = Tolerance(
    neutral={
        "return_logprob": (False,),
        "return_text_in_logprobs": (True, False),
        "logprob_start_len": (-1,),
        "top_logprobs_num": (0,),
        "token_ids_logprob": (),
        "return_hidden_states": (False,),
        "return_routed_experts": (False,),
        "image_data": ([],),
        "video_data": ([],),
        "audio_data": ([],),
        "modalities": ([],),
        "lora_path": (),
        "session_params": (),
        "custom_logit_processor": (),
        "extra_key": (),
        "priority": (),
    },
    ignored={"log_metrics": "every request is counted"},
    nested={
        "sampling_params": Tolerance(
            neutral={
                "n": (1,),
                "min_new_tokens": (0,),
                "min_p": (0,),
                "frequency_penalty": (0,),
                "presence_penalty": (0,),
                "repetition_penalty": (1,),
                "logit_bias": ({},),
                "json_schema": (),
                "regex": (),
                "ebnf": (),
                "structural_tag": (),
                "stop_regex": ([],),
                "skip_special_tokens": (True,),
                "spaces_between_special_tokens": (True,),
                "no_stop_trim": (False,),
                "custom_params": (),
            }
        )
    },
)

_PARAM_NAMES: Final = {"max_tokens": "sampling_params.max_new_tokens"} | {
    name: f"sampling_params.{name}"
    for name in ("temperature", "top_p", "top_k", "stop", "stop_token_ids", "ignore_eos")
}


class GenerateSampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to answer; null is the same as leaving a field out."""

    max_new_tokens: int | None = None
    """By default 128."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    """0 and -1 mean all tokens."""
    stop: str | tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    sampling_seed: int | None = None
    """SGLang's name of seed."""


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt to continue: either its text or its token ids."""

    text: str | None = None
    input_ids: tuple[int, ...] | None = None
    sampling_params: GenerateSampling | None = None
    stream: bool | None = None
    rid: str | None = None
    """Names the request; by default ``X-Request-Id`` does."""


class Finish(msgspec.Struct, frozen=True):
    """How an answer ended."""

    type: FinishReason
    matched: str | int | msgspec.UnsetType = msgspec.UNSET
    """The stop string, or the id of the token, that ended it."""
    length: int | msgspec.UnsetType = msgspec.UNSET
    """The number of tokens at which it was cut."""


class MetaInfo(msgspec.Struct, frozen=True):
    """About an answer, as far as it is there."""

    id: str
    finish_reason: Finish | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens that were not computed for this request."""
    e2e_latency: float
    """Seconds since the request arrived."""


class GenerateReply(msgspec.Struct, frozen=True):
    """The answer; each event of a stream holds all of it that is there."""

    text: str
    output_ids: tuple[int, ...]
    meta_info: MetaInfo


async def generate(call: Call[GenerateRequest]) -> None:
    """Continue a prompt, at once or piece by piece."""
    body = call.body
    field, prompt = _prompt(body)
    sampling = body.sampling_params or GenerateSampling()
    seed_field, params = _params(sampling)
    names = _PARAM_NAMES | {"prompt": field, "seed": f"sampling_params.{seed_field}"}
    if body.rid is not None:
        check_request_id(body.rid, "rid")
        if not call.record.named:
            call.record.rename(body.rid)
    async with await call.submit(prompt, params, names=names, request_id=body.rid) as stream:
        if body.stream:
            await call.stream(_growing_replies(call, stream))
            return
        answer = await collect(stream)
        finish = _finish(answer.finish_reason, answer.stop_string, answer.token_ids, answer.usage)
        await call.reply(
            GenerateReply(
                answer.text,
                answer.token_ids,
                _meta_info(call, stream.id, answer.usage, finish),
            )
        )


async def _growing_replies(
    call: Call[GenerateRequest], stream: RecordedStream
) -> AsyncGenerator[GenerateReply]:
    """Yield with each piece the whole answer so far, as SGLang's streams do by default."""
    text = ""
    token_ids: tuple[int, ...] = ()
    async for piece in stream:
        reason = finish_reason(piece)
        text += piece.text
        token_ids += piece.token_ids
        finish = None
        if reason is not None:
            finish = _finish(reason, piece.stop_string, token_ids, piece.usage)
        yield GenerateReply(text, token_ids, _meta_info(call, stream.id, piece.usage, finish))


def _prompt(body: GenerateRequest) -> tuple[str, Prompt]:
    """Return the field that holds the prompt, and the prompt."""
    if body.text is not None and body.input_ids is None:
        return "text", TextPrompt(body.text)
    if body.input_ids is not None and body.text is None:
        return "input_ids", TokenPrompt(body.input_ids)
    raise invalid("text", "give either text or input_ids")


def _params(sampling: GenerateSampling) -> tuple[str, GenerationParams]:
    """Return the field that holds the seed, and the engine's parameters."""
    seed_field, seed = "seed", sampling.seed
    if sampling.sampling_seed is not None:
        seed_field, seed = "sampling_seed", sampling.sampling_seed
    max_tokens = sampling.max_new_tokens
    return seed_field, generation_params(
        max_tokens=MAX_NEW_TOKENS_DEFAULT if max_tokens is None else max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
        seed=seed,
        ignore_eos=sampling.ignore_eos,
    )


def _finish(
    reason: FinishReason, stop_string: str | None, token_ids: tuple[int, ...], usage: TokenUsage
) -> Finish:
    if reason == "length":
        return Finish("length", length=usage.completion_tokens)
    if stop_string is not None:
        return Finish("stop", matched=stop_string)
    return Finish("stop", matched=token_ids[-1])


def _meta_info(
    call: Call[GenerateRequest], request_id: str, usage: TokenUsage, finish: Finish | None
) -> MetaInfo:
    return MetaInfo(
        id=request_id,
        finish_reason=finish,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        e2e_latency=seconds_since(call.record.started),
    )
