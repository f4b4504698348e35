"""From settings to a model that computes, and what it says of itself."""

from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from harness.tiny import (
    CHAT_END_ID,
    CONTEXT_LENGTH,
    END_ID,
    TEMPLATE,
    VOCABULARY,
    tiny_config,
    tiny_tokenizer,
)
from radixd.cache.messages import RequestId
from radixd.cache.tokens import pack
from radixd.scheduling.messages import Row, SamplingParams, Seat, Step
from radixd.settings import Settings
from radixd.workers.models import ModelError
from radixd.workers.pytorch.loading import load

BYTES_PER_TOKEN = 2 * 2 * 2 * 8 * 4
"""Two layers, K and V, two heads of eight numbers of four bytes."""


def silent(text: str) -> None:
    """Hear nothing."""


@pytest.fixture
def settings(tiny_folder: Path, tmp_path: Path) -> Settings:
    """Settings for the tiny model."""
    return Settings(model=str(tiny_folder), dtype="float32", kv_pages=64, cache_dir=str(tmp_path))


def test_a_worker_says_all_that_the_daemon_must_know(settings: Settings) -> None:
    """Sizes, end tokens of model and chat, tokenizer, template and special tokens."""
    _, info = load(settings, silent)

    assert (info.dtype, info.vocabulary) == ("float32", VOCABULARY)
    assert info.context_length == CONTEXT_LENGTH
    assert (info.page_size, info.kv_pages) == (16, 64)
    assert info.bytes_per_token == BYTES_PER_TOKEN
    assert info.eos_ids == (END_ID, CHAT_END_ID)
    assert info.chat_template == TEMPLATE
    assert info.special_tokens["bos_token"] == "<s>"
    assert info.tokenizer_file is not None
    assert Tokenizer.from_file(info.tokenizer_file).encode("7 9").ids == [7, 9]


def test_kv_memory_is_turned_into_pages(settings: Settings) -> None:
    """As many whole pages as fit in the bytes."""
    memory = 10 * 16 * BYTES_PER_TOKEN + 5
    _, info = load(msgspec.structs.replace(settings, kv_pages=None, kv_memory=memory), silent)

    assert info.kv_pages == 10


def test_without_a_size_a_part_of_free_memory_is_taken_and_said(settings: Settings) -> None:
    """At most two gigabytes on a CPU."""
    said: list[str] = []
    _, info = load(msgspec.structs.replace(settings, kv_pages=None), said.append)

    if info.device == "cpu":
        assert 2 <= info.kv_pages <= (2 << 30) // (16 * BYTES_PER_TOKEN)
    assert any(f"{info.kv_pages:,} pages" in text for text in said)


def test_memory_for_less_than_two_pages_is_refused(settings: Settings) -> None:
    """The message names the setting and what a page takes."""
    small = msgspec.structs.replace(settings, kv_pages=None, kv_memory=BYTES_PER_TOKEN * 20)

    with pytest.raises(ModelError, match="kv_memory is 5,120 bytes, which hold 1 page"):
        load(small, silent)


def test_more_positions_than_the_model_has_are_refused(settings: Settings) -> None:
    """A shorter length is taken; a longer one would be nonsense."""
    _, info = load(msgspec.structs.replace(settings, max_model_len=100), silent)
    assert info.context_length == 100
    with pytest.raises(ModelError, match="max_model_len"):
        load(msgspec.structs.replace(settings, max_model_len=CONTEXT_LENGTH + 1), silent)


def test_a_model_that_would_rotate_cached_keys_anew_is_kept_short(
    settings: Settings, tmp_path: Path
) -> None:
    """LongRoPE changes the angles of all positions once a sequence passes its first length."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "original_max_position_embeddings": 512,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
    }
    LlamaForCausalLM(tiny_config(rope_parameters=rope)).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    _, info = load(msgspec.structs.replace(settings, model=str(tmp_path)), silent)

    assert info.context_length == 512


def test_another_tokenizer_replaces_the_models_own(
    settings: Settings, tiny_folder: Path, tmp_path: Path
) -> None:
    """Its path is handed on; one that is not there is refused."""
    other = tmp_path / "other.json"
    other.write_bytes((tiny_folder / "tokenizer.json").read_bytes())
    _, info = load(msgspec.structs.replace(settings, tokenizer=str(other)), silent)

    assert info.tokenizer_file == str(other)
    with pytest.raises(ModelError, match="does not exist"):
        load(msgspec.structs.replace(settings, tokenizer=str(tmp_path / "gone.json")), silent)


def test_a_folder_that_holds_no_model_is_refused(settings: Settings, tmp_path: Path) -> None:
    """The message is one line, not the pages of the library below."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')

    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        load(msgspec.structs.replace(settings, model=str(tmp_path)), silent)
    assert "\n" not in str(caught.value)


@pytest.mark.timeout(600)
def test_the_embedded_model_knows_the_capital_of_france() -> None:
    """The default model, from its file to its first words."""
    runner, info = load(Settings(dtype="float32", kv_pages=16), silent)
    assert info.tokenizer_file is not None
    tokenizer = Tokenizer.from_file(info.tokenizer_file)
    prompt = tokenizer.encode("The capital of France is").ids
    request = RequestId(1)
    seat = Seat(request, pack([1, 2]), SamplingParams(temperature=0.0), info.eos_ids)
    first = Row(request, 0, pack(prompt), sample=True)
    answer = [*runner.run(Step(1, (), (seat,), (), (first,))).tokens]
    for position in range(len(prompt), len(prompt) + 4):
        row = Row(request, position, b"", sample=True)
        answer += runner.run(Step(2, (), (), (), (row,))).tokens

    assert "Paris" in tokenizer.decode(answer)
    assert info.chat_template is not None
    assert "<|im_start|>" in info.chat_template
    assert info.context_length == 8192
