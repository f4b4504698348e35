"""Attention over pages, given to every layer of a model in place of its own.

`transformers` calls the function that is registered under a name with the queries, keys and
values of all tokens of a step, flattened to one row.  Here a layer first writes the K and V of
every token to its slot, then attends block by block of the step's layout; so a token may read what
any other token of the same step wrote.

Queries that share a KV head are laid side by side as queries of that head: grouped-query attention
without copies of K and V, and on CPU 8 times faster in bfloat16 than ``enable_gqa`` for one query
against 500 keys (0.77 ms against 6.2 for 32 rows).
"""

from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from radixd.workers.models import ModelError
from radixd.workers.pytorch.layout import Block, Layout

NAME = "radixd"


class LayerShape(msgspec.Struct, frozen=True):
    """What one attention layer writes for each token."""

    heads: int
    key_size: int
    value_size: int

    @property
    def numbers(self) -> int:
        """Numbers that one token takes in this layer."""
        return self.heads * (self.key_size + self.value_size)


class KvMemory:
    """K and V of every slot in every layer: [slots, heads, size], slot = page * page_size + offset.

    Not cleared: a slot is read only by positions up to the length of a sequence that wrote it.
    """

    def __init__(
        self, shapes: dict[int, LayerShape], slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {
            layer: (
                torch.empty(slots, shape.heads, shape.key_size, dtype=dtype, device=device),
                torch.empty(slots, shape.heads, shape.value_size, dtype=dtype, device=device),
            )
            for layer, shape in shapes.items()
        }


class PagedPass(msgspec.Struct, frozen=True):
    """What a forward pass carries to the attention of every layer."""

    memory: KvMemory
    layout: Layout


class Survey:
    """Carried by a trial pass instead: notes what each layer would write, and refuses."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    paged: PagedPass | Survey | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Write *key* and *value*, attend with *query*: each [1, heads, tokens, size].

    Returns [1, tokens, heads, size].  *paged* is the keyword argument of the model's call.
    """
    layer = module.layer_idx
    assert isinstance(layer, int)
    if isinstance(paged, Survey):
        _refuse(module, attention_mask, options)
        paged.shapes[layer] = LayerShape(key.shape[1], key.shape[3], value.shape[3])
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
    assert paged is not None
    layout = paged.layout
    keys, values = paged.memory.layers[layer]
    keys.index_copy_(0, layout.write_slots, key[0].transpose(0, 1))
    values.index_copy_(0, layout.write_slots, value[0].transpose(0, 1))
    queries = query[0].transpose(0, 1)
    if len(layout.blocks) == 1 and layout.blocks[0].whole:
        return _attend(queries, keys, values, layout.blocks[0], scaling).unsqueeze(0), None
    output = queries.new_empty(*queries.shape[:2], values.shape[2])
    for block in layout.blocks:
        attended = _attend(queries.index_select(0, block.tokens), keys, values, block, scaling)
        # Padding repeats a row's last token, so what is written twice is the same.
        output.index_copy_(0, block.tokens, attended)
    return output.unsqueeze(0), None


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, block: Block, scaling: float | None
) -> Tensor:
    """Return [rows * width, heads, size] for *queries* of the same shape."""
    rows, length = block.rows, block.length
    heads, kv_heads = queries.shape[1], keys.shape[1]
    shared = heads // kv_heads
    width = len(queries) // rows
    key = keys.index_select(0, block.read_slots).view(rows, length, kv_heads, -1)
    value = values.index_select(0, block.read_slots).view(rows, length, kv_heads, -1)
    grouped = queries.view(rows, width, kv_heads, shared, -1).permute(0, 2, 3, 1, 4)
    attended = scaled_dot_product_attention(
        grouped.reshape(rows, kv_heads, shared * width, -1),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=block.mask(shared, queries.dtype),
        scale=scaling,
    )
    apart = attended.view(rows, kv_heads, shared, width, -1).permute(0, 3, 1, 2, 4)
    return apart.reshape(rows * width, heads, -1)


def _refuse(module: nn.Module, attention_mask: Tensor | None, options: dict[str, Any]) -> None:
    """Raise `ModelError` for what a layer asks beyond plain causal attention."""
    layer = module.layer_idx
    if attention_mask is not None:
        raise ModelError(f"layer {layer} brings an attention mask of its own")
    for name in ("sliding_window", "softcap", "s_aux", "position_bias", "head_mask"):
        if options.get(name) is not None:
            raise ModelError(f"layer {layer} asks for attention with {name}, which is not served")
    if False in (options.get("is_causal"), getattr(module, "is_causal", None)):
        raise ModelError(f"layer {layer} does not attend causally")


def install(model: PreTrainedModel) -> dict[int, LayerShape]:
    """Give *model* this attention and return the shape of every layer.

    Raises `ModelError` if some layer would not use it, or needs more than it does.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise ModelError(f"layers of type {', '.join(sorted(kinds))} are not served")
    AttentionInterface.register(NAME, paged_attention)
    survey = Survey()
    positions = torch.arange(2, device=model.device)[None]
    try:
        model.set_attn_implementation(NAME)
        model(input_ids=positions, position_ids=positions, use_cache=False, paged=survey)
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"{type(model).__name__} does not take an attention function: {error}"
        ) from error
    layers = config.num_hidden_layers
    if len(survey.shapes) != layers:
        raise ModelError(
            f"{type(model).__name__} has {layers} layers, of which {len(survey.shapes)} attend "
            "through the interface that pages need; state-space, linear and shared layers are "
            "not served"
        )
    return survey.shapes
