"""What OpenAI's two generating endpoints share: sampling fields, usage, and what is let through."""

from typing import Final

import msgspec

from radixd.actors.generation import GenerationParams, TokenUsage
from radixd.api.body import Tolerance
from radixd.api.errors import invalid
from radixd.api.sampling import generation_params

STREAM_OPTIONS: Final = Tolerance(
    neutral={"include_obfuscation": (False,), "continuous_usage_stats": (False,)}
)

NEUTRAL: Final = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
}
"""Values of fields of both endpoints, OpenAI's and other servers', that change nothing."""

IGNORED: Final = {
    "user": "names the end user to OpenAI's abuse detection, which is not here",
    "safety_identifier": "the newer name of user",
    "metadata": "labels stored completions, and none are stored",
    "prompt_cache_key": "routes to one of many caches, and here is one; every prefix is looked up",
}
"""Fields of both endpoints that may hold anything."""


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a stream holds besides the answer."""

    include_usage: bool | None = None
    """Send a last chunk without choices that holds the usage."""


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to answer; null is the same as leaving a field out."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    """0 to 2, by default 1; 0 is greedy."""
    top_p: float | None = None
    top_k: int | None = None
    """0 and -1 mean all tokens."""
    stop: str | tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage; raises `ApiError` where there is no stream."""
        if self.stream_options is None:
            return False
        if not self.stream:
            raise invalid("stream_options", "is only for requests whose stream is true")
        return bool(self.stream_options.include_usage)

    def params(self, max_tokens: int | None) -> GenerationParams:
        """Return the engine's parameters."""
        return generation_params(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
        )


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Where the prompt's tokens came from."""

    cached_tokens: int
    """Prompt tokens that were not computed for this request."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage_of(*answers: TokenUsage) -> Usage:
    """Return the tokens of all *answers* together."""
    prompt = sum(answer.prompt_tokens for answer in answers)
    completion = sum(answer.completion_tokens for answer in answers)
    cached = sum(answer.cached_tokens for answer in answers)
    return Usage(prompt, completion, prompt + completion, PromptTokensDetails(cached))
