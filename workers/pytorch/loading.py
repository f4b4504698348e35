"""From settings to a model that is ready to compute, and to what it says of itself.

GGUF weights are dequantised once and kept as safetensors under the hash of the file, in float32,
which holds every quantised value exactly: a first start takes 20 seconds, later ones 3.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from radixd.settings import Dtype, Settings
from radixd.workers.models import (
    GgufFile,
    ModelError,
    ModelFolder,
    ModelSource,
    Say,
    cache_folder,
    resolve,
    sha256,
)
from radixd.workers.protocol import WorkerInfo
from radixd.workers.pytorch.attention import KvMemory, install
from radixd.workers.pytorch.memory import plan_pages
from radixd.workers.pytorch.runner import StepRunner

_CHAT_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")
"""Tokens that close a turn; some models do not list theirs as an end of sequence."""


class _Text(msgspec.Struct, frozen=True):
    """What the control process needs to turn text into tokens and back."""

    tokenizer_file: str
    chat_template: str | None
    special_tokens: dict[str, str]
    eos_ids: frozenset[int]


def load(settings: Settings, say: Say) -> tuple[StepRunner, WorkerInfo]:
    """Load the model that *settings* name and make its memory.

    Raises `ModelError` if the model cannot be had or served, or not with these settings.
    """
    cache, source = _find(settings, say)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    dtype = _dtype(settings.dtype, device)
    say(f"loading {settings.model} in {_name(dtype)}")
    model = _model(source, dtype)
    model.to(device)  # type: ignore[arg-type]  # its stub loses the overloads of nn.Module
    text = _text(source, settings, cache)
    context_length = _context_length(model, settings.max_model_len)
    with torch.inference_mode():
        shapes = install(model)
    bytes_per_token = dtype.itemsize * sum(shape.numbers for shape in shapes.values())
    pages = plan_pages(settings, bytes_per_token, device)
    slots = pages * settings.page_size
    say(
        f"KV memory: {slots:,} tokens in {pages:,} pages of {settings.page_size} "
        f"({slots * bytes_per_token / 2**30:.2f} GiB on {device})"
    )
    memory = KvMemory(shapes, slots, dtype, device)
    runner = StepRunner(model, memory, page_size=settings.page_size, seats=settings.max_running)
    info = WorkerInfo(
        model=settings.model,
        device=_device_name(device),
        dtype=_name(dtype),
        vocabulary=int(model.config.get_text_config().vocab_size),
        context_length=context_length,
        page_size=settings.page_size,
        kv_pages=pages,
        bytes_per_token=bytes_per_token,
        eos_ids=tuple(sorted(text.eos_ids | set(_ids(model.config.eos_token_id)) | _stops(model))),
        tokenizer_file=text.tokenizer_file,
        chat_template=text.chat_template,
        special_tokens=text.special_tokens,
    )
    return runner, info


def plain_model(settings: Settings, say: Say) -> PreTrainedModel:
    """Load the same weights with attention of their own, on CPU: what served answers must equal.

    Raises `ModelError` as `load` does.
    """
    _, source = _find(settings, say)
    return _model(source, _dtype(settings.dtype, torch.device("cpu")))


def _find(settings: Settings, say: Say) -> tuple[Path, ModelSource]:
    """Return the cache folder and where the weights are, fetched and dequantised if need be."""
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    cache = cache_folder(settings.cache_dir)
    return cache, _with_plain_weights(resolve(settings.model, cache, say), cache, say)


def _with_plain_weights(source: ModelSource, cache: Path, say: Say) -> ModelSource:
    if not isinstance(source, GgufFile):
        return source
    folder = cache / "dequantised" / (source.sha256 or sha256(source.path))
    if not folder.is_dir():
        say(f"dequantising {source.path.name}; later starts skip this")
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
        try:
            _dequantise(source.path, scratch)
            scratch.rename(folder)
        except OSError:
            # Another process may have put it there first, and then that one serves as well.
            if not folder.is_dir():
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return ModelFolder(folder)


def _dequantise(file: Path, folder: Path) -> None:
    place, name = str(file.parent), file.name
    try:
        model = AutoModelForCausalLM.from_pretrained(
            place,
            gguf_file=name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
        )
        tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name)
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise ModelError(f"{file} cannot be read as a model: {_brief(error)}") from error
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _place(source: ModelSource) -> str:
    match source:
        case ModelFolder(path):
            return str(path)
        case GgufFile(path):
            return str(path)
        case _:
            return source.repository


def _model(source: ModelSource, dtype: torch.dtype) -> PreTrainedModel:
    place = _place(source)
    try:
        model = AutoModelForCausalLM.from_pretrained(place, dtype=dtype, trust_remote_code=False)
    except (OSError, ValueError, ImportError) as error:
        raise ModelError(f"{place} cannot be loaded: {_brief(error)}") from error
    assert isinstance(model, PreTrainedModel)
    if model.config.is_encoder_decoder:
        raise ModelError(f"{place} is an encoder-decoder, and only decoders are served")
    return model


def _text(source: ModelSource, settings: Settings, cache: Path) -> _Text:
    tokenizer = _tokenizer(source, settings)
    file = settings.tokenizer
    if file is None:
        assert tokenizer is not None
        file = str(_tokenizer_file(source, tokenizer, cache))
    elif not Path(file).is_file():
        raise ModelError(f"tokenizer: {file} does not exist")
    template = _template(tokenizer, settings.chat_template)
    return _Text(
        tokenizer_file=file,
        chat_template=template,
        special_tokens=dict(_special_tokens(tokenizer)),
        eos_ids=frozenset(_end_ids(tokenizer, template or "")),
    )


def _tokenizer(source: ModelSource, settings: Settings) -> PreTrainedTokenizerBase | None:
    place = _place(source)
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except (OSError, ValueError, ImportError, KeyError) as error:
        if settings.tokenizer is not None:
            return None
        raise ModelError(
            f"{place} has no tokenizer that can be loaded ({_brief(error)}); give one with "
            "--tokenizer"
        ) from error
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


def _tokenizer_file(source: ModelSource, tokenizer: PreTrainedTokenizerBase, cache: Path) -> Path:
    """Return the path of a ``tokenizer.json``, written to *cache* if the model brings none."""
    if isinstance(source, ModelFolder) and (own := source.path / "tokenizer.json").is_file():
        return own
    if not tokenizer.is_fast:
        raise ModelError("its tokenizer has no tokenizer.json; give one with --tokenizer")
    digest = hashlib.sha256(_place(source).encode()).hexdigest()
    file = cache / "tokenizers" / f"{digest[:32]}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as scratch:
        scratch.write(tokenizer.backend_tokenizer.to_str())
    return Path(scratch.name).replace(file)


def _template(tokenizer: PreTrainedTokenizerBase | None, replacement: str | None) -> str | None:
    if replacement is not None:
        try:
            return Path(replacement).read_text()
        except OSError as error:
            raise ModelError(f"chat_template: {error}") from error
    template = None if tokenizer is None else tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None


def _special_tokens(tokenizer: PreTrainedTokenizerBase | None) -> Iterator[tuple[str, str]]:
    if tokenizer is not None:
        for name, token in tokenizer.special_tokens_map.items():
            if isinstance(token, str):
                yield name, token


def _end_ids(tokenizer: PreTrainedTokenizerBase | None, template: str) -> Iterator[int]:
    if tokenizer is not None:
        yield from _ids(tokenizer.eos_token_id)
        vocabulary = tokenizer.get_vocab()
        for mark in _CHAT_ENDS:
            if mark in template and mark in vocabulary:
                yield vocabulary[mark]


def _stops(model: PreTrainedModel) -> set[int]:
    generation = model.generation_config
    return set() if generation is None else set(_ids(generation.eos_token_id))


def _ids(value: Any) -> list[int]:
    """Read an id field of a model's configuration, which may be one, several or none."""
    if value is None:
        return []
    return [int(entry) for entry in value] if isinstance(value, list) else [int(value)]


def _context_length(model: PreTrainedModel, wanted: int | None) -> int:
    config = model.config.get_text_config()
    own = getattr(config, "max_position_embeddings", None)
    if own is None:
        raise ModelError("its configuration names no max_position_embeddings")
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # Beyond its first length this rotates every key anew, those that are cached as well.
        own = min(own, rope.get("original_max_position_embeddings", own))
    if wanted is None:
        return int(own)
    if wanted > own:
        raise ModelError(f"max_model_len: {wanted} is more than the model's {own} positions")
    return wanted


def _dtype(name: Dtype, device: torch.device) -> torch.dtype:
    """Return the type of weights and KV; ``auto`` takes bfloat16 where it is fast."""
    if name != "auto":
        return {
            "float32": torch.float32,
            "bfloat16": torch.bfloat16,
            "float16": torch.float16,
        }[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    features = torch.cpu.get_capabilities()
    fast = features.get("avx512_bf16") or features.get("amx_bf16")
    return torch.bfloat16 if fast else torch.float32


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"
    return str(device)


def _brief(error: Exception) -> str:
    """Return the first line of an error; those of `transformers` go on for pages."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
