"""What this side needs of the model that a worker serves: its text, its limits, its name.

The worker hands over paths and values; nothing here imports what loads models.
"""

import time
from collections.abc import Callable
from pathlib import Path

from radixd.actors.generation import ModelCard
from radixd.actors.prompts import PromptEncoder
from radixd.cache.feasibility import tokens_feasible
from radixd.settings import Settings, SettingsError
from radixd.text.errors import TemplateError, TokenizerError
from radixd.text.templates import CHATML, ChatTemplate
from radixd.text.tokenizers import ByteTokenizer, Tokenizer, load_tokenizer
from radixd.workers.host import ProcessWorker
from radixd.workers.protocol import Worker, WorkerInfo
from radixd.workers.simulated import SimulatedWorker


def make_worker(settings: Settings, say: Callable[[str], None] | None = None) -> Worker:
    """Return the worker that *settings* name, not started; *say* gets its progress in words."""
    if settings.worker == "torch":
        return ProcessWorker(settings, say=say)
    if settings.tokenizer is not None:
        vocabulary = _load_tokenizer(settings.tokenizer).vocabulary
        return SimulatedWorker(settings, vocabulary=vocabulary, eos_id=None)
    return SimulatedWorker(settings)


class ServedModel:
    """Tokenizer, template and limits of one started worker."""

    def __init__(self, settings: Settings, info: WorkerInfo) -> None:
        self.eos_ids = info.eos_ids
        self.tokenizer = _tokenizer(info)
        capacity = tokens_feasible(info.kv_pages, info.page_size)
        self.card = ModelCard(
            name=settings.served_model_name or settings.model,
            max_model_len=_max_model_len(settings, info, capacity),
            page_size=info.page_size,
            capacity_tokens=capacity,
            vocabulary=self.tokenizer.vocabulary,
            device=info.device,
            dtype=info.dtype,
            created=int(time.time()),
        )
        self.encoder = PromptEncoder(
            self.tokenizer, _template(settings, info), max_model_len=self.card.max_model_len
        )


def _tokenizer(info: WorkerInfo) -> Tokenizer:
    if info.tokenizer_file is None:
        return ByteTokenizer()
    return _load_tokenizer(info.tokenizer_file)


def _load_tokenizer(path: str) -> Tokenizer:
    try:
        return load_tokenizer(Path(path))
    except TokenizerError as error:
        raise SettingsError("tokenizer", str(error)) from error


def _template(settings: Settings, info: WorkerInfo) -> ChatTemplate | None:
    if settings.chat_template is not None:
        path = Path(settings.chat_template)
        try:
            return ChatTemplate(path.read_text(encoding="utf-8"), info.special_tokens)
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError("chat_template", f"{path} cannot be read: {error}") from error
        except TemplateError as error:
            raise SettingsError("chat_template", f"{path}: {error}") from error
    if info.chat_template is not None:
        return ChatTemplate(info.chat_template, info.special_tokens)
    return ChatTemplate(CHATML, {}) if info.tokenizer_file is None else None


def _max_model_len(settings: Settings, info: WorkerInfo, capacity: int) -> int:
    longest = min(info.context_length, capacity)
    if settings.max_model_len is None:
        return longest
    if settings.max_model_len > longest:
        raise SettingsError(
            "max_model_len",
            f"{settings.max_model_len} is more than {longest}: the model's context has "
            f"{info.context_length} tokens and the KV memory holds {capacity}",
        )
    return settings.max_model_len
