"""The route table: everything that the daemon answers, in one place."""

import functools
from typing import Any, Final

from radixd.actors.engine import EngineStatistics
from radixd.api import chat, completions, generate, health, models, openapi
from radixd.api.call import Call
from radixd.api.endpoint import Route

GENERATION_ERRORS: Final = (404, 413, 429, 503)


async def describe(call: Call[None]) -> None:
    """Answer with the OpenAPI document of this table."""
    await call.reply(_document())


ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/chat/completions",
        summary="Continue a conversation",
        handler=chat.complete_chat,
        request=chat.ChatCompletionRequest,
        tolerance=chat.TOLERANCE,
        response=chat.ChatCompletion,
        event=chat.ChatCompletionChunk,
        errors=GENERATION_ERRORS,
    ),
    Route(
        method="POST",
        path="/v1/completions",
        summary="Continue one or more prompts",
        handler=completions.complete,
        request=completions.CompletionRequest,
        tolerance=completions.TOLERANCE,
        response=completions.Completion,
        event=completions.Completion,
        errors=GENERATION_ERRORS,
    ),
    Route(
        method="POST",
        path="/generate",
        summary="Continue a prompt, in SGLang's dialect",
        handler=generate.generate,
        request=generate.GenerateRequest,
        tolerance=generate.TOLERANCE,
        response=generate.GenerateReply,
        event=generate.GenerateReply,
        errors=(413, 429, 503),
    ),
    Route(
        method="GET",
        path="/v1/models",
        summary="List what is served",
        handler=models.list_models,
        response=models.ModelList,
    ),
    Route(
        method="GET",
        path="/v1/models/{model:path}",
        summary="Describe one model",
        handler=models.get_model,
        response=models.Model,
        errors=(404,),
    ),
    Route(
        method="GET",
        path="/health",
        summary="Whether the daemon runs",
        handler=health.health,
        response=health.Health,
        errors=(503,),
    ),
    Route(
        method="GET",
        path="/ready",
        summary="Whether the daemon takes requests now",
        handler=health.ready,
        response=health.Ready,
        errors=(503,),
    ),
    Route(
        method="GET",
        path="/metrics",
        summary="All metrics, for Prometheus",
        handler=health.metrics,
        response=str,
        media_type="text/plain",
    ),
    Route(
        method="GET",
        path="/cache/stats",
        summary="The books of cache, scheduler and gate",
        handler=health.cache_statistics,
        response=EngineStatistics,
        errors=(503,),
    ),
    Route(
        method="GET",
        path="/openapi.json",
        summary="This description",
        handler=describe,
        response=dict[str, Any],
    ),
)


@functools.cache
def _document() -> dict[str, Any]:
    return openapi.document(ROUTES)
