"""``GET /v1/models`` over a real socket."""

import httpx
import pytest

from harness.scripted import ScriptedEngine

MODEL = {
    "id": "scripted",
    "object": "model",
    "created": 1_700_000_000,
    "owned_by": "radixd",
    "max_model_len": 4096,
}


async def test_the_list_holds_the_served_model(client: httpx.AsyncClient) -> None:
    """In OpenAI's list format, with the longest context besides."""
    response = await client.get("/v1/models")
    assert response.json() == {"object": "list", "data": [MODEL]}


async def test_the_served_model_can_be_asked_for(client: httpx.AsyncClient) -> None:
    """By the name that the list gives."""
    assert (await client.get("/v1/models/scripted")).json() == MODEL


async def test_a_name_may_have_slashes(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    """As the names of Hugging Face's models do."""
    engine.model = type(engine.model)(
        **{name: getattr(engine.model, name) for name in engine.model.__struct_fields__}
        | {"name": "org/model"}
    )
    assert (await client.get("/v1/models/org/model")).json()["id"] == "org/model"
    assert (await client.get("/v1/models/org%2Fmodel")).json()["id"] == "org/model"


@pytest.mark.parametrize("name", ["other", "scripted/x", "org/scripted", ""])
async def test_another_model_is_not_found(client: httpx.AsyncClient, name: str) -> None:
    """OpenAI's code for it."""
    response = await client.get(f"/v1/models/{name}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
