"""`radixd.actors.served`: what the engine makes of a worker's account of its model."""

from pathlib import Path

import msgspec
import pytest

from radixd.actors.generation import ChatPrompt, InvalidRequestError
from radixd.actors.served import ServedModel, make_worker
from radixd.settings import Settings, SettingsError
from radixd.workers.protocol import WorkerInfo

INFO = WorkerInfo(
    model="m",
    device="cpu",
    dtype="float32",
    vocabulary=258,
    context_length=1000,
    page_size=16,
    kv_pages=11,
    bytes_per_token=1,
    eos_ids=(257,),
    tokenizer_file=None,
    chat_template=None,
    special_tokens={},
)


def test_the_shorter_of_context_and_memory_is_the_limit() -> None:
    """Ten pages of 16 hold 161 tokens: the last one has no KV."""
    assert ServedModel(Settings(), INFO).card.max_model_len == 161
    roomy = msgspec.structs.replace(INFO, kv_pages=1000)
    assert ServedModel(Settings(), roomy).card.max_model_len == 1000
    assert ServedModel(Settings(max_model_len=50), INFO).card.max_model_len == 50
    with pytest.raises(SettingsError, match="162 is more than 161"):
        ServedModel(Settings(max_model_len=162), INFO)


def test_the_served_name_can_be_chosen() -> None:
    """By default it is the model's."""
    assert ServedModel(Settings(model="a/b"), INFO).card.name == "a/b"
    assert ServedModel(Settings(model="a/b", served_model_name="c"), INFO).card.name == "c"


def test_a_tokenizer_that_cannot_be_read_is_a_wrong_setting(tmp_path: Path) -> None:
    """With either worker."""
    chosen = Settings(worker="simulated", tokenizer=str(tmp_path / "none.json"))
    with pytest.raises(SettingsError, match=r"tokenizer: .*none\.json"):
        make_worker(chosen)
    with pytest.raises(SettingsError, match=r"none\.json"):
        ServedModel(chosen, msgspec.structs.replace(INFO, tokenizer_file=chosen.tokenizer))


@pytest.mark.parametrize("content", [None, "{% for %}", "\udcff"])
def test_a_chat_template_that_cannot_be_used_is_a_wrong_setting(
    tmp_path: Path, content: str | None
) -> None:
    """Missing, broken, or no text."""
    path = tmp_path / "chat.jinja"
    if content is not None:
        path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(SettingsError, match=r"chat_template: .*chat\.jinja"):
        ServedModel(Settings(chat_template=str(path)), INFO)


def test_a_chosen_chat_template_takes_the_place_of_the_models(tmp_path: Path) -> None:
    """And its refusals reach the client."""
    path = tmp_path / "chat.jinja"
    path.write_text("{{ raise_exception('never') if messages[0].role == 'system' else 'ok' }}")
    encoder = ServedModel(Settings(chat_template=str(path)), INFO).encoder
    assert bytes(encoder.encode(ChatPrompt(({"role": "user", "content": ""},)))) == b"ok"
    with pytest.raises(InvalidRequestError, match="never"):
        encoder.encode(ChatPrompt(({"role": "system", "content": ""},)))
