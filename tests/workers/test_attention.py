"""Which models may be given attention over pages, and why others are refused."""

from typing import Any

import pytest
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    MambaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
)

from harness.tiny import tiny_config
from radixd.workers.models import ModelError
from radixd.workers.pytorch.attention import LayerShape, install

SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
OWN_NAMES: dict[str, Any] = {
    "vocab_size": 64,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def made(config: PretrainedConfig) -> PreTrainedModel:
    """A model of *config* with random weights."""
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    assert isinstance(model, PreTrainedModel)
    return model


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (tiny_config(), LayerShape(2, 8, 8)),
        (Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=16), LayerShape(2, 16, 16)),
        (GPT2Config(**OWN_NAMES, n_embd=32), LayerShape(4, 8, 8)),
    ],
)
def test_plain_causal_models_are_served(config: PretrainedConfig, shape: LayerShape) -> None:
    """What a layer writes is measured by a trial pass, whatever the configuration calls it."""
    assert install(made(config)) == {0: shape, 1: shape}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=16), "sliding_window"),
        (Gemma2Config(**SHAPE, num_key_value_heads=2, head_dim=8), "sliding_attention"),
        (BloomConfig(**OWN_NAMES, hidden_size=32), "of which 0 attend"),
        (MambaConfig(**SHAPE), "linear_attention|of which 0 attend"),
        (BertConfig(**SHAPE), "causally"),
    ],
)
def test_other_models_are_refused_with_the_reason(config: PretrainedConfig, reason: str) -> None:
    """Windows, positions inside the scores, state spaces and encoders need other memory."""
    with pytest.raises(ModelError, match=reason):
        install(made(config))
