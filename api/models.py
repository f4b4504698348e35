"""``GET /v1/models``: what is served, in OpenAI's list format."""

from typing import Literal

import msgspec

from radixd.api.call import Call
from radixd.api.engine import ServingEngine


class Model(msgspec.Struct, frozen=True):
    """One model."""

    id: str
    """What requests send as ``model``."""
    object: Literal["model"]
    created: int
    """Unix time at which it became ready."""
    owned_by: Literal["radixd"]
    max_model_len: int
    """Longest prompt plus answer, in tokens."""


class ModelList(msgspec.Struct, frozen=True):
    """All models."""

    object: Literal["list"]
    data: tuple[Model, ...]


async def list_models(call: Call[None]) -> None:
    """Answer with the one model there is."""
    await call.reply(ModelList("list", (_served(call.engine),)))


async def get_model(call: Call[None]) -> None:
    """Answer with the model of the path; raises `ApiError` 404 for any other."""
    call.check_model(call.path_params["model"])
    await call.reply(_served(call.engine))


def _served(engine: ServingEngine) -> Model:
    card = engine.model
    return Model(card.name, "model", card.created, "radixd", card.max_model_len)
