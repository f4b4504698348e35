"""From the sampling fields of a request to the engine's parameters, for all dialects alike."""

from typing import Any

from radixd.actors.generation import GenerationParams


def generation_params(
    *,
    max_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    stop: str | tuple[str, ...] | None,
    stop_token_ids: tuple[int, ...] | None,
    seed: int | None,
    ignore_eos: bool | None,
) -> GenerationParams:
    """Return the parameters; None keeps the engine's default, and the engine checks limits."""
    given: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        # -1 is what other servers call all tokens.
        "top_k": 0 if top_k == -1 else top_k,
        "stop": (stop,) if isinstance(stop, str) else stop,
        "stop_token_ids": stop_token_ids,
        "seed": seed,
        "ignore_eos": ignore_eos,
    }
    return GenerationParams(**{name: value for name, value in given.items() if value is not None})
