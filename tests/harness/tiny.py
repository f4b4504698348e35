"""A model small enough to be made anew for each run: two layers, four heads on two KV heads."""

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 128
CONTEXT_LENGTH = 2048
END_ID = 2
CHAT_END_ID = 3
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"


def tiny_config(**changes: Any) -> LlamaConfig:
    """The configuration of the tiny model, with *changes*."""
    values: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT_LENGTH,
        "bos_token_id": 1,
        "eos_token_id": END_ID,
        # Large weights make the logits of different contexts differ by much.
        "initializer_range": 0.4,
        "tie_word_embeddings": False,
    }
    return LlamaConfig(**{**values, **changes})


def tiny_model() -> LlamaForCausalLM:
    """The tiny model in float32; the same weights at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(tiny_config())
    model.eval()  # type: ignore[no-untyped-call]
    return model


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of words for numbers, with the special tokens of ChatML."""
    special = {"<unk>": 0, "<s>": 1, "</s>": END_ID, "<|im_end|>": CHAT_END_ID}
    words = {str(number): number for number in range(len(special), VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel({**special, **words}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    wrapped.chat_template = TEMPLATE
    return wrapped
